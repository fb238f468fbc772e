#!/usr/bin/env bash
# Installs the dependencies of Cleave: Debian packages, and LibTorch from PyPI into .deps/.
# Idempotent: keeps what is already installed. Needs root or sudo only if a package is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/setup.sh [--run-only | --containers] [--help]

  --run-only   installs only the packages to build and run the programs, without test tools
  --containers installs only the packages for scripts/compose.sh, including Docker, and for `scripts/package.sh --image --check`
  --help       this text

Example: ./scripts/setup.sh && cmake --preset release && cmake --build --preset release
TXT
}

withTests=1 containers=0
for argument in "$@"; do
  case "$argument" in
    --run-only) withTests=0 ;;
    --containers) containers=1 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "setup.sh: unknown option '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

torchVersion=2.11.0
packages=(
  g++ cmake ninja-build ccache mold git ca-certificates python3-venv patchelf pkg-config
  libboost1.81-dev libssl-dev libprotobuf-dev protobuf-compiler
  libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libspdlog-dev libxxhash-dev zlib1g-dev libhwy-dev libzstd-dev libjs-dygraphs
  prometheus-cpp-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev libarchive-dev libpcre2-dev libutf8proc-dev
  dataset-fashion-mnist
)
if [ "$withTests" = 1 ]; then
  packages+=(catch2 libbenchmark-dev clang-format codespell clang-tidy-16 clang-16 libclang-rt-16-dev faketime
             prometheus chromium chromium-driver python3-selenium slurmctld slurmd slurm-client munge)
fi
if [ "$containers" = 1 ]; then
  packages=(docker.io docker-compose iptables debootstrap dataset-fashion-mnist)
fi

started=$SECONDS
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
  asRoot=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
      echo "setup.sh: installing packages requires root, and there is no sudo. Run as root: apt-get install ${missing[*]}" >&2
      exit 1
    }
    asRoot=(sudo)
  fi
  log=$(mktemp)
  if ! { "${asRoot[@]}" apt-get update &&
         "${asRoot[@]}" env DEBIAN_FRONTEND=noninteractive \
           apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "setup.sh: apt-get failed (the end of its output is above, the whole output in $log)" >&2
    exit 1
  fi
  rm -f "$log"
  echo "setup: Debian packages installed in $((SECONDS - started)) s"
else
  echo "setup: all ${#packages[@]} Debian packages are already installed"
fi

[ "$containers" = 0 ] || exit 0

torchDir=.deps/torch-$torchVersion
if [ -n "${CLEAVE_TORCH_DIR:-}" ]; then
  echo "setup: using LibTorch from CLEAVE_TORCH_DIR=$CLEAVE_TORCH_DIR"
elif [ -f "$torchDir/.complete" ]; then
  echo "setup: LibTorch $torchVersion is already installed ($torchDir)"
else
  torchStarted=$SECONDS
  echo "setup: downloading LibTorch $torchVersion from PyPI (about 540 MB, 1.8 GB unpacked) into $torchDir"
  rm -rf "$torchDir"
  mkdir -p .deps
  [ -x .deps/venv/bin/pip ] || /usr/bin/python3 -m venv .deps/venv
  # libtorch_cpu needs libcudart and libcupti even without a GPU. Its RPATH finds them in the neighbouring folders.
  .deps/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$torchDir" \
    "torch==$torchVersion" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  touch "$torchDir/.complete"
  echo "setup: LibTorch installed in $((SECONDS - torchStarted)) s"
fi
echo "setup: done in $((SECONDS - started)) s"
