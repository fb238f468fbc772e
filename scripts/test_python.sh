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

With EVERY=N in the environment, only each Nth exported model is tested, from number PART on.

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
export HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export GRAPH_RUNNER=$PWD/build/release/bin/graph_runner TOKENIZER_RUNNER=$PWD/build/release/bin/tokenizer_runner PROGRAMS=$PWD/build/release/bin
python=$PWD/$environment/bin/python log=$PWD/build/test_python.txt
cd python/tests
# Two processes, since a test uses one processor most of the time. Each module is in one of them.
first=(test_evaluation test_export test_experiments test_operators test_own_losses)
mapfile -t others < <(printf '%s\n' test_*.py | sed 's/\.py$//' | grep -vxF "$(printf '%s\n' "${first[@]}")")
trap 'kill "$beside" 2>/dev/null || true' EXIT
"$python" -m unittest --verbose "${first[@]}" >"$log" 2>&1 &
beside=$!
code=0
"$python" -m unittest --verbose "${others[@]}" || code=$?
wait "$beside" || code=$?
cat "$log"
exit "$code"
