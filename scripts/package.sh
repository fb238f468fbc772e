#!/usr/bin/env bash
# Makes a bundle that runs on a Linux machine with an installed PyTorch 2.11 (for its LibTorch) and nothing else of
# ours: programs, libcleave_cuda, the system libraries they need, tests, configurations and gpu.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/package.sh [--help]

Writes dist/cleave-VERSION-linux-x86_64.tar.gz. With a CUDA toolkit on this machine the bundle has GPU support.

Example: ./scripts/package.sh && tar xzf dist/cleave-*.tar.gz && cleave-*/gpu.sh
TXT
}

case "${1:-}" in
  "") ;;
  -h|--help) usage; exit 0 ;;
  *) echo "package.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
esac

most=40000000  # bytes
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target bundle
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/release/CMakeCache.txt)
name=cleave-$version-linux-x86_64
rm -rf "dist/$name" "dist/$name.tar.gz"
cmake --install build/release --prefix "dist/$name" --component bundle --strip >/dev/null

# The libraries they need, but for LibTorch's and the GPU's, and for the C library, which belongs to its machine.
mkdir -p "dist/$name/lib"
for file in "dist/$name"/bin/* "dist/$name"/tests/*; do
  ldd "$file"
done | sed -n 's/^\t\(lib[^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' | sort -u | while read -r soname path; do
  case "$soname" in
    libc.so*|libm.so*|libdl.so*|libpthread.so*|librt.so*|libtorch*|libc10*|libgomp*|libcud*|libcupti*) ;;
    *) cp -L "$path" "dist/$name/lib/$soname" ;;
  esac
done
[ -e "dist/$name/lib/libcleave_cuda.so" ] || echo "package: no CUDA toolkit here: the bundle is without GPU support"

tar -C dist -czf "dist/$name.tar.gz" "$name"
size=$(stat -c %s "dist/$name.tar.gz")
echo "package: dist/$name.tar.gz, $size bytes; $(du -sb "dist/$name" | cut -f1) unpacked"
if [ "$size" -gt "$most" ]; then
  echo "package.sh: the bundle is larger than the $most bytes it may have" >&2
  exit 1
fi
