#!/usr/bin/env bash
# For pods: copies the certificates of a Secret, because the server refuses keys that others may read and the group may read the files of
# a Secret. certificates.sh SECRETS CERTS copies once. certificates.sh SECRETS CERTS CONFIG looks every minute: at its first look, and
# if the certificates or the access file have changed, it copies the certificates and makes the server that serves with the file CONFIG
# reload.
# PERIOD: seconds between two looks.
set -euo pipefail
secrets=$1 certs=$2 config=${3:-}

copy() {
  local file
  for file in ca.crt server.crt server.key revoked.crl; do
    install -m 600 "$secrets/$file" "$certs/.$file" || return
  done
  for file in ca.crt server.crt server.key revoked.crl; do
    mv "$certs/.$file" "$certs/$file" || return
  done
}

# Makes the server reload. Its process has the file's name among its arguments.
reload() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2>/dev/null)" = cleave-server ] || continue
    tr '\0' '\n' <"$process/cmdline" | grep -qxF -- serve || continue
    tr '\0' '\n' <"$process/cmdline" | grep -qxF -- "$config" || continue
    kill -HUP "${process#/proc/}"
    echo "certificates.sh: the server reloads its certificates and its access file"
  done
}

# A Secret or a ConfigMap is replaced as a whole, so that its files belong together. Any of them may be absent.
state() { { cat "$secrets"/*.crt "$secrets"/*.key "$secrets"/*.crl "$(dirname "$config")/access.yaml" 2>/dev/null || true; } | sha256sum; }

if [ -z "$config" ]; then
  copy
  exit
fi
current=  # what changed while this script did not run is unknown
while true; do
  sleep "${PERIOD:-60}"
  next=$(state)
  [ "$next" != "$current" ] || continue
  if ! copy; then
    echo "certificates.sh: the certificates are not copied, and the server keeps those that it has; the next look tries again" >&2
    continue
  fi
  reload
  current=$next
done
