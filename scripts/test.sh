#!/usr/bin/env bash
# Runs all tests: sets up, builds, runs every test of the release build, then the tests that do not
# link Torch under ASan and UBSan, and under TSan, and checks the manifests for Kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/test.sh [--quick|--crash] [--help]

  --quick   only programs and unit tests of the release build, and one test of the programs: that split and whole model are bit-identical
  --crash   instead of the tests, runs with faults, whose results are compared bit for bit: the simulation with a fault at each
            point where one can occur, and with random faults in 10,000 runs; the simulation with injected bugs, which it must
            find; and 360 runs of the real programs, which are killed (about three hours)
  --help    this text

With CLEAVE_WERROR=ON in the environment, warnings are errors.

Example: ./scripts/test.sh --quick
TXT
}

presets=(release asan tsan) targets=(--target all benchmarks) tests=() manifests=1
case "${1:-}" in
  "") ;;
  --quick)
    presets=(release) targets=(--target cleave-client cleave-server unit_tests daemon_verify_test) tests=(--label-regex 'unit|quick') manifests=0
    ;;
  --crash)
    ./scripts/setup.sh
    cmake --preset release -DBUILD_TESTING=ON >/dev/null
    cmake --build --preset release --target cleave-client cleave-server crash_sim
    build/release/bin/crash_sim --matrix --jobs "$(nproc)"
    build/release/bin/crash_sim --runs 10000 --seed "$RANDOM" --jobs "$(nproc)"
    ./scripts/mutants.py
    # At the same time, because a run mostly waits for programs to start.
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

./scripts/setup.sh
for preset in "${presets[@]}"; do
  started=$SECONDS
  echo "test: building preset $preset"
  cmake --preset "$preset" -DBUILD_TESTING=ON -DCLEAVE_WERROR="${CLEAVE_WERROR:-OFF}" >/dev/null
  cmake --build --preset "$preset" "${targets[@]}"
  echo "test: built preset $preset in $((SECONDS - started)) s"
  ctest --preset "$preset" --no-tests=error "${tests[@]}"
  targets=()  # for the sanitizers: the preset's targets
done
[ "$manifests" = 0 ] || ./scripts/test_kubernetes.sh
