#!/usr/bin/env bash
# Runs all that needs a GPU, in under five minutes, from a checkout: benchmarks/gpu_check.sh
# It needs a Python with a CUDA build of torch, and pytest with its plugins; installs nothing. Where
# they can't be installed there, put them beside the checkout before, for the same Python:
#   pip install --no-deps --target build/gpu-packages pytest pluggy iniconfig packaging pygments \
#     hypothesis sortedcontainers pytest-xdist execnet safetensors numpy
# PYTHON names the interpreter. What needs two GPUs is skipped where there is one, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
export PYTHONPATH="$PWD/harness:$PWD/reference:$PWD/suites:$PWD/build/gpu-packages"
export PYTHONDONTWRITEBYTECODE=1
# pytest finds the plugins by the metadata that an installation has; a checkout gets as much.
if ! "$python" -c 'import importlib.metadata as m; m.distribution("shardproof")' 2>/dev/null; then
  metadata=$(mktemp -d)
  trap 'rm -rf "$metadata"' EXIT
  mkdir "$metadata/shardproof-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: shardproof\nVersion: 0\n' \
    >"$metadata/shardproof-0.dist-info/METADATA"
  printf '[pytest11]\nshardproof = shardproof.plugin\nshardproof_suites = shardproof_suites.plugin\n' \
    >"$metadata/shardproof-0.dist-info/entry_points.txt"
  PYTHONPATH+=":$metadata"
fi

"$python" - <<'PYTHON'
import sys, pytest, torch
gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, pytest {pytest.__version__}, {gpus}")
if not gpus:
    sys.exit("there is no GPU here: nothing was checked")
PYTHON
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')

status=0
check() { # check NAME SECONDS COMMAND...: run a step under a limit, and go on if it fails
  local name=$1 limit=$2 from=$SECONDS
  shift 2
  printf '\n[gpu] %s\n' "$name"
  if timeout --kill-after=5 "$limit" "$@" </dev/null; then
    printf '[gpu] %s: passed in %d s\n' "$name" $((SECONDS - from))
  else
    printf '[gpu] %s: FAILED after %d s\n' "$name" $((SECONDS - from))
    status=1
  fi
}

pytest=("$python" -m pytest -q -p no:cacheprovider)
check "the engine on $gpus GPUs" 180 "${pytest[@]}" -rs harness/tests/test_gpu.py
# Cases for more ranks than GPUs are skipped; gloo then runs them on CPUs, which CI does anyway.
check "conformance of the reference over nccl" 100 \
  "${pytest[@]}" --nproc "$gpus" --ranks-backend nccl
exit "$status"
