#!/usr/bin/env bash
# Tests the Python package: exports models of torchvision and transformers, runs them with Cleave, compares the results with those of
# PyTorch and PEFT, trains on text and from Python, executes the notebooks, and reads runs with TensorBoard. Installs PyTorch, torchvision,
# transformers, peft, timm, tensorboard, pandas and Jupyter from PyPI into .deps/python (about 6 GB).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/test_python.sh [--install] [--help]

  --install   only installs these packages
  --help      this text

Example: ./scripts/test_python.sh
TXT
}
case "${1:-}" in
  ""|--install) ;;
  -h|--help) usage; exit 0 ;;
  *) echo "test_python.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
esac

./scripts/setup.sh
environment=.deps/python
packages="torch==2.11.0 torchvision==0.26.0 transformers==5.23.0 peft==0.21.2 timm==1.0.31 tensorboard==2.21.0 pandas==3.1.1
nbclient==0.11.0 ipykernel==7.4.0 matplotlib==3.11.2"
if [ "$(cat "$environment/.complete" 2>/dev/null)" != "$packages" ]; then
  started=$SECONDS
  echo "test_python: installing PyTorch, torchvision, transformers, peft, timm, tensorboard, pandas and Jupyter into $environment"
  [ -x "$environment/bin/pip" ] || /usr/bin/python3 -m venv "$environment"
  # shellcheck disable=SC2086
  "$environment/bin/pip" install --quiet --disable-pip-version-check $packages
  echo "$packages" > "$environment/.complete"
  echo "test_python: installed in $((SECONDS - started)) s"
fi
[ "${1:-}" = "" ] || exit 0
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target graph_runner tokenizer_runner cleave-client cleave-server
# Installs the package as a user would, but without downloading PyTorch again.
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall ./python
# Otherwise the next installation would contain modules that have been deleted since.
rm -rf python/build python/*.egg-info
# Threads that wait must not compete with those that compute: client and server share the processors.
HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore \
  GRAPH_RUNNER=$PWD/build/release/bin/graph_runner TOKENIZER_RUNNER=$PWD/build/release/bin/tokenizer_runner PROGRAMS=$PWD/build/release/bin \
  "$environment/bin/python" -m unittest discover --verbose -s python/tests
