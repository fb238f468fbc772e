#!/usr/bin/env bash
# Checks the format of all sources, and runs clang-tidy over what links no Torch.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/lint.sh [--fix] [--format-only] [--help]

  --fix           formats the sources instead of complaining
  --format-only   leaves clang-tidy out
  --help          this text

Example: ./scripts/lint.sh --fix
TXT
}

tidy=1
mode=(--dry-run --Werror)
for argument in "$@"; do
  case "$argument" in
    --fix) mode=(-i) ;;
    --format-only) tidy=0 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "lint.sh: unknown option '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu')
[ "${#sources[@]}" -gt 0 ] || { echo "lint.sh: git lists no sources here" >&2; exit 1; }
clang-format "${mode[@]}" "${sources[@]}"
echo "lint: ${#sources[@]} files are formatted"
[ "$tidy" = 1 ] || exit 0

cmake --preset asan >/dev/null
cmake --build --preset asan --target cleave_proto
mapfile -t units < <(git ls-files 'common/core/*.cpp' 'common/codec/*.cpp' 'common/net/*.cpp' 'common/http/*.cpp' 'common/pipeline/*.cpp' \
  'compression/*.cpp' 'client/data/*.cpp' client/learning_rate.cpp 'client/report/*.cpp' common/model/safetensors.cpp 'tools/link/*.cpp' \
  server/access.cpp 'server/certs*.cpp' server/names.cpp server/x509.cpp \
  client/sweep/{grid,point_store,published,report,results}.cpp client/json_lines.cpp 'client/progress*.cpp' 'daemon/metrics*.cpp' server/pace.cpp server/status_socket.cpp server/status_table.cpp)
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-16 -p build/asan --quiet --extra-arg=-Wno-unknown-warning-option
echo "lint: clang-tidy has no complaint about ${#units[@]} files"
