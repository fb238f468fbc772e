#!/usr/bin/env bash
# Benchmarks: ratios measured side by side in one run. Figures of absolute speed move from machine to machine.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/bench.sh split [OPTION…]

  split    the demo's split (codec none, schedule priority) against the same model whole in one process
           --rounds N (5), --steps N (200), --json FILE
  --help   this text

Example: ./scripts/bench.sh split --rounds 9
TXT
}

case "${1:-}" in
  split) ;;
  -h|--help) usage; exit 0 ;;
  *) echo "bench.sh: '${1:-}' is not a benchmark" >&2; usage >&2; exit 2 ;;
esac
shift
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target cleave-client cleave-server bench_whole
exec python3 tests/bench/split.py "$@"
