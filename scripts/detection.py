#!/usr/bin/env python3
"""Measures what privacy.detect finds, on Fashion-MNIST: honest servers, servers that mix foreign gradients into the model's, and a server that
attacks with FSHA. Prints a table of each. Needs PyTorch and the built programs. Example:

  .deps/python/bin/python scripts/detection.py --programs build/release/bin --output detection-results
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/hostile")]

import torch  # noqa: E402
from hijack import Hijacker, Server  # noqa: E402
from privacy import part  # noqa: E402

from cleave_split.privacy.recording import Recording  # noqa: E402
from cleave_split.privacy.simulators import Fsha  # noqa: E402

HEAD = 4  # blocks before the first cut
SETTINGS = {"model.width": 8, "model.cuts": [HEAD, 13], "train.batch": 64, "train.micro_batches": 1, "train.optimizer": "{name: adam}", "eval.every": 0,
            "train.learning_rate": "{schedule: constant, peak: 0.001}", "threads": "{client: 1, server: 1}"}  # fmt: skip
CODECS = ("none", "block:bits=8", "block:bits=4", "topk:ratio=0.1", "power:rank=2,iterations=2")
ACTIVATION = (8, 14, 14)


def client(programs, run, port, *options, **settings):
    """Trains, or continues the run. Returns the exit code and what the client said."""
    resumes = (run / "config.yaml").exists()
    words = ["--resume", run] if resumes else ["--config", ROOT / "configs/fashion_mnist.yaml", "--run-dir", run]
    values = settings if resumes else {**SETTINGS, **settings}
    ended = subprocess.run([programs / "cleave-client", "train", *words, "--server", f"127.0.0.1:{port}", *options,
                            *(f"--set={key.replace('__', '.')}={value}" for key, value in values.items())], capture_output=True, text=True)  # fmt: skip
    if ended.returncode != 0 and "[foreign-gradients]" not in ended.stderr:
        sys.exit(f"detection.py: the client failed: {ended.stderr}")
    return ended.returncode, ended.stderr


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def honest(programs, folder, server, seeds):
    print("| Codec | Runs | Checked steps | Lowest agreement of gradient/0 | Alarms |\n|---|---|---|---|---|")
    for codec in CODECS:
        checks, lowest, alarms = 0, 1.0, 0
        for seed in range(1, seeds + 1):
            run = fresh(folder / f"honest{seed}")
            code, _ = client(programs, run, server.port, codec=codec, run__seed=seed, train__max_steps=200, privacy__detect="true", privacy__detect_every=2)
            alarms += code != 0
            if code == 0:
                found = json.loads((run / "summary.json").read_text())["detection"]
                checks += found["checks"]
                lowest = min(lowest, found["lowest_agreement"]["gradient/0"])
        print(f"| `{codec}` | {seeds} | {checks} | {lowest:.6f} | {alarms} |", flush=True)


def mixed(share, generator):
    def change(_step, _micro_batch, _activation, payload):
        gradient = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        noise = torch.randn(len(gradient), generator=generator)
        return (gradient + share * gradient.norm() / noise.norm() * noise).numpy().tobytes()

    return change


def mixtures(programs, folder, server, seeds):
    print("| Foreign part, relative to the model's gradient | Runs | Ended | In the first check |\n|---|---|---|---|")
    for share in (0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0, 3.0):
        ended, first = 0, 0
        for seed in range(1, seeds + 1):
            proxy = Hijacker(server.port, mixed(share, torch.Generator().manual_seed(seed)))
            code, said = client(programs, fresh(folder / f"mixed{seed}"), proxy.port, "--log-level", "debug", codec="none", run__seed=seed, train__max_steps=60,
                                privacy__detect="true", privacy__detect_every=5)  # fmt: skip
            proxy.close()
            ended += code == 1 and "foreign-gradients" in said
            first += code == 1 and len(re.findall("privacy.detect: step [0-9]+, gradient/0", said)) == 1
        print(f"| {share:g} | {seeds} | {ended} | {first} |", flush=True)


def attacker(seed, inputs):
    generator = torch.Generator().manual_seed(seed)
    server = Fsha(lambda: part(0, HEAD).train(), inputs, generator)

    def change(_step, _micro_batch, activation, payload):
        received = torch.frombuffer(bytearray(activation), dtype=torch.float32)
        shape = (-1, ACTIVATION[1], ACTIVATION[2], ACTIVATION[0])  # channels last, as on the link
        gradient = server.gradient(received.reshape(shape).permute(0, 3, 1, 2).contiguous())
        changed = gradient.permute(0, 2, 3, 1).contiguous().numpy().tobytes()
        assert len(changed) == len(payload)
        return changed

    return server, change


def public_images(programs, folder, server):
    """2,048 images of the test set: other ones than the client's."""
    run, recording = fresh(folder / "public"), fresh(folder / "public-recording")
    client(programs, run, server.port, "--record-traffic", recording, "--record-inputs", codec="none", train__max_steps=32,
           **{f"data__train__{which}s": f"/usr/share/datasets/fashion-mnist/t10k-{which}s-idx{dims}-ubyte.gz" for which, dims in (("image", 3), ("label", 1))})
    images, _, _ = Recording(recording).inputs()
    return next(iter(images.values()))


def r2(guess, truth):
    return 1 - ((guess - truth).square().sum() / (truth - truth.mean(0)).square().sum()).item()


def fsha(programs, folder, server, seeds):
    inputs = public_images(programs, folder, server)
    print("| Steps of the attack | R2 of the images that the server reconstructs |\n|---|---|")
    attack, change = attacker(1, inputs)
    proxy, run = Hijacker(server.port, change), fresh(folder / "fsha")
    for steps in (25, 50, 100, 200, 400, 800, 1600):
        client(programs, run, proxy.port, codec="none", train__max_steps=steps, train__epochs=4)
        recording = fresh(folder / "fsha-recording")
        client(programs, run, proxy.port, "--record-traffic", recording, "--record-inputs", "--record-steps", str(steps + 4), train__max_steps=steps + 4)
        found = Recording(recording)
        activation, _ = found.read("activation/0")
        images, _, _ = found.inputs()
        print(f"| {steps} | {r2(attack.reconstruction(activation), next(iter(images.values()))):.2f} |", flush=True)
    proxy.close()

    print("| Runs | Ended | Step in which, median | last |\n|---|---|---|---|")
    steps = []
    for seed in range(1, seeds + 1):
        proxy = Hijacker(server.port, attacker(seed, inputs)[1])
        code, said = client(programs, fresh(folder / f"detect{seed}"), proxy.port, codec="none", run__seed=seed, train__max_steps=300, privacy__detect="true")
        proxy.close()
        found = re.search("error \\[foreign-gradients\\]: gradient/0 of step ([0-9]+)", said)
        steps += [int(found[1])] if code == 1 and found else []
    print(f"| {seeds} | {len(steps)} | {sorted(steps)[len(steps) // 2] if steps else '-'} | {max(steps, default='-')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/release/bin", help="the folder of the programs")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("detection-results"))
    parser.add_argument("--seeds", type=int, default=20, help="runs per row")
    parser.add_argument("--only", action="append", choices=("honest", "mixtures", "fsha"), help="only this table; repeatable")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(options.programs.resolve(), folder)
    try:
        for name, measure in (("honest", honest), ("mixtures", mixtures), ("fsha", fsha)):
            if not options.only or name in options.only:
                measure(options.programs.resolve(), folder, server, options.seeds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
