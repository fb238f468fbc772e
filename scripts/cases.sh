#!/usr/bin/env bash
# Runs cases: each is a folder with a script run.sh, which runs the programs on a small input and exits with 0 if the result is right,
# 77 if something that it needs is missing, and anything else if the result is wrong.
set -euo pipefail

usage() {
  cat <<'TXT'
usage: scripts/cases.sh [--jobs N] [--programs DIR] FOLDER

  FOLDER           folder with the cases: runs each FOLDER/*/run.sh
  --jobs N         cases that run at the same time; default: 2
  --programs DIR   folder of cleave-client and cleave-server; default: build/release/bin
  --help           this text

The scripts get BIN, the folder of the programs, and PYTHON, a Python with PyTorch and the package cleave_split: .deps/python/bin/python
if scripts/test_python.sh has made it, else python3.

Exit codes: 0 no case failed, 1 a case failed, 2 usage error.

Example: ./scripts/cases.sh tests/cases
TXT
}

root=$(cd "$(dirname "$0")/.." && pwd)
jobs=2 programs=$root/build/release/bin folder=
while [ "$#" -gt 0 ]; do
  case "$1" in
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --programs) programs=${2:?--programs needs a folder}; shift 2 ;;
    -h|--help) usage; exit 0 ;;
    -*) echo "cases.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
    *) folder=$1; shift ;;
  esac
done
[ -n "$folder" ] || { usage >&2; exit 2; }
[ -x "$programs/cleave-client" ] || { echo "cases.sh: $programs has no cleave-client; build it, or pass --programs DIR" >&2; exit 2; }
mapfile -t cases < <(find -L "$folder" -mindepth 2 -maxdepth 2 -name run.sh -printf '%h\n' | sort)
[ "${#cases[@]}" -gt 0 ] || { echo "cases.sh: $folder has no */run.sh" >&2; exit 2; }

python=$root/.deps/python/bin/python
[ -x "$python" ] || python=python3
BIN=$(cd "$programs" && pwd)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# Cases may import the package by its former name.
export PYTHONPATH=$root/tests/support/python${PYTHONPATH:+:$PYTHONPATH}
export BIN results PYTHON=$python PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive

runCase() {
  local code=0 name word
  name=$(basename "$1")
  timeout --kill-after 10 600 bash "$1/run.sh" >"$results/$name.txt" 2>&1 </dev/null || code=$?
  case "$code" in
    0) word=passed ;;
    77) word=skipped ;;
    *) word=failed ;;
  esac
  echo "$name" >>"$results/$word"
  if [ "$word" = passed ]; then
    echo "passed   $name"
  else
    printf '%-8s %s (exit code %s)\n%s\n' "$word" "$name" "$code" "$(tail -n 40 "$results/$name.txt" | sed 's/^/         /')"
  fi
}
export -f runCase
printf '%s\0' "${cases[@]}" | xargs -0 -P "$jobs" -I{} bash -c 'runCase "$1"' _ {}

count() { cat "$results/$1" 2>/dev/null | wc -l; }
echo "cases: $(count passed) passed, $(count failed) failed, $(count skipped) skipped"
[ "$(count failed)" = 0 ]
