#!/usr/bin/env bash
# The complete workflow: sets up, builds, makes certificates, starts cleave-server on loopback,
# trains a small CNN on Fashion-MNIST with cleave-client over TLS, evaluates the split model, prints
# the result and writes the report.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/demo.sh [--short] [--min-accuracy PERCENT] [-- OPTION…]

  --short                    one epoch over 12,800 images instead of four over 60,000
  --min-accuracy PERCENT     fails if the test accuracy is lower
  -- OPTION…                 more options for cleave-client train, such as --set codec=bf16
  --help                     this text

Example: ./scripts/demo.sh -- --set codec=uniform:bits=8
TXT
}

extra=()
minimum=0
while [ "$#" -gt 0 ]; do
  case "$1" in
    --short) extra+=(--set train.max_steps=100 --set train.learning_rate.warmup_epochs=0.05); shift ;;
    --min-accuracy) minimum=${2:?--min-accuracy needs a number}; shift 2 ;;
    --) shift; extra+=("$@"); break ;;
    -h|--help) usage; exit 0 ;;
    *) echo "demo.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

./scripts/setup.sh --run-only
started=$SECONDS
echo "demo: building (takes a few minutes the first time)"
cmake --preset release >/dev/null
cmake --build --preset release --target cleave-client cleave-server
echo "demo: built in $((SECONDS - started)) s"

runs=runs/demo-$(date -u +%Y%m%d-%H%M%S)
mkdir -p "$runs"
build/release/bin/cleave-server certs init --folder "$runs/certs" --name localhost >/dev/null
build/release/bin/cleave-server certs client demo --folder "$runs/certs" >/dev/null
setsid build/release/bin/cleave-server serve --config configs/server.yaml --log-level warn \
  --set listen.port=0 --set store="$runs/server" --set tls.enabled=true --set tls.folder="$runs/certs" >"$runs/server.out" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
for _ in $(seq 300); do
  grep -qs ' listens on ' "$runs/server.out" && break
  kill -0 "$server" 2>/dev/null || { echo "demo.sh: cleave-server exited; see its error above" >&2; exit 1; }
  sleep 0.1
done
address=$(sed -n 's/.* listens on //p' "$runs/server.out")
[ -n "$address" ] || { echo "demo.sh: cleave-server did not listen within 30 s" >&2; exit 1; }
echo "demo: cleave-server listens on $address; training with it, over TLS"

build/release/bin/cleave-client train --config configs/fashion_mnist.yaml --server "$address" \
  --tls "$runs/certs/clients/demo" --run-dir "$runs/client" --log-level warn "${extra[@]}"

accuracy=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "eval_top1") column = i }
                    NR > 1 && $column != "" { last = 100 * $column } END { print last }' "$runs/client/epochs.csv")
build/release/bin/cleave-client report "$runs/client" --log-level warn >/dev/null
echo "report      $runs/client/report.html: open it in a browser"
echo "server      its records of the run are in" "$runs"/server/demo/*
if ! awk -v got="$accuracy" -v minimum="$minimum" 'BEGIN { exit !(got != "" && got + 0 >= minimum + 0) }'; then
  echo "demo.sh: the accuracy of '$accuracy' % is below the required $minimum %" >&2
  exit 1
fi
