#!/usr/bin/env bash
# Runs benchmarks. They report ratios measured side by side in one run, because absolute speeds
# differ between machines.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/bench.sh split|head|codecs|codec-step|codec-auto|pipeline|between|metrics|memory|transport|load|fairness|saving|accuracy [OPTION…]

  split    the demo's split (codec none, schedule priority) against the same model whole in one process
           --rounds N (5), --steps N (200), --json FILE
  head     forward and backward of MobileNetV2's head, as our daemons run it against stock LibTorch
           --rounds N (9), --repetitions N (10), --batch N (64), --json FILE
  codecs   every codec's encode and decode, one thread and two, beside a read-only pass and memcpy; then sort and uniform beside
           plain LibTorch operations
           [SPEC…] (beside the table's examples), --seconds S a figure (0.5), --rounds N (3) and --plain-only for the
           second part, --json FILE
  codec-step
           a step of MobileNetV2 with a codec beside one with none, the server waiting instead of computing: over loopback,
           and at 1 Gbit/s between network namespaces with TLS, which takes root
           --pairs N (20), --steps N a turn (3), --threads N of the client (half of the cores), --link loopback|shaped,
           --set KEY=VALUE, --json FILE
  codec-auto
           training MobileNetV2 with codec: auto beside none, block:bits=8 and block:bits=4, both sides computing: over loopback, at
           1 Gbit/s and at 100 Mbit/s between network namespaces with TLS, which takes root, or else over cleave-link
           --rounds N (7), --steps N of a run (60), --short, --link TEXT (one of them), --link-program (cleave-link), --batch N (32),
           --micro-batches N (8), --set KEY=VALUE, --json FILE
  pipeline schedules on emulated links, both daemons waiting instead of computing, beside prediction, best order and bound
           --model mobilenet_v2|small_cnn, --rate MBITS…, --latency MS…, --codec SPEC…, --rounds N (9), --seconds S a row (20),
           --short, --json FILE
  between  what passes between training steps on either side, both daemons computing, and waiting instead
           --model mobilenet_v2|small_cnn, --only computes|waits, --steps N (80), --codec SPEC, --json FILE
  metrics  what recording and metrics cost a step: by the processor time of its rows, and a training with metrics beside one without
           --model mobilenet_v2|small_cnn, --rounds N (7), --steps N of a training (60), --short, --codec SPEC, --json FILE
  memory   the client's peak resident set by micro-batches and by how many may be in flight
           --rounds N (3), --steps N (5), --codec SPEC, --json FILE
  transport
           tensors over loopback by a connection of ours beside a raw socket and Gloo (Debian's libgloo-dev), within TLS beside
           Asio's ssl::stream, and how soon an urgent tensor arrives over 100 Mbit/s behind 12 MB of others
           --rounds N (15), --total MB a measurement (256), --repetitions N of the urgent one (30), --only throughput|urgent,
           --json FILE
  load     5,000 connections that say nothing and 500 that send a byte a second, beside an honest client; 1,000 Hellos; 64 clients
           that train at once; 50 that do not read: what the server holds, and what the others notice
           --only idle|hellos|training|unread, --tls DIR (the server's certs/), --idle N, --slow N, --hellos N, --clients N,
           --unread N, --json FILE
  fairness an honest client beside one with zstd:level=19 on tensors of 64 MiB, one with actions of 15 s that wait, and one with a
           heavy model: its steps per second, against those beside an ordinary client
           --short, --seconds S (120), --action S (15), --batch N of the heavy model (4096), --only codec|wait|model, --json FILE
  saving   steps of a run that saves its model at each epoch's end beside one that does not, over an emulated link
           --rounds N (5), --steps N (100), --rate MBITS (1, 10 and 100), --json FILE
  accuracy small_cnn trained on Fashion-MNIST with each codec on all four flows, evaluated on held-out images
           --seeds N (3), --epochs N (2), --steps N (all), --only CODEC…, --holdout N (10000), --jobs N, --json FILE
  --help   this text

Example: ./scripts/bench.sh split --rounds 9
TXT
}

case "${1:-}" in
  split) targets=(cleave-client cleave-server bench_whole) ;;
  head) targets=(bench_head) ;;
  codecs) targets=(bench_codecs bench_codecs_torch) ;;
  codec-step) targets=(cleave-server bench_step) ;;
  codec-auto) targets=(cleave-client cleave-server cleave-link) ;;
  pipeline) targets=(cleave-client cleave-server cleave-link bench_step) ;;
  between|memory) targets=(cleave-client cleave-server) ;;
  metrics) targets=(cleave-client cleave-server bench_record) ;;
  transport) targets=(bench_transport cleave-link) ;;
  saving) targets=(cleave-client cleave-server cleave-link) ;;
  load|fairness) targets=(cleave-client cleave-server) ;;
  accuracy) targets=(cleave-client cleave-server) ;;
  -h|--help) usage; exit 0 ;;
  *) echo "bench.sh: '${1:-}' is not a benchmark" >&2; usage >&2; exit 2 ;;
esac
benchmark=$1
shift
if [ "$benchmark" = transport ] && [ ! -e /usr/include/gloo/transport/tcp/device.h ]; then
  echo "bench.sh: transport compares with Gloo, which is not here. As root: apt-get install --no-install-recommends libgloo-dev" >&2
  exit 1
fi
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target "${targets[@]}"
exec python3 "tests/bench/${benchmark//-/_}.py" "$@"
