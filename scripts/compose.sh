#!/usr/bin/env bash
# Runs client, server and emulated link in containers: builds the image, starts docker/compose.yaml, waits until the client has trained over
# the link, and checks the results. Also works without access to a registry, and, as root, without a running Docker Engine.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/compose.sh [--short] [--min-accuracy PERCENT] [--image FILE] [--dashboards] [--cohort] [--keep] [-- OPTION…]

  --short                    one epoch over 12,800 images instead of four over 60,000
  --min-accuracy PERCENT     fails if the test accuracy is lower (80; with --short 60)
  --image FILE               loads an image made by `scripts/package.sh --image` instead of building one
  --dashboards               also starts the live page and Prometheus, and checks that they show the run
  --cohort                   then also trains one model with three clients, and checks that all have the same weights
  --keep                     keeps containers, networks and volumes, with the certificates
  -- OPTION…                 more options for cleave-client train, such as --set codec=bf16
  --help                     this text

Reads LINK_RATE, LINK_LATENCY, CLIENT_CPUS and the other variables in docs/docker.md from the environment.
Exit code 3: there is no Docker Engine, and none can be started here.

Example: LINK_RATE=20Mbit/s LINK_LATENCY=50ms ./scripts/compose.sh --short
TXT
}

fail() { echo "compose.sh: $*" >&2; exit 1; }
impossible() { echo "compose.sh: skipped: $*" >&2; exit 3; }

imageFile="" dashboards=0 cohort=0 keep=0 minimum="" short=0 extra=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --short) short=1; shift ;;
    --min-accuracy) minimum=${2:?--min-accuracy needs a number}; shift 2 ;;
    --image) imageFile=${2:?--image needs a file}; shift 2 ;;
    --dashboards) dashboards=1; shift ;;
    --cohort) cohort=1; shift ;;
    --keep) keep=1; shift ;;
    --) shift; extra+=("$@"); break ;;
    -h|--help) usage; exit 0 ;;
    *) echo "compose.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
[ "$short" = 0 ] || extra+=(--set train.max_steps=100 --set train.learning_rate.warmup_epochs=0.05)
[ -n "$minimum" ] || minimum=$([ "$short" = 1 ] && echo 60 || echo 80)
[ -z "$imageFile" ] || [ -f "$imageFile" ] || fail "there is no $imageFile: make it with ./scripts/package.sh --image"

work=$(mktemp -d)
engine="" up=""
finish() {
  [ -z "$up" ] || [ "$keep" = 1 ] || "${compose[@]}" down --volumes >>"$work/down.log" 2>&1 || cat "$work/down.log" >&2
  if [ -n "$engine" ]; then
    kill "$engine"
    wait "$engine" || true
    umount "$work"/exec/netns/* 2>/dev/null || true  # the engine may leave these mounted
  fi
  rm -rf "$work" || true
}
trap finish EXIT

# Starts a separate Docker Engine that ends with this script. Its images remain in /var/lib/docker.
startEngine() {
  export DOCKER_HOST=unix://$work/docker.sock
  dockerd --host "$DOCKER_HOST" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" "$@" >"$work/dockerd.log" 2>&1 &
  engine=$!
  for _ in $(seq 120); do
    docker info >/dev/null 2>&1 && return 0
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.5
  done
  kill "$engine" 2>/dev/null || true
  wait "$engine" || true
  engine=""
  return 1
}

# Prints the running container of a service, or nothing.
container() {
  docker ps --quiet --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$1"
}

# Succeeds if the container already runs the client, not its entrypoint.
trains() { [ "$(docker exec "$(container client)" cat /proc/1/comm 2>/dev/null)" = cleave-client ]; }

# Checks the user and the privileges of the services' processes.
confined() {
  local service status line
  for service in "$@"; do
    status=$(docker exec "$(container "$service")" cat /proc/1/status) || fail "$service has exited"
    for line in CapPrm:$'\t'0000000000000000 CapEff:$'\t'0000000000000000 NoNewPrivs:$'\t'1; do
      grep -q "^$line" <<<"$status" || fail "$service is not confined: not '$line'"
    done
    ! grep -q $'^Uid:\t0' <<<"$status" || fail "$service runs as root"
    ! docker exec --user 0 "$(container "$service")" touch /written 2>/dev/null || fail "the root file system of $service is writable"
  done
}

# Succeeds if the live page is available and Prometheus has scraped client and server.
looksOn() {
  python3 - "${DASHBOARD_PORT:-8900}" "${PROMETHEUS_PORT:-9090}" 2>/dev/null <<'PY'
import json, sys, urllib.request
get = lambda port, path: urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()
assert b"<html" in get(sys.argv[1], "/")
up = json.loads(get(sys.argv[2], "/api/v1/query?query=sum(up)"))["data"]["result"]
assert up and up[0]["value"][1] == "2"
PY
}

command -v docker >/dev/null || impossible "there is no Docker; install it with scripts/setup.sh --containers"
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  impossible "there is neither 'docker compose' nor docker-compose; install it with scripts/setup.sh --containers"
fi
compose+=(-f docker/compose.yaml)
[ "$dashboards" = 0 ] || compose+=(--profile dashboards)
if ! docker info >"$work/info" 2>&1; then
  command -v dockerd >/dev/null && [ "$(id -u)" = 0 ] ||
    impossible "no Docker Engine answers, and only root can start one: $(grep -v '^Client' "$work/info" | tail -n 1)"
  startEngine || startEngine --iptables=false ||
    impossible "dockerd does not run on this machine: $(grep -v level=info "$work/dockerd.log" | tail -n 1)"
  echo "compose: started a separate Docker Engine"
fi
echo "compose: Docker $(docker version --format '{{.Server.Version}}'), $("${compose[@]}" version --short)"

builds=$([ "$dashboards" = 0 ] || echo prometheus)
[ -n "$imageFile" ] || builds+=" server"
base=${BASE:-debian:bookworm-slim}
if [ -n "$builds" ] && ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull --quiet "$base" >"$work/pull.log" 2>&1; then
  [ -z "${BASE:-}" ] || fail "cannot pull $base: $(tail -n 1 "$work/pull.log")"
  echo "compose: no registry is reachable: making $base with debootstrap"
  ./scripts/debian_base.sh
  docker import .deps/debian-bookworm.tar "$base" >/dev/null
fi

started=$SECONDS
image=${IMAGE:-cleave}
if [ -n "$imageFile" ]; then
  loaded=$(docker load --input "$imageFile") || fail "$imageFile cannot be loaded (above)"
  docker tag "$(sed -n '/^Loaded image: /{s///p;q}' <<<"$loaded")" "$image"
fi
if [ -n "$builds" ]; then
  echo "compose: building for ${builds# } (takes a few minutes the first time)"
  # shellcheck disable=SC2086  # a list of services
  "${compose[@]}" build $builds >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" >&2; fail "the image cannot be built (above)"; }
fi
size=$(docker image inspect --format '{{.Size}}' "$image")
echo "compose: image of $((size / 1000000)) MB made in $((SECONDS - started)) s"
[ "$size" -lt 1200000000 ] || fail "the image is larger than the limit of 1,200 MB"

project=${COMPOSE_PROJECT_NAME:-$(sed -n 's/^COMPOSE_PROJECT_NAME=//p' docker/.env)}
# The documented command, plus a probe that measures the link for the check below.
export TRAIN_OPTIONS="--probe --set run.name=compose ${extra[*]@Q} ${TRAIN_OPTIONS:-}"
export LINK_RATE=${LINK_RATE:-100Mbit/s} LINK_LATENCY=${LINK_LATENCY:-10ms}
touch "$work/begin"
up=1
started=$SECONDS
"${compose[@]}" up --no-build --no-color --exit-code-from client >"$work/up.log" 2>&1 &
upProcess=$!
seen=0 shown=0
while kill -0 "$upProcess" 2>/dev/null; do
  [ "$seen" = 1 ] || ! trains || { confined server link client; seen=1; }
  [ "$dashboards" = 0 ] || [ "$shown" = 1 ] || ! looksOn || shown=1
  sleep 0.5
done
code=0
wait "$upProcess" || code=$?
[ "$code" = 0 ] || { tail -n 60 "$work/up.log" >&2; fail "the client exited with code $code (above)"; }
[ "$seen" = 1 ] || fail "the client exited before the containers could be checked"
[ "$shown" = "$dashboards" ] || { tail -n 60 "$work/up.log" >&2; fail "the live page or Prometheus did not show the run (above)"; }

run=$(find "${RUNS:-runs}" -mindepth 1 -maxdepth 1 -name 'compose-*' -newer "$work/begin" | tail -n 1)
[ -n "$run" ] || fail "there is no run in ${RUNS:-runs}"
for file in steps.csv transfers.csv epochs.csv probe.csv config.yaml environment.json model.safetensors; do
  [ -s "$run/$file" ] || fail "there is no $run/$file"
done
[ "$(stat -c %u "$run/steps.csv")" = "$(stat -c %u "${RUNS:-runs}")" ] || fail "$run does not belong to the owner of its folder"
sed -n '/^[^ |]*client[^|]*| *\(accuracy\|time\|bytes\|bandwidth\|link\|bound\|bottleneck\) /s/^[^|]*| *//p' "$work/up.log"
python3 scripts/check_compose.py "$run" --min-accuracy "$minimum" --rate "$LINK_RATE" --latency "$LINK_LATENCY"
echo "compose: trained in $((SECONDS - started)) s, from the first container to the last; results in $run"

[ "$cohort" = 1 ] || exit 0
members=(clinic-a clinic-b clinic-c)
export TRAIN_OPTIONS="${extra[*]@Q}"
touch "$work/begin"
started=$SECONDS
"${compose[@]}" --profile cohort up --no-build --no-color "${members[@]}" cohort >"$work/cohort.log" 2>&1 ||
  { "${compose[@]}" --profile cohort logs --no-color --tail 20 "${members[@]}" >&2; fail "the cohort has failed (above)"; }
[ "${RUNS:-runs}/cohort.html" -nt "$work/begin" ] || { tail -n 60 "$work/cohort.log" >&2; fail "there is no report on the cohort (above)"; }
for member in "${members[@]}"; do
  run=$(find "${RUNS:-runs}" -mindepth 1 -maxdepth 1 -name "$member-*" -newer "$work/begin" | tail -n 1)
  [ -n "$run" ] || fail "there is no run of $member in ${RUNS:-runs}"
  # The header has each member's configuration, and the tensors follow it.
  python3 -c 'import hashlib, sys; b = open(sys.argv[1], "rb").read(); print(hashlib.sha256(b[8 + int.from_bytes(b[:8], "little"):]).hexdigest())' \
    "$run/model.safetensors"
done | sort -u >"$work/models"
[ "$(wc -l <"$work/models")" = 1 ] || fail "the members of the cohort have different weights"
echo "compose: ${#members[@]} clients trained one model in $((SECONDS - started)) s; report in ${RUNS:-runs}/cohort.html"
