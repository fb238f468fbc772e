#!/usr/bin/env bash
# Makes the README's images, docs/images/report.png and dashboard.png. Trains on Fashion-MNIST over an emulated link, and captures the live
# page and the report with a headless Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/screenshots.sh [--help]

Writes docs/images/report.png and docs/images/dashboard.png. Takes about a minute. Requires scripts/setup.sh and a build.

Example: ./scripts/setup.sh && cmake --preset release && cmake --build --preset release && ./scripts/screenshots.sh
TXT
}

case "${1:-}" in
  "") ;;
  -h|--help) usage; exit 0 ;;
  *) echo "screenshots.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
esac

for program in cleave-client cleave-server cleave-link; do
  [ -x "build/release/bin/$program" ] || { echo "screenshots.sh: there is no build/release/bin/$program; build it first" >&2; exit 1; }
done
exec /usr/bin/python3 tests/browser/screenshots.py build/release/bin docs/images
