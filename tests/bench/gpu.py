#!/usr/bin/env python3
"""Runs the server on a GPU and the client on the CPU. First runs `verify` with a tolerance, then measures MobileNetV2 at 224 x 224, batch
64, in 1, 4 and 8 micro-batches, and prints a table. Called by scripts/gpu.sh; needs no Python packages."""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import time

# Maximum of |split - whole| / |whole| for each kind of result after 3 steps in fp32. GPU kernels sum in a different order than the CPU, and
# batch norm over few values amplifies the difference.
TOLERANCE = 1e-3
MIB = 1 << 20
COLUMNS = ["codec", "ratio by shape", "top-1 %", "avg MiB/s", "peak client", "peak server", "computation s", "total s",
           "chunks"]


class Server:
    def __init__(self, options):
        self.process = subprocess.Popen(
            [options.programs / "cleave-server", "serve", "--config", options.configs / "server.yaml", "--set",
             "listen.port=0", "--set", f"store={options.work}/store", "--set", f"device={options.device}", "--set",
             "limits.memory_mib=32768", "--log-level", "warn"],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if " listens on " not in line:
            sys.exit(f"gpu.py: cleave-server did not start (exit code {self.process.wait()})")
        self.address = line.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def client(options, command, folder, server, settings):
    arguments = [options.programs / "cleave-client", command, "--config", options.configs / "synthetic.yaml", "--server",
                 server.address, "--run-dir", options.work / folder, "--json", "--log-level", "warn"]
    for setting in settings:
        arguments += ["--set", setting]
    if command == "verify" and options.device != "cpu":
        arguments += ["--tolerance", str(TOLERANCE)]
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        print(ended.stdout)
        sys.exit(f"gpu.py: {command} failed with exit code {ended.returncode}")
    return json.loads(ended.stdout)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def verify(options, server):
    models = {
        "mlp": ["model={name: mlp}"],
        "small_cnn": ["model={name: small_cnn}", "data.shape=[1, 28, 28]"],
        "mobilenet_v2": ["model={name: mobilenet_v2}", "data.shape=[3, 56, 56]", "train.batch=16", "eval.batch=16"],
    }
    for name, settings in models.items():
        result = client(options, "verify", f"verify-{name}", server, settings)
        worst = max(kind["relative_difference"] for kind in result["compared"].values())
        print(f"verify {name}: " + ("bit-identical" if result["equal"] else
                                    f"within {worst:.2g} (allowed {TOLERANCE:g})"), flush=True)


def peak(transfers, role):
    """The maximum throughput of a single micro-batch's tensor, bytes per second."""
    return max(int(row["wire_bytes"]) / float(row["wire_seconds"]) for row in transfers
               if row["role"] == role and row["wire_seconds"] and float(row["wire_seconds"]) > 0
               and row["flow"] in ("activation/0", "gradient/1"))


def measure(options, server, micro_batches):
    size, batch, steps = (64, 8, 4) if options.short else (224, 64, 12)
    warm = 2  # first steps, which are not counted, because memory is allocated and kernels are selected
    folder = f"bench-{micro_batches}"
    result = client(options, "train", folder, server, [
        "codec=none", "model={name: mobilenet_v2, tail: " + ("global" if options.short else "prototype") + "}",
        f"data.shape=[3, {size}, {size}]", f"data.train.size={batch * steps}", f"data.test.size={batch}",
        f"train.batch={batch}", f"eval.batch={batch}", f"train.micro_batches={micro_batches}", "train.epochs=1",
        "train.optimizer={name: sgd, momentum: 0.1}", "train.learning_rate={peak: 0.005}"])
    counted = [row for row in rows(options.work / folder / "steps.csv") if row["phase"] == "train"][warm:]
    mean = lambda column: sum(float(row[column] or 0) for row in counted) / len(counted)
    computation = sum(mean(f"{action}_seconds") for action in (
        "head_forward", "body_forward", "tail_step", "body_backward", "head_backward"))
    raw = mean("raw_up_bytes") + mean("raw_down_bytes")
    wire = mean("wire_up_bytes") + mean("wire_down_bytes")
    server_folder = next((options.work / "store" / "local").glob(f"{result['run']}"))
    # The server writes its rows within a second; the `bye` row is the last.
    for _ in range(50):
        if any(row["phase"] == "bye" for row in rows(server_folder / "steps.csv")):
            break
        time.sleep(0.1)
    return {
        "codec": "none",
        "ratio by shape": wire / raw,
        "top-1 %": 100 * result["eval"]["top1"],
        "avg MiB/s": mean("wire_up_bytes") / computation / MIB,
        "peak client": peak(rows(options.work / folder / "transfers.csv"), "send") / MIB,
        "peak server": peak(rows(server_folder / "transfers.csv"), "recv") / MIB,
        "computation s": computation,
        "total s": mean("seconds"),
        "chunks": micro_batches,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("programs", "configs", "work"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with Server(options) as server:
        verify(options, server)
        table = []
        for micro_batches in (1, 4, 8):
            table.append(measure(options, server, micro_batches))
    print("\nMobileNetV2, client on the CPU, server on " + options.device + ", synthetic images (their top-1 is random at "
          "first). Bandwidths in MiB/s, of the uplink; avg: bytes of a batch / computation; peak: of one micro-batch's "
          "tensor; computation: of all of a batch's actions on both sides; total: of a step.\n")
    text = [COLUMNS] + [[f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS] for row in table]
    widths = [max(len(line[c]) for line in text) for c in range(len(COLUMNS))]
    for line in text:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


main()
