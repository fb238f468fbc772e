#!/usr/bin/env bash
# Checks the spelling of all texts and the format of all sources, and runs clang-tidy on the code that does not link Torch.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/lint.sh [--fix] [--format-only] [--help]

  --fix           formats the sources instead of reporting differences
  --format-only   skips clang-tidy
  --help          this text

With EVERY=N in the environment, clang-tidy checks each Nth unit, from number PART on.

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

# scripts/words.txt lists words that this project avoids, with their replacements. Tests contain misspelt names on purpose.
misspelt=inflight,atleast,fro,nd,priorty,sesions,taget,trian,unifrom,widht
git ls-files -z --cached --others --exclude-standard -- ':!tests/fuzz/corpus' ':!tests/data' ':!*.png' ':!THIRD_PARTY.md' ':!LICENSE' \
  ':!scripts/words.txt' ':!scripts/lint.sh' |
  xargs -0 codespell --builtin clear,rare --dictionary - --dictionary scripts/words.txt --ignore-words-list "$misspelt"
echo "lint: no misspelt words"

mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu')
[ "${#sources[@]}" -gt 0 ] || { echo "lint.sh: git lists no sources here" >&2; exit 1; }
clang-format "${mode[@]}" "${sources[@]}"
echo "lint: ${#sources[@]} files are formatted"
[ "$tidy" = 1 ] || exit 0

# The preset asan is used because it is a unity build, in which each library's headers are parsed only once.
cmake --preset asan >/dev/null
cmake --build --preset asan --target cleave_proto
mapfile -t units < <(python3 - <<'PY'
import json
import os
paths = (os.path.relpath(entry["file"], os.getcwd()) for entry in json.load(open("build/asan/compile_commands.json")))
units = [path for path in paths if "proto/" not in path and "tests/" not in path and "cmake_pch" not in path]
print("\n".join(units[int(os.environ.get("PART", 0)) :: int(os.environ.get("EVERY", 1))]))
PY
)
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy-16 -p build/asan --quiet
echo "lint: clang-tidy has no findings in ${#units[@]} units of the sources that do not link Torch"
