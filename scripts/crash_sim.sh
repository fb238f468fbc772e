#!/usr/bin/env bash
# Builds and runs the simulation of client and server with faults: 100,000 runs with random faults, unless the options say otherwise. The
# options are those of crash_sim.
#
# Example: scripts/crash_sim.sh                               (takes hours)
#          scripts/crash_sim.sh --matrix                      (each place at which a fault can happen)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- --runs 100000
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target crash_sim
echo "crash_sim.sh: crash_sim $*"
build/release/bin/crash_sim --jobs "$(nproc)" "$@"
