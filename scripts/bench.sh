#!/usr/bin/env bash
# Runs benchmarks. They report ratios of figures from the same run, because absolute speeds differ between machines.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/bench.sh split|head|graph|overhead|codecs|codec-step|codec-auto|pipeline|servers|rows|replicas|cohort|edges|plan|plan-search|zero-bubble|between|metrics|memory|run-memory|admission|process|transport|reducer|load|fairness|saving|checkpoints|tuning|loading|accuracy [OPTION…]

  split    the demo's split model (codec none, schedule priority), compared with the whole model in one process
           --rounds N (5), --steps N (200), --json FILE
  head     forward and backward of MobileNetV2's head with Cleave's settings, compared with stock LibTorch
           --rounds N (9), --repetitions N (10), --batch N (64), --json FILE
  graph    forward and backward of a MobileNetV2 that was exported from PyTorch, compared with Cleave's own, and with PyTorch in
           Python; run scripts/test_python.sh first
           --rounds N (20), --batch N (32), --size N of the images (96), --threads N (1), --json FILE
  overhead the cost of running an exported model apart from the arithmetic: 24 GPT-2 layers of width 16, compared with
           PyTorch in Python; run scripts/test_python.sh first
           --rounds N (15), --json FILE
  codecs   every codec's encode and decode, on one thread and on two, compared with a read-only pass and memcpy; then sort and
           uniform compared with plain LibTorch operations
           [SPEC…] (in addition to the table's examples), --seconds S per figure (0.5), --json FILE; for the second part
           --rounds N (3) and --plain-only
  codec-step
           a step of MobileNetV2 with a codec, compared with the codec none; the server waits instead of computing: over
           loopback, and at 1 Gbit/s between network namespaces with TLS, which requires root
           --pairs N (20), --steps N per turn (3), --threads N of the client (half of the cores), --link loopback|shaped,
           --set KEY=VALUE, --json FILE
  codec-auto
           training MobileNetV2 with codec: auto, compared with none, block:bits=8 and block:bits=4; both sides compute: over
           loopback, and at 1 Gbit/s and 100 Mbit/s between network namespaces with TLS, or over cleave-link without root
           --rounds N (7), --steps N of a run (60), --short, --link TEXT (one of them), --link-program (cleave-link), --batch N (32),
           --micro-batches N (8), --set KEY=VALUE, --json FILE
  pipeline schedules on emulated links, compared with prediction, best order and bound; both sides wait instead of computing
           --model mobilenet_v2|small_cnn, --rate MBITS…, --latency MS…, --codec SPEC…, --rounds N (9), --seconds S per row (20),
           --short, --json FILE
  servers  1, 2 and 3 servers in a row on emulated links, compared with bound and prediction; all sides wait instead of computing
           --rate MBITS (1000), --latency MS… (0.1, 10), --codec SPEC (none), --rounds N (3), --steps N (5), --json FILE
  rows     schedules of 1 to 6 servers in a row, with and without staleness: simulated and measured steps, and the bound; servers wait
           instead of computing
           --servers N… (1 to 6), --micro-batches N… (4, 8, 16), --staleness D… (0, 1, 3), --steps N (6; 0: only simulate),
           --forward MS (10), --json FILE
  replicas images per second with 1 and 2 replicas of a body, and how much they compute at the same time; all sides wait instead of computing
           --replicas N… (1, 2), --width N of the mlp (1024), --rounds N (3), --steps N (20), --json FILE
  cohort   how busy a server is with 1 to 16 members of a cohort on emulated links, compared with prediction; and a slow member, with both
           orders; all sides wait instead of computing
           --members N… (1, 2, 4, 8, 16), --latency MS (1), --steps N (8), --rounds N with a slow member (2), --json FILE
  edges    RoBERTa-base on two servers with direct links between them, compared with tensors that pass through the client, in
           simulated steps
           --batch N (32), --micro-batches N (4), --json FILE
  plan     plans of cleave-client plan for three models on four emulated links, compared with 20 settings chosen by hand; both sides
           wait instead of computing
           --model mobilenet_v2|small_cnn|mlp, --link NUMBER (0 to 3), --server-speed N (4), --rounds N (5), --json FILE
  plan-search
           plans for two and three servers on noisy profiles, compared with random settings, in simulated steps
           --profiles N (10), --settings N (40), --json FILE
  zero-bubble
           the schedule zb, compared with priority, in simulated steps of MobileNetV2 on 12 links
           --batch N (32), --micro-batches N (8), --json FILE
  between  the time between training steps on each side, with both sides computing, and with both waiting instead
           --model mobilenet_v2|small_cnn, --only computes|waits, --steps N (80), --codec SPEC, --json FILE
  metrics  the cost of recording and metrics per step: the processor time of a step's rows, and training with and without metrics
           --model mobilenet_v2|small_cnn, --rounds N (7), --steps N per training run (60), --short, --codec SPEC, --json FILE
  memory   the client's peak resident set by micro-batches and by the maximum number in flight
           --rounds N (3), --steps N (5), --codec SPEC, --json FILE
  run-memory
           what a run adds to a server's memory, while it trains and while it is idle; requires root
           --runs N (8), --json FILE
  admission
           the memory that a server admits for exported models, compared with what their processes allocate
           --run NAME (all 14), --python FILE (.deps/python/bin/python), --json FILE
  process  a step with the body in a process of its own, compared with a server that computes in its own process
           --config FILE (configs/fashion_mnist.yaml), --rounds N (9), --steps N (200), --set KEY=VALUE, --json FILE
  transport
           throughput of Cleave's connection over loopback, compared with a raw socket and Gloo (Debian's libgloo-dev), and
           with TLS compared with Asio's ssl::stream; and the time until an urgent tensor behind 12 MB of others arrives
           over 100 Mbit/s
           --rounds N (15), --total MB per measurement (256), --repetitions N of the urgent one (30), --only throughput|urgent,
           --json FILE
  reducer  the sum of gradients over two replicas on the loopback interface, compared with Gloo's allreduce
           --rounds N (9), --json FILE
  load     the server's memory, and the effect on other clients, of 5,000 idle connections and 500 that send a byte per second,
           of 1,000 Hellos, of 64 clients that train at once, and of 50 clients that do not read
           --only idle|hellos|training|unread, --tls DIR (the server's certs/), --idle N, --slow N, --hellos N, --clients N,
           --unread N, --json FILE
  fairness an honest client's steps per second next to a client with zstd:level=19 on tensors of 64 MiB, with waiting actions of
           15 s, with a heavy model, or with builds of large ones that it leaves, compared with those next to an ordinary client
           --short, --seconds S (120), --action S (15), --batch N of the heavy model (4096), --only codec|wait|model|builds, --json FILE
  saving   steps of a run that saves its model at each epoch's end, compared with one that does not, over an emulated link
           --rounds N (3), --steps N (60), --rate MBITS (1, 10 and 100), --json FILE
  checkpoints a run with checkpoints, compared with one without; the time until a run continues after its server has been killed, and
           after its link has been cut
           --rounds N (3), --steps N (400), --only cost|restart|cut, --json FILE
  tuning   a step's time, memory and bytes by precision, recomputation and frozen parts: MobileNetV2
           --rounds N (3), --steps N (12), --json FILE
  loading  whether training on JPEG files at 100 images/s waits for data; both sides wait instead of computing
           --rounds N (3), --steps N (30), --batch N (32), --rate N images per second (100), --json FILE
  accuracy small_cnn trained on Fashion-MNIST with each codec on all four flows, evaluated on held-out images
           --seeds N (3), --epochs N (2), --steps N (all), --only CODEC…, --holdout N (10000), --jobs N, --json FILE
  --help   this text

Example: ./scripts/bench.sh split --rounds 9
TXT
}

case "${1:-}" in
  split) targets=(cleave-client cleave-server bench_whole) ;;
  head) targets=(bench_head) ;;
  graph) targets=(bench_graph) ;;
  overhead) targets=(bench_overhead) ;;
  codecs) targets=(bench_codecs bench_codecs_torch) ;;
  codec-step) targets=(cleave-server bench_step) ;;
  codec-auto) targets=(cleave-client cleave-server cleave-link) ;;
  pipeline|servers) targets=(cleave-server cleave-link bench_simulate bench_step) ;;
  rows) targets=(cleave-client cleave-server bench_simulate) ;;
  plan) targets=(cleave-client cleave-server cleave-link bench_step) ;;
  plan-search) targets=(cleave-client) ;;
  edges) targets=(bench_simulate) ;;
  between|memory|run-memory|admission|process|tuning|loading|zero-bubble|replicas) targets=(cleave-client cleave-server) ;;
  metrics) targets=(cleave-client cleave-server bench_record) ;;
  reducer) targets=(bench_replicas) ;;
  transport) targets=(bench_transport cleave-link) ;;
  checkpoints|saving|cohort) targets=(cleave-client cleave-server cleave-link) ;;
  load|fairness) targets=(cleave-client cleave-server) ;;
  accuracy) targets=(cleave-client cleave-server) ;;
  -h|--help) usage; exit 0 ;;
  *) echo "bench.sh: '${1:-}' is not a benchmark" >&2; usage >&2; exit 2 ;;
esac
benchmark=$1
shift
if [ "$benchmark" = transport ] && [ ! -e /usr/include/gloo/transport/tcp/device.h ]; then
  echo "bench.sh: transport requires Gloo, which is not installed. Run as root: apt-get install --no-install-recommends libgloo-dev" >&2
  exit 1
fi
./scripts/setup.sh
cmake --preset release -DBUILD_TESTING=ON >/dev/null
cmake --build --preset release --target "${targets[@]}"
exec python3 "tests/bench/${benchmark//-/_}.py" "$@"
