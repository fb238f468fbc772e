#!/usr/bin/env bash
# Runs the GPU tests: the unit tests labelled cuda, a benchmark of the GPU codecs compared with a copy within GPU memory, `verify` with the
# server on the GPU, runs that are killed and resumed there, and benchmarks of MobileNetV2 and RoBERTa-base. Runs inside an archive of
# scripts/package.sh --gpu, or in the sources after a build.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<'TXT'
usage: gpu.sh [--device DEVICE] [--short] [--json FILE]

  --device DEVICE  device of the server: cuda (default), cuda:N, or cpu, to try the script without a GPU
  --short          fewer and smaller batches
  --json FILE      writes the benchmark's figures as JSON to FILE, and those of the codecs to FILE.codecs
  --help           this text

Continues after a test that fails, and ends with a table of all tests; exit code 1 if one failed.

Uses the LibTorch in CLEAVE_TORCH_DIR, otherwise the one in python3's PyTorch.
Example: ./gpu.sh --json gpu.json
TXT
}

device=cuda
bench=() codecs=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --device) device=${2:?--device needs a name}; shift 2 ;;
    --short) bench+=(--short); shift ;;
    --json) bench+=(--json "${2:?--json needs a file}") codecs+=(--json "$2.codecs"); shift 2 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "gpu.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

run=()
if [ -d "$here/bin" ]; then  # this is an archive
  programs=$here/bin tests=$here/tests configs=$here/share/cleave/configs benchmark=$here/gpu.py model=$tests/tiny.pt2 roberta=$tests/roberta.py
  export PYTHONPATH=$here/share/cleave/python${PYTHONPATH:+:$PYTHONPATH}
  run=("$here/bin/cleave-with-torch")
else
  root=$(cd "$here/.." && pwd)
  programs=$root/build/release/bin tests=$programs configs=$root/configs benchmark=$root/tests/bench/gpu.py
  model=$root/tests/data/tiny.pt2 roberta=$root/tests/bench/roberta.py
  export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
fi
[ -x "$programs/cleave-server" ] || { echo "gpu.sh: there is no $programs/cleave-server: build first" >&2; exit 2; }
export OMP_WAIT_POLICY=passive

rows=() failed=0
# part NAME COMMAND…: runs a test and adds a row to the table. Exit code 77: skipped.
part() {
  local name=$1 begun=$SECONDS code=0 result=passed
  shift
  echo "gpu: $name"
  "${run[@]+"${run[@]}"}" "$@" || code=$?
  case "$code" in
    0) ;;
    77) result=skipped ;;
    *) result="failed ($code)" failed=1 ;;
  esac
  rows+=("$(printf '%-20s %-12s %8d' "$name" "$result" $((SECONDS - begun)))")
}

version=$("${run[@]+"${run[@]}"}" "$programs/cleave-server" --version)
echo "gpu: $version on device $device"
! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
for test in stage optimizer worker engine tensor_link connection codec safetensors; do part "${test}_test" "$tests/${test}_test"; done
if [ "$device" = cpu ]; then
  echo "gpu: skipping cuda_test and bench_gpu_codecs, because the device is cpu"
else
  part cuda_test "$tests/cuda_test"
  part bench_gpu_codecs "$tests/bench_gpu_codecs" --device "$device" "${codecs[@]+"${codecs[@]}"}"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in verify resume benchmarks; do
  part "$name" python3 "$benchmark" "$name" --programs "$programs" --configs "$configs" --device "$device" --work "$work/$name" \
    --model "$model" --roberta "$roberta" "${bench[@]+"${bench[@]}"}"
done
printf '\n%-20s %-12s %8s\n' test result seconds
printf '%s\n' "${rows[@]}"
exit "$failed"
