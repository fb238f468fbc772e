"""Compares direct links between two servers with tensors that pass through the client, in simulated steps of RoBERTa-base.

The client has the embeddings, the first layer, the last layer and the classifier; each of two servers has five of the ten layers between
them. Tensors have 128 tokens x 768 values per sample. The seconds of a layer are derived from a published figure: two GTX 1080 train 76.19
samples/s of RTE with data parallelism, so a layer takes 1/12 of 2/76.19 s per sample, of which backward takes 2/3. That includes their
all-reduce and the update, so a layer is in fact faster. The client is as fast as that, the servers are as fast or faster. The time of the
codec and the attention mask are not counted. Called by scripts/bench.sh edges."""

import argparse
import json
import os
import subprocess
import tempfile

from machine import Others, conclude

TOKENS, HIDDEN, LAYERS = 128, 768, 12
SECONDS_PER_SAMPLE = 2 / 76.19  # of the whole model on one GPU, forward and backward
RATES = [100, 1000]  # Mbit/s, of the client
LATENCIES = [0.1, 10]  # ms, one way, between client and servers
CODECS = {"none": 1, "block:bits=8": 0.2656}  # bytes on the link per byte of a tensor
SPEEDS = [1, 4, 16]  # of the servers, as multiples of the client's speed
EDGE = {"rate": 10000, "latency": 0.1}  # servers in one place
BODY_LAYERS = LAYERS - 2
ENOUGH = 1.3  # the gain for which direct links would be worth implementing


def times(options, servers, speed, codec):
    """The costs of a step, as bench_simulate reads them."""
    samples = options.batch / options.micro_batches
    layer = SECONDS_PER_SAMPLE * samples / LAYERS
    forward, backward = layer / 3, 2 * layer / 3
    per_server = BODY_LAYERS / servers / speed
    body = {"body_forward_seconds": per_server * forward, "body_backward_seconds": per_server * backward, "body_weights_seconds": 0}
    flow = {"bytes": 4 * samples * TOKENS * HIDDEN * CODECS[codec], "encode_seconds": 0, "decode_seconds": 0}
    return {"batch": options.batch, "micro_batches": options.micro_batches, "head_forward_seconds": forward, "tail_step_seconds": layer,
            "head_backward_seconds": backward, "update_seconds": 0, "bodies": [body] * servers,
            "flows": {f"{kind}/{cut}": flow for kind in ("activation", "gradient") for cut in range(servers + 1)}}


def simulate(options, path, rate, latency, edge=None, separate=False):
    """The step with the schedule priority in ms, and its bottleneck."""
    more = ["--edge-rate", f"{edge['rate']}Mbit/s", "--edge-latency", f"{edge['latency']}ms"] if edge else []
    more += ["--separate-links"] if separate else []
    done = subprocess.run([f"{options.programs}/bench_simulate", "--times", path, "--rate", f"{rate}Mbit/s", "--latency", f"{latency}ms", *more],
                          check=True, stdout=subprocess.PIPE, text=True)
    predicted = json.loads(done.stdout)
    return {"ms": 1e3 * predicted["schedules"]["priority"]["seconds"], "bottleneck": predicted["bottleneck"]}


def measure(options, folder, rate, latency, codec, speed):
    paths = {}
    for servers in (1, 2):
        paths[servers] = os.path.join(folder, f"{servers}.json")
        with open(paths[servers], "w", encoding="utf-8") as file:
            json.dump(times(options, servers, speed, codec), file)
    far = {"rate": rate, "latency": latency}  # servers in two places
    cell = {"rate": rate, "latency": latency, "codec": codec, "speed": speed,
            "one": simulate(options, paths[1], rate, latency),
            "client": simulate(options, paths[2], rate, latency),
            "direct": simulate(options, paths[2], rate, latency, EDGE),
            "far": simulate(options, paths[2], rate, latency, far),
            "client_separate": simulate(options, paths[2], rate, latency, separate=True),
            "direct_separate": simulate(options, paths[2], rate, latency, EDGE, separate=True)}
    for name, (before, after) in {"gain": ("client", "direct"), "gain_far": ("client", "far"),
                                  "gain_separate": ("client_separate", "direct_separate")}.items():
        cell[name] = cell[before]["ms"] / cell[after]["ms"]
    return cell


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--batch", type=int, default=32, help="samples per batch")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others, cells = Others(), []
    print(f"RoBERTa-base, batch {options.batch}, {options.micro_batches} micro-batches, priority; simulated ms per step\n"
          f"servers: speed of the servers; one: one server; client: two servers, tensors pass through the client, all on the client's link;\n"
          f"direct: a direct link of {EDGE['rate']} Mbit/s and {EDGE['latency']} ms; gain: client / direct; far: the gain with a direct link like the\n"
          f"client's; separate: the gain if the client has a link of this rate to each server")
    print(f"{'link':<22}{'codec':<14}{'servers':>8}{'one':>9}{'client':>9}{'direct':>9}{'gain':>7}{'far':>7}{'separate':>10}  bottleneck: client, direct")
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES:
            for codec in CODECS:
                for latency in LATENCIES:
                    for speed in SPEEDS:
                        cell = measure(options, folder, rate, latency, codec, speed)
                        cells.append(cell)
                        print(f"{rate:>6} Mbit/s {latency:>5g} ms {codec:<14}{speed:>6} x{cell['one']['ms']:>9.1f}{cell['client']['ms']:>9.1f}"
                              f"{cell['direct']['ms']:>9.1f}{cell['gain']:>7.2f}{cell['gain_far']:>7.2f}{cell['gain_separate']:>10.2f}"
                              f"  {cell['client']['bottleneck']}, {cell['direct']['bottleneck']}", flush=True)
    for rate in RATES:
        gains = [cell["gain"] for cell in cells if cell["rate"] == rate]
        print(f"{rate} Mbit/s: gains of {min(gains):.2f} to {max(gains):.2f}; at least {ENOUGH} in {sum(gain >= ENOUGH for gain in gains)} of {len(gains)} rows")
    share = others.share()
    conclude(share, {"links": cells}, options.json, others_share=share)


if __name__ == "__main__":
    main()
