#!/usr/bin/env bash
# Builds and runs the simulation of client and server with faults. The options are those of crash_sim.
#
# Example: scripts/crash_sim.sh --runs 100000 --seed 1        (about 7 hours on 2 cores)
#          scripts/crash_sim.sh --matrix                      (each place at which a fault can happen)
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target crash_sim
build/release/bin/crash_sim --jobs "$(nproc)" "$@"
