#!/usr/bin/env bash
# Builds the Python wheel cleave-split: the programs for one or several versions of PyTorch, the libraries that they need, and the Python
# package (docs/install.md). Needs no compiler to install; PyTorch itself is a dependency.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/wheel.sh [--torch X.Y.Z]... [--check] [--help]

Writes dist/cleave_split-VERSION-py3-none-manylinux_2_34_x86_64.whl.

  --torch X.Y.Z  a version of PyTorch on PyPI to build the programs for; repeatable, one per minor version; default: the version in .deps.
                 The programs for X.Y.Z run with every X.Y. Each version takes a whole build and 1.2 GB in .deps.
  --check        also installs the wheel into a fresh virtual environment without compiler, and trains, verifies and predicts there
  --help         this text

Example: ./scripts/wheel.sh --torch 2.11.0 --torch 2.15.0 --check
TXT
}

versions=() check=0
while [ "$#" -gt 0 ]; do
  case "$1" in
    --torch) versions+=("${2:?--torch needs a version}"); shift 2 ;;
    --check) check=1; shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "wheel.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

./scripts/setup.sh
default=$(sed -n 's/^torchVersion=//p' scripts/setup.sh)
[ "${#versions[@]}" -gt 0 ] || versions=("$default")
pip=.deps/venv/bin/pip
[ -x .deps/venv/bin/auditwheel ] || "$pip" install --quiet --disable-pip-version-check auditwheel==6.8.2

stage=build/wheel
rm -rf "$stage"
for version in "${versions[@]}"; do
  if [ "$version" = "$default" ]; then
    build=build/release
    cmake --preset release >/dev/null
  else
    build=build/torch-$version
    ./scripts/get_torch.sh "$version"
    cmake --preset release -B "$build" -DBUILD_TESTING=OFF -DCLEAVE_TORCH_DIR="$PWD/.deps/torch-$version/torch" >/dev/null
  fi
  cmake --build "$build" --target programs
  installed=$stage/torch-${version%.*}
  for component in programs libraries; do
    cmake --install "$build" --prefix "$installed" --component "$component" --strip >/dev/null
  done
  [ -e "$installed/lib/cleave/libcleave_cuda.so" ] || echo "wheel: built without GPU support, because there is no CUDA toolkit"
done
.deps/venv/bin/python scripts/wheel.py "$stage" dist
[ "$check" = 0 ] || ./scripts/check_wheel.sh dist/cleave_split-*.whl "${versions[@]}"
