#!/usr/bin/env bash
# Checks the manifests of packaging/kubernetes, without a cluster. Installs kubernetes-validate, which contains the schemas, from PyPI
# into .deps/kubernetes (110 MB).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/test_kubernetes.sh [--help]

Example: ./scripts/test_kubernetes.sh
TXT
}
case "${1:-}" in
  "") ;;
  -h|--help) usage; exit 0 ;;
  *) echo "test_kubernetes.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
esac

./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target cleave-client cleave-server
environment=.deps/kubernetes
packages="kubernetes-validate==1.37.0"
if [ "$(cat "$environment/.complete" 2>/dev/null)" != "$packages" ]; then
  echo "test_kubernetes: installing kubernetes-validate into $environment"
  [ -x "$environment/bin/pip" ] || /usr/bin/python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check "$packages"
  echo "$packages" > "$environment/.complete"
fi
PROGRAMS=$PWD/build/release/bin PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" tests/kubernetes_test.py --verbose
