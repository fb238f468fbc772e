#!/usr/bin/env bash
# Tests a wheel of scripts/wheel.sh as a user would install it: in a fresh virtual environment, at a path with a space and an umlaut, without
# compiler, sources and Cleave's libraries. Trains an epoch on real images with each version of PyTorch, verifies, predicts and resumes,
# and checks what is said if PyTorch is missing or not supported. The LibTorch in .deps stands for an installed PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/check_wheel.sh WHEEL TORCH-VERSION...

Example: ./scripts/check_wheel.sh dist/cleave_split-*.whl 2.11.0
TXT
}
case "${1:-}" in
  -h|--help) usage; exit 0 ;;
  ""|-*) usage >&2; exit 2 ;;
esac
wheel=$(readlink -f "$1")
shift
[ "$#" -gt 0 ] || { usage >&2; exit 2; }
started=$SECONDS
deps=$PWD/.deps
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
home="$place/Bücher and more"
mkdir "$home"
cd "$home"

# inVenv NAME COMMAND…: with nothing else in PATH than the virtual environment and Debian's shell tools.
inVenv() {
  local name=$1
  shift
  mkdir -p tools
  for tool in sh bash env rm cat sed grep kill sleep; do ln -sf "$(command -v "$tool")" tools/; done
  env -i HOME="$home" LANG=C.UTF-8 PATH="$home/$name/bin:$home/tools" "$@"
}
makeVenv() {
  /usr/bin/python3 -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"
}
# refuses NAME CODE WORD…: cleave-client doctor fails there, with this error code and these words.
refuses() {
  local name=$1 code=$2 output rc=0
  shift 2
  output=$(inVenv "$name" cleave-client doctor 2>&1) || rc=$?
  [ "$rc" = 2 ] || { echo "check_wheel.sh: doctor exits with $rc instead of 2: $output" >&2; exit 1; }
  for word in "[$code]" "hint: " "$@"; do
    case "$output" in
      *"$word"*) ;;
      *) echo "check_wheel.sh: '$word' is missing in: $output" >&2; exit 1 ;;
    esac
  done
}

makeVenv none
refuses none no-torch "pip install 'torch==" --index-url
site=$(echo none/lib/python3*/site-packages)
mkdir "$site/torch"
echo "__version__ = '1.13.1+cu117'" >"$site/torch/version.py"
refuses none torch-version 1.13.1 "pip install 'torch=="
echo "__version__ = '9.0.0'" >"$site/torch/version.py"
refuses none torch-version 9.0.0 "install a newer version of this package"

for version in "$@"; do
  name=torch-$version
  makeVenv "$name"
  ln -s "$deps/torch-$version"/{torch,nvidia,"torch-$version.dist-info"} "$(echo "$name"/lib/python3*/site-packages)/"
  inVenv "$name" bash -euo pipefail -c '
    command -v gcc cc c++ cmake && { echo "check_wheel.sh: there is a compiler" >&2; exit 1; }
    run=runs/$1
    cleave-client doctor >doctor.txt; grep -q "^ok    libtorch" doctor.txt
    python -m cleave_split.example --epochs 1 --run-dir "$run"
    cleave-client verify --config "$run/config.yaml" --steps 2
    cleave-client predict "$run" --output "$1.csv"
    cleave-client train --resume "$run" --set train.epochs=2 --quiet
    cleave-server certs init --folder "certs-$1" --name localhost >/dev/null
    cleave-link --version >/dev/null
    cleave-relay --version >/dev/null
  ' bash "$version"
  [ "$(wc -l <"$version.csv")" -gt 2000 ] || { echo "check_wheel.sh: $version.csv is too short" >&2; exit 1; }
  grep -q "\"libtorch\": \"${version%.*}\." "runs/$version/environment.json" ||
    { echo "check_wheel.sh: the run did not use PyTorch $version" >&2; exit 1; }
done

# A run of one version resumes with another one only if inexact results are allowed.
if [ "$#" -gt 1 ]; then
  rc=0
  inVenv "torch-$2" cleave-client train --resume "runs/$1" --set train.epochs=3 --quiet >other.txt 2>&1 || rc=$?
  [ "$rc" != 0 ] && grep -q -- --allow-inexact other.txt || { echo "check_wheel.sh: resumed with another PyTorch:" >&2; cat other.txt >&2; exit 1; }
  inVenv "torch-$2" cleave-client train --resume "runs/$1" --set train.epochs=3 --quiet --allow-inexact
fi
echo "check: the wheel trains, verifies, predicts and resumes with PyTorch $*, in $((SECONDS - started)) s"
