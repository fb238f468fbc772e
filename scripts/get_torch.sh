#!/usr/bin/env bash
# Installs LibTorch of another version than scripts/setup.sh from PyPI into .deps/torch-X.Y.Z, without the GPU libraries that only a GPU needs.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  [0-9]*.*.*) version=$1 ;;
  -h|--help) echo "usage: scripts/get_torch.sh X.Y.Z; example: scripts/get_torch.sh 2.15.0"; exit 0 ;;
  *) echo "usage: scripts/get_torch.sh X.Y.Z; example: scripts/get_torch.sh 2.15.0" >&2; exit 2 ;;
esac
folder=.deps/torch-$version
[ ! -f "$folder/.complete" ] || exit 0
echo "get_torch: downloading LibTorch $version from PyPI (about 540 MB, 1.8 GB unpacked) into $folder"
pip=(.deps/venv/bin/pip install --quiet --disable-pip-version-check --no-compile --target "$folder")
rm -rf "$folder"
[ -x .deps/venv/bin/pip ] || /usr/bin/python3 -m venv .deps/venv
"${pip[@]}" --no-deps "torch==$version"
# libtorch_cpu needs libcudart and libcupti even without a GPU. The wheel names the release of CUDA.
toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit.*==\([0-9.]*\);.*/\1/p' "$folder"/torch-*.dist-info/METADATA)
"${pip[@]}" "cuda-toolkit[cudart,cupti]==$toolkit"
touch "$folder/.complete"
