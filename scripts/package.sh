#!/usr/bin/env bash
# Builds a .tar.gz that runs from any path, without compiling and without additional Debian packages. It has the programs, their libraries,
# configurations, documentation and a systemd unit (docs/install.md). packaging/Install.cmake defines the contents. With --image, also
# builds an image (docs/docker.md).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/package.sh [--gpu | [--image] [--check]] [--help]

Writes dist/cleave-VERSION-linux-x86_64.tar.gz, with LibTorch for the CPU, and unpacks it into the same folder.

  --gpu     writes dist/cleave-VERSION-linux-x86_64-gpu.tar.gz instead: without LibTorch, for a machine with PyTorch 2.11,
            and with gpu.sh and the tests that it runs. GPU support needs a CUDA toolkit on this machine.
  --image   also writes dist/cleave-VERSION-linux-x86_64-image.tar.gz for `docker load` (docs/docker.md); requires root and
            debootstrap, but no Docker
  --check   also tests the archive, and the image if there is one, in a Debian without compiler and sources; requires
            root and debootstrap
  --help    this text

Example: ./scripts/package.sh && sudo tar xzf dist/cleave-*-x86_64.tar.gz -C /opt
TXT
}

kind="" target=programs components="programs;torch;libraries" maxBytes=320000000 image=0 check=0
for argument in "$@"; do
  case "$argument" in
    --gpu) kind=-gpu target=gpu_tests components="programs;libraries;gpu_tests" maxBytes=40000000 ;;
    --image) image=1 ;;
    --check) check=1 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "package.sh: unknown option '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done
[ -z "$kind" ] || [ "$image$check" = 00 ] || { echo "package.sh: --image and --check cannot be combined with --gpu" >&2; exit 2; }

./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target "$target"
name=cleave-$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/release/CMakeCache.txt)-linux-x86_64$kind
rm -rf "dist/$name" "dist/$name.tar.gz" "dist/$name-image.tar.gz"
cpack --config build/release/CPackConfig.cmake -B dist -D CPACK_PACKAGE_FILE_NAME="$name" \
  -D CPACK_COMPONENTS_ALL="$components" >build/release/cpack.log 2>&1 ||
  { tail -n 30 build/release/cpack.log >&2; exit 1; }
rm -rf dist/_CPack_Packages
tar -C dist -xzf "dist/$name.tar.gz"
[ -e "dist/$name/lib/cleave/libcleave_cuda.so" ] || echo "package: built without GPU support, because there is no CUDA toolkit"

if grep -rlaF "$PWD/" "dist/$name" >&2; then
  echo "package.sh: the files above contain $PWD, a path of this machine" >&2
  exit 1
fi
size=$(stat -c %s "dist/$name.tar.gz")
echo "package: dist/$name.tar.gz, $size bytes; $(du -sb "dist/$name" | cut -f1) unpacked"
if [ "$size" -gt "$maxBytes" ]; then
  echo "package.sh: the archive is larger than the limit of $maxBytes bytes" >&2
  exit 1
fi
[ "$image" = 0 ] || ./scripts/image.py "dist/$name.tar.gz"
[ "$check" = 0 ] || ./scripts/check_package.sh "dist/$name.tar.gz"
[ "$image$check" != 11 ] || ./scripts/check_image.py "dist/$name-image.tar.gz"
