#!/usr/bin/env bash
# Trains across two network namespaces: the server has no port that the other namespace can reach, and dials out to a relay there.
# usage: tests/nat_relay.sh PROGRAMS; exits with 77 if namespaces cannot be made here.
set -euo pipefail
programs=$(realpath "$1")
source=$(realpath "$(dirname "$0")/..")
home=cleave-home-$$ public=cleave-public-$$

if ! ip netns add "$home" 2>/dev/null; then
  echo "nat_relay.sh: skipped: network namespaces need root and iproute2"
  exit 77
fi
scratch=$(mktemp -d)
pids=()
cleanUp() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  ip netns del "$home" 2>/dev/null || true
  ip netns del "$public" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanUp EXIT
ip netns add "$public"
ip -n "$home" link add uplink type veth peer name downlink netns "$public"
ip -n "$home" addr add 192.0.2.2/24 dev uplink
ip -n "$public" addr add 192.0.2.1/24 dev downlink
for name in lo uplink; do ip -n "$home" link set "$name" up; done
for name in lo downlink; do ip -n "$public" link set "$name" up; done

cd "$scratch"
inHome=(ip netns exec "$home") inPublic=(ip netns exec "$public")
waitFor() {  # FILE TEXT
  for _ in $(seq 600); do
    if grep -q "$2" "$1"; then return; fi
    sleep 0.1
  done
  echo "nat_relay.sh: no '$2' in $1:" >&2
  cat "$1" >&2
  exit 1
}
train() {  # RUN SERVER
  "${inPublic[@]}" "$programs/cleave-client" train --config "$source/configs/synthetic.yaml" --server "$2" \
    --tls certs/clients/alice --set train.epochs=2 --set connect.retry_seconds=5 --run-dir "$1"
}

"$programs/cleave-server" certs init --name 192.0.2.1 >/dev/null
"$programs/cleave-server" certs client alice >/dev/null
head -c 32 /dev/urandom | base64 >relay.secret
chmod 600 relay.secret
"${inPublic[@]}" "$programs/cleave-relay" --listen 192.0.2.1:4800 --register 192.0.2.1:4801 --secret relay.secret \
  >relay.out 2>relay.err &
pids+=($!)
waitFor relay.out "listening on"
"${inHome[@]}" "$programs/cleave-server" serve --dial 192.0.2.1:4801 --set dial.secret=relay.secret --set tls.enabled=true \
  >server.out 2>server.err &
pids+=($!)
waitFor server.err "registered with the relay"

if train direct 192.0.2.2:4800 2>direct.err; then
  echo "nat_relay.sh: the client reached the server without the relay" >&2
  exit 1
fi
grep -q "cannot connect to 192.0.2.2:4800" direct.err
train through 192.0.2.1:4800
test -s through/model.safetensors
kill "${pids[1]}"
wait "${pids[1]}"
kill "${pids[0]}"
wait "${pids[0]}"
pids=()
grep "cleave-relay: [1-9][0-9]* clients" relay.err
echo "nat_relay.sh: trained through the relay; the server was not reachable directly"
