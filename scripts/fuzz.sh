#!/usr/bin/env bash
# Fuzzes the codecs with libFuzzer under ASan and UBSan: replays the kept inputs, then searches for new ones.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/fuzz.sh [--seconds N] [--replay] [--help]

  --seconds N   how long to search in all (60)
  --replay      only builds, and replays the seeds and tests/fuzz/corpus
  --help        this text

Prints executions and findings. A finding ends it with exit status 1, and its input lies in build/fuzz/findings; what the search
has found worth keeping lies in build/fuzz/found, and the next search begins with it.

Example: ./scripts/fuzz.sh --seconds 3600
TXT
}

seconds=60
replay=0
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: --seconds needs a number above 0" >&2; exit 2; }
      seconds=$2
      shift ;;
    --replay) replay=1 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "fuzz.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
export UBSAN_OPTIONS=print_stacktrace=1

started=$SECONDS
cmake --preset fuzz -DBUILD_TESTING=ON >/dev/null
cmake --build --preset fuzz
echo "fuzz: built in $((SECONDS - started)) s"

bin=build/fuzz/bin
findings=build/fuzz/findings
found=build/fuzz/found
mkdir -p "$findings" "$found" build/fuzz/seeds
log=$findings/replay.log
if ! "$bin/fuzz_corpus" tests/fuzz/corpus >"$log" 2>&1; then
  grep -v '^[a-z]* [0-9]* ' "$log" | tail -n 60 >&2
  echo "fuzz.sh: a finding in the replay: the input is named above the error in $log" >&2
  exit 1
fi
echo "fuzz: replayed $(tail -n 1 "$log")"
[ "$replay" = 0 ] || exit 0

"$bin/fuzz_corpus" --write build/fuzz/seeds >/dev/null
log=$findings/search.log
status=0
"$bin/fuzz_decode" "$found" tests/fuzz/corpus build/fuzz/seeds -max_total_time="$seconds" -max_len=4096 -timeout=20 \
  -malloc_limit_mb=256 -artifact_prefix="$findings/" -print_final_stats=1 >"$log" 2>&1 || status=$?
executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$status" != 0 ]; then
  tail -n 60 "$log" >&2
  echo "fuzz.sh: 1 finding after ${executions:-some} executions: the input lies in $findings, the whole output in $log" >&2
  exit 1
fi
echo "fuzz: $executions executions in $seconds s, no findings"
