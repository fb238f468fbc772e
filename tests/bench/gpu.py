#!/usr/bin/env python3
"""Runs the server on a GPU, and the client on the CPU or the same GPU. The part `verify` compares split and whole model; `resume` checks
that a run whose server and client are killed ends with the weights of an undisturbed run; `benchmarks` measures MobileNetV2 at 224 x 224,
batch 64, in 1, 4 and 8 micro-batches, and RoBERTa-base with 32 samples of 128 tokens in each precision, if python3 has Transformers. Prints
tables. Called by scripts/gpu.sh."""
import argparse
import csv
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

# Maximum of |split - whole| / |whole| for each kind of result after 3 steps in fp32. GPU kernels sum in a different order than the CPU. If
# that changes the sign of an input of ReLU, its gradient changes by its full size, and batch norm over few values amplifies it: in one step
# of MobileNetV2 on the CPU, one rounding error per input changes gradients by 0.4 to 1.5 %. So its learning rate is small here.
TOLERANCE = 1e-3
TOLERANCES = {"mobilenet_v2": 0.05}
MIB = 1 << 20
SMALL_CNN = ["model={name: small_cnn}", "data.shape=[1, 28, 28]"]
ACTIONS = ("head_forward", "body_forward", "tail_step", "body_backward", "head_backward")


def environment(fail):
    """For a program that is killed at the failpoint `fail`; None: it is not killed."""
    return {**os.environ, **({"CLEAVE_FAIL": fail} if fail else {})}


class Failed(Exception):
    """A program failed; the message says which."""


class Server:
    def __init__(self, options, port=0, fail=None):
        self.process = subprocess.Popen(
            [options.programs / "cleave-server", "serve", "--config", options.configs / "server.yaml", "--set",
             f"listen.port={port}", "--set", f"store={options.work}/store", "--set", f"device={options.device}", "--set",
             "limits.memory_mib=32768", "--set", "models.allow=[mlp, small_cnn, mobilenet_v2, graph]",
             "--set", "models.unconfined=true", "--log-level", "warn"],
            stdout=subprocess.PIPE, text=True, env=environment(fail))
        line = self.process.stdout.readline()
        if " listens on " not in line:
            raise Failed(f"cleave-server did not start (exit code {self.process.wait()})")
        self.address = line.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def client_command(options, command, folder, server, settings):
    arguments = [options.programs / "cleave-client", command, "--config", options.configs / "synthetic.yaml", "--server",
                 server.address, "--run-dir", options.work / folder, "--json", "--log-level", "warn"]
    for setting in settings:
        arguments += ["--set", setting]
    return arguments


def client(options, command, folder, server, settings, fail=None):
    """Runs the client, and returns its result, or None if it was killed as `fail` says."""
    arguments = client_command(options, command, folder, server, settings)
    if command == "verify" and options.device != "cpu":
        arguments += ["--tolerance", "1"]  # verify() below compares
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=environment(fail))
    if fail and ended.returncode == -signal.SIGKILL:
        return None
    if ended.returncode != 0:
        print(ended.stdout)
        raise Failed(f"{command} failed with exit code {ended.returncode}")
    return json.loads(ended.stdout)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def step_means(options, folder, warm):
    """A function that returns the mean of a column of steps.csv over the training steps, without the first `warm` ones: in these, memory
    is allocated and kernels are selected."""
    counted = [row for row in rows(options.work / folder / "steps.csv") if row["phase"] == "train"][warm:]
    return lambda column: sum(float(row[column] or 0) for row in counted) / len(counted)


def verify(options):
    with Server(options) as server:
        return verify_models(options, server)


def verify_models(options, server):
    exported = f"model={{name: graph, file: {options.model}, cuts: [norm, dropout]"
    models = {
        "mlp": ["model={name: mlp}"],
        "small_cnn": SMALL_CNN,
        "small_cnn, staleness 2": [*SMALL_CNN, "train.staleness=2"],
        "small_cnn, schedule zb, codec block": [*SMALL_CNN, "train.schedule=zb", "codec=block:bits=8"],
        "small_cnn, recompute": [*SMALL_CNN, "train.recompute=true"],
        "mobilenet_v2": ["model={name: mobilenet_v2}", "data.shape=[3, 56, 56]", "train.batch=16", "eval.batch=16",
                         "train.micro_batches=2", "train.learning_rate.peak=1e-5"],
        "exported": [exported + "}"],
        "exported, LoRA, frozen": [exported + ", lora: {rank: 2, dropout: 0.1, targets: [classifier]}}", "train.freeze=['*', '!block.*']"],
    }
    failed = []
    for name, settings in models.items():
        # LibTorch draws other random numbers on a GPU, and the exported model has dropout, so whole and split model need the same device.
        for device in dict.fromkeys([options.device] if name.startswith("exported") else ["cpu", options.device]):
            folder = re.sub("[^a-z0-9]+", "-", f"verify-{name}-{device}")
            try:
                result = client(options, "verify", folder, server, [*settings, f"device={device}"])
            except Failed as failure:
                print(f"verify {name}, client on {device}: {failure}", flush=True)
                failed.append(f"verify {name}, client on {device}")
                continue
            worst = max(kind["relative_difference"] for kind in result["compared"].values())
            allowed = 0 if device == options.device else TOLERANCES.get(name, TOLERANCE)
            print(f"verify {name}, client on {device}: " + ("bit-identical" if result["equal"] and worst == 0 else ", ".join(
                f"{kind} within {value['relative_difference']:.2g}" for kind, value in result["compared"].items()) +
                f" (allowed: {allowed:g})"), flush=True)
            if worst > allowed:
                failed.append(f"verify {name}, client on {device}")
    return failed


def check_resume(options):
    """Compares the weights of four runs: two undisturbed ones, one whose server is killed and restarted, and one whose client is killed and
    resumed."""
    settings = [*SMALL_CNN, f"device={options.device}", "checkpoint.every_steps=5", "train.max_steps=40", "codec=block:bits=8",
                "train.optimizer={name: adam}", "train.learning_rate.peak=0.001"]
    weights = lambda folder: hashlib.sha256((options.work / folder / "model.safetensors").read_bytes()).hexdigest()
    with Server(options) as server:
        for folder in ("undisturbed", "again"):
            client(options, "train", folder, server, settings)
        client(options, "train", "client-killed", server, settings, fail="committed:3:kill")
        arguments = [options.programs / "cleave-client", "train", "--resume", options.work / "client-killed", "--quiet"]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    with Server(options, fail="batch:17:kill") as server:
        running = subprocess.Popen(client_command(options, "train", "server-killed", server, settings), stdout=subprocess.DEVNULL)
        server.process.wait(timeout=300)
        with Server(options, port=server.address.rsplit(":", 1)[1]):
            if running.wait() != 0:
                raise Failed("the run whose server was killed")
    failed = [folder for folder in ("again", "client-killed", "server-killed") if weights(folder) != weights("undisturbed")]
    for folder in failed:
        print(f"resume, {folder}: other weights than the undisturbed run", flush=True)
    if not failed:
        print("resume: after a killed client and a killed server, the same weights as without", flush=True)
    return failed


def peak(transfers, role):
    """The maximum throughput of a single micro-batch's tensor, bytes per second."""
    return max(int(row["wire_bytes"]) / float(row["wire_seconds"]) for row in transfers
               if row["role"] == role and row["wire_seconds"] and float(row["wire_seconds"]) > 0
               and row["flow"] in ("activation/0", "gradient/1"))


def measure(options, server, micro_batches):
    size, batch, steps = (64, 8, 4) if options.short else (224, 64, 12)
    folder = f"bench-{micro_batches}"
    result = client(options, "train", folder, server, [
        "codec=none", "model={name: mobilenet_v2, tail: " + ("global" if options.short else "prototype") + "}",
        f"data.shape=[3, {size}, {size}]", f"data.train.size={batch * steps}", f"data.test.size={batch}",
        f"train.batch={batch}", f"eval.batch={batch}", f"train.micro_batches={micro_batches}", "train.epochs=1",
        "train.optimizer={name: sgd, momentum: 0.1}", "train.learning_rate={peak: 0.005}"])
    mean = step_means(options, folder, warm=2)
    computation = sum(mean(f"{action}_seconds") for action in ACTIONS)
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


def measure_precision(options, server, folder, precision, adapters, micro_batches):
    """Step time of RoBERTa-base at the publication's partition 1, with the client on the same device."""
    settings = ["model={name: graph, file: " + str(options.work / "roberta/model.pt2") + ", cuts: [roberta.encoder.layer.0, "
                "roberta.encoder.layer.10]" + (", lora: {rank: 8, alpha: 16, targets: [query, value]}" if adapters else "") + "}",
                "data={format: tensors, train: {file: " + str(options.work / "roberta/train.safetensors") + "}, test: {file: " +
                str(options.work / "roberta/test.safetensors") + "}}",
                "train.batch=32", f"train.micro_batches={micro_batches}", "train.epochs=1", "train.optimizer={name: adamw}", "eval.batch=32",
                "train.learning_rate={peak: 2.0e-5}", "codec=" + ("none" if precision == "fp32" else "bf16"), f"device={options.device}",
                f"precision={{client: {precision}, server: {precision}}}", "eval.every=0"]
    client(options, "train", folder, server, settings)
    mean = step_means(options, folder, warm=4)
    return {"precision": precision + (", LoRA" if adapters else ""), "M": micro_batches, "step s": mean("seconds"), "samples/s": 32 / mean("seconds"),
            **{f"{action} s": mean(f"{action}_seconds") for action in ACTIONS},
            "MB up": mean("wire_up_bytes") / 1e6, "MB down": mean("wire_down_bytes") / 1e6}


def print_table(table):
    columns = list(table[0])
    text = [columns] + [[f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in table]
    widths = [max(len(line[c]) for line in text) for c in range(len(columns))]
    for line in text:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), flush=True)


def measure_all(options):
    with Server(options) as server:
        table = [measure(options, server, micro_batches) for micro_batches in (1, 4, 8)]
    print("\nMobileNetV2, client on the CPU, server on " + options.device + ", synthetic images (their top-1 is random at "
          "first). Bandwidths in MiB/s, of the uplink; avg: bytes of a batch / computation; peak: of one micro-batch's "
          "tensor; computation: of all of a batch's actions on both sides; total: of a step.\n")
    print_table(table)
    precisions = []
    if importlib.util.find_spec("transformers") and not options.short:
        subprocess.run([sys.executable, options.roberta, "--output", options.work / "roberta"], check=True)
        with Server(options) as server:
            for number, variant in enumerate([("fp32", False, 1), ("bf16", False, 1), ("fp16", False, 1), ("bf16", True, 1),
                                              ("fp32", False, 4), ("bf16", False, 4)]):
                precisions.append(measure_precision(options, server, f"roberta-{number}", *variant))
        print("\nRoBERTa-base with random weights, 32 samples of 128 tokens in M micro-batches, client and server on " + options.device +
              ". All times are per step.\n")
        print_table(precisions)
    if options.json:
        options.json.write_text(json.dumps({"mobilenet_v2": table, "roberta": precisions}, indent=2) + "\n")
    return []


PARTS = {"verify": verify, "resume": check_resume, "benchmarks": measure_all}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    for name in ("programs", "configs", "work", "model", "roberta"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    try:
        failed = PARTS[options.part](options)
    except Failed as failure:
        failed = [str(failure)]
    if failed:
        sys.exit("gpu.py: failed: " + "; ".join(failed))


main()
