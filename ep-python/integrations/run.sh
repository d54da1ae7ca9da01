#!/bin/sh
# Runs a framework on EPForge: `run.sh megatron --steps 200`, `run.sh vllm`. The pinned versions of NAME/requirements.txt and EPForge
# are installed into target/integrations/NAME, with $PYTHON (3.12), once; remove the folder to install them again. RANKS: 2.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$1
shift
home=$here/../../target/integrations/$name
if [ ! -e "$home/ready" ]; then
    "${PYTHON:-python3.12}" -m venv --clear "$home"
    "$home/bin/python" -m pip install -r "$here/$name/requirements.txt"
    "$home/bin/python" -m pip install "$here/.." "$here/../deep-ep" "$here/../epforge-vllm"
    touch "$home/ready"
fi
case $name in
megatron) exec "$home/bin/python" -m torch.distributed.run --nproc-per-node="${RANKS:-2}" "$here/megatron/compare.py" "$@" ;;
vllm) exec "$home/bin/python" "$here/vllm/compare.py" --ranks "${RANKS:-2}" "$@" ;;
*) echo "run.sh: no integration is called $name" >&2 && exit 2 ;;
esac
