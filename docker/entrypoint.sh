#!/usr/bin/env bash
# Entrypoint of the image: entrypoint.sh server [ARGUMENT…], client [ARGUMENT…], member NAME [ARGUMENT…], cohort-report,
# certs COMMAND [ARGUMENT…], link TARGET [ARGUMENT…], dashboard; runs any other command unchanged.
# The server makes missing certificates. If /client-certs is a volume, as with Compose, it also makes a client's certificate and
# copies it there, without the CA's key; and one for NAME in each volume /members/NAME.
set -euo pipefail

# clientCertificate NAME VOLUME
clientCertificate() {
  local name=$1 volume=$2 file folder=/certs/server/clients/$1
  mountpoint -q "$volume" || return 0
  if [ ! -e "$folder" ]; then
    cleave-server certs client "$name" --folder /certs/server >/dev/null
  elif [ -n "$(find "$folder/client.crt" -mtime +60)" ]; then
    cleave-server certs client "$name" --renew --folder /certs/server >/dev/null
  fi
  # Atomic replacement. The client may run as any user of the group, so the group may read the key; only this client mounts the volume.
  for file in ca.crt client.crt client.key; do
    install -m 640 "$folder/$file" "$volume/.$file"
    mv "$volume/.$file" "$volume/$file"
  done
}

server() {
  if [ ! -e /certs/server/server.crt ]; then
    # The client connects to the link and verifies that name.
    cleave-server certs init --folder /certs/server --name server --name link --name localhost
  fi
  # Certificates expire after 90 days, and these volumes may be older.
  if [ -n "$(find /certs/server/server.crt -mtime +60)" ]; then
    cleave-server certs init --renew --folder /certs/server
  fi
  clientCertificate client /client-certs
  local volume
  for volume in /members/*; do clientCertificate "$(basename "$volume")" "$volume"; done
  exec cleave-server serve --set listen.address=0.0.0.0 --set tls.enabled=true --set tls.folder=/certs/server \
    --set store=/store "$@"
}

# asOwner ROLE [ARGUMENT…]: returns if this is not root. Otherwise, runs the entrypoint again as the owner of ./runs on the host, so that
# the results belong to that user; Compose starts it as root, with only the capabilities for this. If the owner is root because
# Docker has just created the folder, the image's user becomes its owner.
asOwner() {
  if [ "$(id -u)" = 0 ]; then
    owner=$(stat -c %u /work/runs)
    if [ "$owner" = 0 ]; then
      chown cleave: /work/runs
      owner=$(id -u cleave)
    fi
    exec setpriv --reuid "$owner" --regid cleave --clear-groups --no-new-privs -- "$0" "$@"
  fi
  if [ ! -w /work/runs ]; then
    echo "entrypoint.sh: user $(id -u) may not write to /work/runs: chown the folder on the host (docs/docker.md)" >&2
    exit 2
  fi
}

client() {
  asOwner client "$@"
  # The client refuses keys that others may read, so it gets a private copy on a tmpfs.
  install -d -m 700 /tmp/certs
  install -m 600 /client-certs/* /tmp/certs/
  exec cleave-client "${@:1:1}" ${CODEC:+--set "codec=$CODEC"} "${@:2}"
}

# Trains as a member of the cohort of three clinics.
member() {
  local name=$1
  shift
  export CODEC=${CODEC:-block:bits=8}  # a cohort cannot use `auto`
  client train --config "configs/$CONFIG" --server link:4900 --tls /tmp/certs --set "run.name=$name" --set cohort.id=clinics \
    --set "cohort.members=[clinic-a,clinic-b,clinic-c]" --set "cohort.member=$name" "$@"
}

# Writes runs/cohort.html, a report on the newest run of each member.
cohortReport() {
  asOwner cohort-report
  local name runs=()
  for name in clinic-a clinic-b clinic-c; do
    runs+=("$(find /work/runs -mindepth 1 -maxdepth 1 -name "$name-*" | sort | tail -n 1)")
  done
  exec cleave-client report "${runs[@]}" --output /work/runs/cohort.html
}

link() {
  local target=$1 tries=0
  shift
  # Compose has waited for the service `server`, but not for `server-gpu`: wait until its name resolves and it listens.
  until [[ $target = server:* ]] || (: <"/dev/tcp/${target%:*}/${target##*:}") 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 240 ] || break
    sleep 0.5
  done
  exec cleave-link --insecure-bind --listen 0.0.0.0:4900 --target "$target" "$@"
}

# Serves the live page of a run that begins within a minute, otherwise of the newest existing run.
dashboard() {
  local run="" waited=0
  trap exit TERM  # process 1 has no default action for TERM
  touch /tmp/begin
  while [ -z "$run" ]; do
    run=$(find /work/runs -mindepth 2 -maxdepth 2 -name steps.csv -newer /tmp/begin -printf '%h\n' -quit)
    if [ -z "$run" ] && [ "$waited" -ge 60 ]; then
      run=$(find /work/runs -mindepth 2 -maxdepth 2 -name steps.csv -printf '%T@ %h\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
    fi
    waited=$((waited + 1))
    sleep 1
  done
  exec cleave-client report "$run" --serve 0.0.0.0:8900 --anywhere
}

role=${1:-server}
[ "$#" = 0 ] || shift
case "$role" in
  server) server "$@" ;;
  client) client "$@" ;;
  member) member "$@" ;;
  cohort-report) cohortReport ;;
  certs) exec cleave-server certs "$@" --folder /certs/server ;;
  link) link "$@" ;;
  dashboard) dashboard ;;
  *) exec "$role" "$@" ;;
esac
