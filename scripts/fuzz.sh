#!/usr/bin/env bash
# Fuzzes the parsers of untrusted input with libFuzzer under ASan and UBSan. Replays the stored corpus, then searches for new inputs.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=(decode frame session trace graph safetensors checkpoint config csv tokenizer npy table image stage)

usage() {
  cat <<'TXT'
usage: scripts/fuzz.sh [--target NAME]… [--seconds N] [--preset NAME] [--replay] [--help]

  --target NAME  only this target; repeatable (all)
                   decode       payloads and saved states of every codec
                   frame        headers and metadata of every kind of frame
                   session      frames of a peer after the handshake, in any order
                   trace        spans of a trace, received from a server
                   graph        graphs of bodies, received from a peer
                   safetensors  files of weights
                   checkpoint   checkpoints and their records, lists of commits, connections, run.json
                   config       configuration files and overrides
                   csv          texts that are written as CSV cells
                   tokenizer    a tokenizer.json and a text
                   npy          NumPy arrays
                   table        CSV files
                   image        image files of training data
                   stage        replies of the process that computes a run
  --seconds N    time per target (60); as many targets run at a time as there are processors
  --preset NAME  the build to use: fuzz, or asan, which the tests also use; it runs at a third of the speed (fuzz)
  --replay       only replays the seeds and tests/fuzz/corpus, after building
  --help         this text

Prints executions and findings. If there is a finding, exits with 1 and stores its input in build/fuzz/findings. Inputs that reach
new code are stored in build/fuzz/found, and the next run begins with them.

Example: ./scripts/fuzz.sh --target frame --seconds 3600
TXT
}

chosen=()
seconds=60
preset=fuzz
replay=0
while [ $# -gt 0 ]; do
  case "$1" in
    --target)
      [[ " ${targets[*]} " == *" ${2:-} "* ]] || { echo "fuzz.sh: --target needs one of: ${targets[*]}" >&2; exit 2; }
      chosen+=("$2")
      shift ;;
    --seconds)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: --seconds needs a number above 0" >&2; exit 2; }
      seconds=$2
      shift ;;
    --preset)
      [[ "${2:-}" =~ ^(fuzz|asan)$ ]] || { echo "fuzz.sh: --preset needs fuzz or asan" >&2; exit 2; }
      preset=$2
      shift ;;
    --replay) replay=1 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "fuzz.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${targets[@]}")
mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sort -u)
export ASAN_OPTIONS=allow_addr2line=1 UBSAN_OPTIONS=print_stacktrace=1

started=$SECONDS
cmake --preset "$preset" -DBUILD_TESTING=ON >/dev/null
cmake --build --preset "$preset" --target fuzz_corpus fuzz_targets
echo "fuzz: built in $((SECONDS - started)) s"

bin=build/$preset/bin
findings=build/fuzz/findings
mkdir -p "$findings"
# Replays the corpus of a target, then searches.
fuzz() {
  local target=$1 corpus kept log found seeds status executions
  corpus=tests/fuzz/corpus/$target
  kept=()
  [ ! -d "$corpus" ] || kept=("$corpus")
  log=$findings/$target-replay.log
  if ! "$bin/fuzz_corpus_$target" "${kept[@]}" >"$log" 2>&1; then
    grep -v '^[a-z]* [0-9]* ' "$log" | tail -n 60 >&2
    echo "fuzz.sh: a finding in the replay of $target: $log names the input above the error" >&2
    return 1
  fi
  echo "fuzz: $target: replayed $(tail -n 1 "$log")"
  [ "$replay" = 0 ] || return 0

  found=build/fuzz/found/$target
  seeds=build/fuzz/seeds/$target
  mkdir -p "$found"
  "$bin/fuzz_corpus_$target" --write "$seeds" >/dev/null
  log=$findings/$target-search.log
  status=0
  "$bin/fuzz_$target" "$found" "${kept[@]}" "$seeds" -max_total_time="$seconds" -max_len=4096 -timeout=20 \
    -malloc_limit_mb=256 -artifact_prefix="$findings/$target-" -print_final_stats=1 >"$log" 2>&1 || status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [ "$status" != 0 ]; then
    tail -n 60 "$log" >&2
    echo "fuzz.sh: 1 finding in $target after ${executions:-some} executions: the input is in $findings, the whole output in $log" >&2
    return 1
  fi
  echo "fuzz: $target: $executions executions in $seconds s, no findings"
}

# Runs as many targets at a time as there are processors. After a finding, no more targets are started.
set -m  # each job has a process group of its own
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done; exit 1' INT TERM
running=0 failed=0
for target in "${chosen[@]}"; do
  if [ "$running" = "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  [ "$failed" = 0 ] || break
  fuzz "$target" &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n || failed=1; done
exit "$failed"
