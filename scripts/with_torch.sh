#!/usr/bin/env bash
# Runs a program of the bundle with the LibTorch of this machine: with_torch.sh PROGRAM [ARGUMENT…].
# LibTorch is taken from CLEAVE_TORCH_DIR, else from the PyTorch that python3 has installed.
# Example: ./with_torch.sh cleave-server serve --config configs/server.yaml --set device=cuda
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

case "${1:-}" in
  ""|-h|--help) sed -n '2,4s/^# //p' "$0"; [ "$#" -gt 0 ]; exit ;;
esac
torch=${CLEAVE_TORCH_DIR:-$(python3 -c 'import importlib.util as u
spec = u.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")')}
[ -e "$torch/lib/libtorch_cpu.so" ] || {
  echo "with_torch.sh: there is no LibTorch: install PyTorch 2.11 for python3, or set CLEAVE_TORCH_DIR to its folder" >&2
  exit 2
}
# A wheel keeps the GPU's libraries beside torch.
nvidia=$(find "$torch/../nvidia" -maxdepth 2 -type d -name lib 2>/dev/null | tr '\n' ':' || true)
export LD_LIBRARY_PATH=$here/lib:$torch/lib:$nvidia${LD_LIBRARY_PATH:-}
PATH=$here/bin:$here/tests:$PATH exec "$@"
