#!/usr/bin/env bash
# Tests an archive of scripts/package.sh in its target environment: a Debian without a compiler, Cleave's sources and libraries, or a
# network. The archive is unpacked to a different path, and a user without write permission there runs client and server over TLS. For an
# archive of --gpu, that user runs gpu.sh on the CPU, with this machine's Python and the LibTorch in .deps.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/check_package.sh ARCHIVE

Requires root and, the first time, debootstrap; exit code 3 without them.

Example: sudo ./scripts/check_package.sh dist/cleave-0.1.0-linux-x86_64.tar.gz
TXT
}

case "${1:-}" in
  -h|--help) usage; exit 0 ;;
  ""|-*) usage >&2; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || { echo "check_package.sh: skipped: chroot requires root: run this with sudo" >&2; exit 3; }
archive=$(readlink -f "$1")
started=$SECONDS
./scripts/debian_base.sh

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tar -C "$root" -xf .deps/debian-bookworm.tar
mkdir "$root/opt/other place"
tar -C "$root/opt/other place" --strip-components=1 -xzf "$archive"
# inDebian: runs the commands of standard input in separate mount, process and network namespaces, which end with them.
inDebian() {
  unshare --mount --pid --fork --net --kill-child bash -euc '
    ip link set lo up
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/tmp"
    [ ! -d "$1/opt/pytorch" ] || { mount --bind "$2" "$1/opt/pytorch" && mount --bind /usr/lib/python3.11 "$1/usr/lib/python3.11"; }
    exec chroot "$1" setpriv --reuid 4242 --regid 4242 --clear-groups --no-new-privs env -i HOME=/nonexistent \
      PATH="/opt/other place/bin:/usr/bin:/bin" bash -euo pipefail
  ' bash "$root" "$PWD/.deps/torch-2.11.0"
}
if [ -e "$root/opt/other place/gpu.sh" ]; then
  mkdir "$root/opt/pytorch" "$root/usr/lib/python3.11"
  cp -L /usr/bin/python3.11 "$root/usr/bin/python3"
  for library in $(ldd /usr/bin/python3.11 | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'); do
    [ -e "$root$library" ] || cp -L "$library" "$root$library"
  done
  inDebian <<'TRIAL'
cd /tmp
CLEAVE_TORCH_DIR=/opt/pytorch/torch "/opt/other place/gpu.sh" --device cpu --short
TRIAL
  echo "check: gpu.sh passes in a bare Debian, on the CPU, in $((SECONDS - started)) s"
  exit
fi
inDebian <<'TRIAL'
cd /tmp
command -v gcc cmake python3 pip && { echo "check_package.sh: this is not a bare Debian" >&2; exit 1; }
configs="/opt/other place/share/cleave/configs"
cleave-server certs init --name localhost >/dev/null
cleave-server certs client trial >/dev/null
touch server.out link.out
cleave-server serve --config "$configs/server.yaml" --set listen.port=0 --set tls.enabled=true >server.out 2>server.log &
for _ in $(seq 300); do
  grep -q ' listens on ' server.out && break
  kill -0 $! || { cat server.log; exit 1; }
  sleep 0.1
done
grep -q 'each run in a process of its own' server.log || { cat server.log; exit 1; }
cleave-link --target "$(sed -n 's/.* listens on //p' server.out)" --rate 1Gbit/s >link.out 2>/dev/null &
for _ in $(seq 100); do
  grep -q '^listening on ' link.out && break
  sleep 0.1
done
cleave-client train --config "$configs/synthetic.yaml" --server "$(sed -n 's/^listening on //p' link.out)" \
  --tls certs/clients/trial --run-dir run --log-level warn
for file in run/model.safetensors run/steps.csv run/transfers.csv store/trial/*/steps.csv; do
  [ -s "$file" ] || { echo "check_package.sh: there is no $file" >&2; exit 1; }
done
kill %1
wait %1
TRIAL
if command -v systemd-analyze >/dev/null; then
  # Checks the systemd unit, with the program at the path given in docs/install.md. The bare Debian lacks the targets that the unit refers
  # to, so they are copied.
  mv "$root/opt/other place" "$root/opt/cleave"
  cp "$root/opt/cleave/lib/systemd/system/cleave-server.service" "$root/etc/systemd/system/"
  cp -r /lib/systemd/system "$root/lib/systemd/"
  systemd-analyze verify --man=no --root="$root" cleave-server.service
fi
echo "check: the archive trains in a bare Debian, server and client, in $((SECONDS - started)) s"
