#!/usr/bin/env bash
# Runs all tests: sets up, builds, runs the tests of the release build, then those that do not link
# Torch under ASan and UBSan, and under TSan, and checks the manifests for Kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/test.sh [--quick|--crash] [--help]

  --quick   only programs and unit tests of the release build, and one test of the programs: that split and whole model are bit-identical
  --crash   instead of the tests, runs with faults, whose results are compared bit for bit: the simulation with a fault at each
            point where one can occur, and with random faults in 10,000 runs; the simulation with injected bugs, which it must
            find; and 360 runs of the real programs, which are killed (more than an hour)
  --help    this text

With CLEAVE_WERROR=ON in the environment, warnings are errors; with EVERY=N, each Nth benchmark is built, from number PART on.

Example: ./scripts/test.sh --quick
TXT
}

presets=(release asan tsan) targets=(--target all benchmarks) tests=() manifests=1 elsewhere=ON
case "${1:-}" in
  "") ;;
  --quick)
    presets=(release) targets=(--target cleave-client cleave-server unit_tests daemon_tests) tests=(--label-regex 'unit|quick') manifests=0 elsewhere=OFF
    ;;
  --crash)
    ./scripts/setup.sh
    cmake --preset release -DBUILD_TESTING=ON >/dev/null
    cmake --build --preset release --target cleave-client cleave-server crash_sim
    build/release/bin/crash_sim --matrix --jobs "$(nproc)"
    build/release/bin/crash_sim --runs 10000 --seed "$RANDOM" --jobs "$(nproc)"
    ./scripts/mutants.py
    # These tests run in parallel, because each mostly waits for programs to start.
    crash() { ./scripts/crash.py --programs build/release/bin --seed "$RANDOM" --kill "$@"; }
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    for side in client server both; do
      { crash "$side" --runs 100 && crash "$side" --runs 20 --model graph; } &
    done
    for job in $(jobs -p); do wait "$job"; done
    exit 0
    ;;
  -h|--help) usage; exit 0 ;;
  *) echo "test.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
esac

# Builds the preset's targets, or those in the other arguments.
build() {
  local preset=$1 started=$SECONDS
  shift
  echo "test: building preset $preset"
  cmake --preset "$preset" -DBUILD_TESTING=ON -DCLEAVE_WERROR="${CLEAVE_WERROR:-OFF}" \
    -DCLEAVE_SANITIZED_ELSEWHERE="$([ "$preset" = release ] && echo "$elsewhere" || echo OFF)" \
    -DCLEAVE_BENCHMARKS="${EVERY:-1};${PART:-0}" >/dev/null
  cmake --build --preset "$preset" "$@"
  echo "test: built preset $preset in $((SECONDS - started)) s"
}

./scripts/setup.sh
build "${presets[0]}" "${targets[@]}"
# The other presets are built while the tests of the first one run, because these mostly wait.
log=build/test-builds.txt
set -m  # in a process group of its own, so that the trap reaches all of its processes
(
  renice -n 10 -p "$BASHPID" >/dev/null
  for preset in "${presets[@]:1}"; do build "$preset"; done
) >"$log" 2>&1 </dev/null &
builds=$!
set +m
trap 'kill -- -"$builds" 2>/dev/null || true' EXIT
ctest --preset "${presets[0]}" --no-tests=error "${tests[@]}"
wait "$builds" || { cat "$log"; exit 1; }
for preset in "${presets[@]:1}"; do
  grep "^test: built preset $preset" "$log"
  ctest --preset "$preset" --no-tests=error
done
[ "$manifests" = 0 ] || ./scripts/test_kubernetes.sh
