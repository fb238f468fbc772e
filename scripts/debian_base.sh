#!/usr/bin/env bash
# Makes .deps/debian-bookworm.tar, a bare Debian 12, for machines without access to a container registry. It is used by scripts/package.sh
# --image and --check, and by scripts/compose.sh. Requires root and debootstrap (exit code 3 without them). Takes about 40 s the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  "") ;;
  -h|--help) echo "usage: scripts/debian_base.sh; example: docker import .deps/debian-bookworm.tar debian:bookworm-slim"; exit 0 ;;
  *) echo "debian_base.sh: unknown option '$1'" >&2; exit 2 ;;
esac

tar=$PWD/.deps/debian-bookworm.tar
[ ! -f "$tar" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "debian_base.sh: debootstrap requires root: run this with sudo" >&2; exit 3; }
command -v debootstrap >/dev/null || { echo "debian_base.sh: debootstrap is missing: install it with scripts/setup.sh --containers" >&2; exit 3; }
started=$SECONDS
echo "base: running debootstrap for Debian 12 into $tar"
mkdir -p .deps
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$tar.part"' EXIT
debootstrap --variant=minbase --include=ca-certificates bookworm "$folder/root" >"$folder/log" 2>&1 ||
  { tail -n 20 "$folder/log" >&2; echo "debian_base.sh: debootstrap failed (above: the end of its output)" >&2; exit 1; }
# Installs this machine's trusted CAs, because a proxy to the package servers may use its own CA.
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
  cp /usr/local/share/ca-certificates/*.crt "$folder/root/usr/local/share/ca-certificates/"
  chroot "$folder/root" update-ca-certificates >/dev/null
fi
rm -rf "$folder"/root/var/cache/apt/* "$folder"/root/var/lib/apt/lists/* "$folder"/root/var/log/* \
  "$folder"/root/usr/share/{man,info,locale}/*
find "$folder/root/usr/share/doc" -type f ! -name copyright -delete
tar -C "$folder/root" -cf "$tar.part" .
mv "$tar.part" "$tar"
echo "base: made in $((SECONDS - started)) s, $(stat -c %s "$tar") bytes"
