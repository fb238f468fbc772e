#!/usr/bin/env bash
# Runs a program of this installation with the LibTorch of this machine instead of its own, as a GPU needs:
#   cleave-with-torch PROGRAM [ARGUMENT…]
# LibTorch is taken from CLEAVE_TORCH_DIR, else from the PyTorch that python3 has installed.
# Example: cleave-with-torch cleave-server serve --set device=cuda
set -euo pipefail
bin=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

case "${1:-}" in
  ""|-h|--help) sed -n '2,5s/^# //p' "$0"; [ "$#" -gt 0 ]; exit ;;
esac
torch=${CLEAVE_TORCH_DIR:-$(python3 -c 'import importlib.util as u
spec = u.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")')}
[ -e "$torch/lib/libtorch_cpu.so" ] || {
  echo "cleave-with-torch: there is no LibTorch: install PyTorch 2.11 for python3, or set CLEAVE_TORCH_DIR to its folder" >&2
  exit 2
}
# A wheel keeps the GPU's libraries beside torch. Before the programs' own RUNPATH, the loader asks LD_LIBRARY_PATH.
nvidia=$(find "$torch/../nvidia" -maxdepth 2 -type d -name lib 2>/dev/null | tr '\n' ':' || true)
export LD_LIBRARY_PATH=$torch/lib:$bin/../lib/cleave:$nvidia${LD_LIBRARY_PATH:-}
PATH=$bin:$bin/../tests:$PATH exec "$@"
