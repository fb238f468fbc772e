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

version=$("${run[@]+"${run[@]}"}" "$programs/cleave-server" --version)
echo "gpu: $version on device $device"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for test in stage optimizer worker engine tensor_link connection codec safetensors; do
  echo "gpu: ${test}_test"
  "${run[@]+"${run[@]}"}" "$tests/${test}_test" | tail -n 2
done
if [ "$device" = cpu ]; then
  echo "gpu: skipping cuda_test and bench_gpu_codecs, because the device is cpu"
else
  "${run[@]+"${run[@]}"}" "$tests/cuda_test"
  "${run[@]+"${run[@]}"}" "$tests/bench_gpu_codecs" --device "$device" "${codecs[@]+"${codecs[@]}"}"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${run[@]+"${run[@]}"}" python3 "$benchmark" --programs "$programs" --configs "$configs" --device "$device" --work "$work" \
  --model "$model" --roberta "$roberta" \
  "${bench[@]+"${bench[@]}"}"
