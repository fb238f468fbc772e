#!/usr/bin/env bash
# Runs a program of this installation with the machine's LibTorch instead of the packaged one. This is required to use a GPU:
#   cleave-with-torch PROGRAM [ARGUMENT…]
# Uses the LibTorch in CLEAVE_TORCH_DIR if set, otherwise the one in python3's PyTorch. Example:
# cleave-with-torch cleave-server serve --set device=cuda
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
# PyTorch's wheels put the GPU libraries into folders next to torch. The dynamic loader searches LD_LIBRARY_PATH before the programs' own
# RUNPATH.
nvidia=$(find "$torch/../nvidia" -maxdepth 2 -type d -name lib 2>/dev/null | tr '\n' ':' || true)
export LD_LIBRARY_PATH=$torch/lib:$bin/../lib/cleave:$nvidia${LD_LIBRARY_PATH:-}
PATH=$bin:$bin/../tests:$PATH exec "$@"
