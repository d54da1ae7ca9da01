#!/bin/sh
# Runs a framework on EPForge: `run.sh megatron --steps 200`, `run.sh vllm`. $PYTHON (3.12) makes an environment in
# target/integrations/NAME, once, with the pinned versions of NAME/requirements.txt and with EPForge. To install them
# again, remove the folder. RANKS, 2 if it is not set, is the number of processes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:-}
if [ -z "$name" ] || [ ! -f "$here/$name/compare.py" ]; then
    echo "usage: run.sh megatron|vllm [options]" >&2
    exit 2
fi
shift
home=$here/../../target/integrations/$name
python=$home/bin/python
if [ ! -e "$home/ready" ]; then
    "${PYTHON:-python3}" -m venv --clear "$home"
    "$python" -m pip install -r "$here/$name/requirements.txt"
    "$python" -m pip install "$here/.." "$here/../deep-ep" "$here/../epforge-vllm"
    touch "$home/ready"
fi
case $name in
megatron) exec "$python" -m torch.distributed.run --nproc-per-node="${RANKS:-2}" "$here/megatron/compare.py" "$@" ;;
vllm) exec "$python" "$here/vllm/compare.py" --ranks "${RANKS:-2}" "$@" ;;
esac
