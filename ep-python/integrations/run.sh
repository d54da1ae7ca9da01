#!/bin/sh
# Runs a framework on EPForge: `run.sh megatron --steps 200`, `run.sh vllm`, `run.sh serve`, `run.sh sglang`. $PYTHON
# (3.12) makes an environment in target/integrations/NAME, once, with the pinned versions of NAME/requirements.txt and
# with EPForge. To install them again, remove the folder. RANKS, 2 if it is not set, is the number of processes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
what=${1:-}
case $what in
megatron | vllm | sglang) name=$what ;;
serve) name=vllm ;;
*)
    echo "usage: run.sh megatron|vllm|serve|sglang [options]" >&2
    exit 2
    ;;
esac
shift
home=$here/../../target/integrations/$name
python=$home/bin/python
if [ ! -e "$home/ready" ]; then
    "${PYTHON:-python3}" -m venv --clear "$home"
    "$python" -m pip install -r "$here/$name/requirements.txt"
    # SGLang asks for a later torch, which its dispatchers do not need.
    if [ "$name" = sglang ]; then "$python" -m pip install --no-deps sglang==0.5.23 "$here/../epforge-sglang"; fi
    "$python" -m pip install "$here/.." "$here/../deep-ep" "$here/../epforge-vllm"
    touch "$home/ready"
fi
case $what in
megatron | sglang) exec "$python" -m torch.distributed.run --nproc-per-node="${RANKS:-2}" "$here/$what/compare.py" "$@" ;;
vllm) exec "$python" "$here/vllm/compare.py" --ranks "${RANKS:-2}" "$@" ;;
serve) exec "$python" "$here/vllm/serve.py" --ranks "${RANKS:-2}" "$@" ;;
esac
