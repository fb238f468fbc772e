#!/usr/bin/env python3
"""A client with privacy.detect against a server that sends other gradients than the model's (hijack.py), and against honest servers."""
import argparse
import array
import json
import pathlib
import random
import struct
import subprocess
import tempfile

import hijack

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each side's own tensors, lossy ones, and those whose codecs keep state or samples.
CODECS = {
    "none": "none", "block": "block:bits=2", "topk": "topk:ratio=0.05", "power": "power:rank=2", "rans": "rans(channels(adaptive:bits=1))",
    "delta": "{activation/0: 'delta(block:bits=4)', activation/1: 'delta:first_bits=4,skip=1(block:bits=1)', gradient/0: 'block:bits=4', "
             "gradient/1: 'block:bits=4'}",
}  # fmt: skip
MODELS = ["model={name: mlp, width: 16, depth: 3, dropout: 0.3}", "model={name: small_cnn, width: 4}"]


class Client:
    """Each run has 16 steps, and all of them are checked."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.runs = programs, folder, 0

    def train(self, *settings, port=None):
        self.runs += 1
        run = self.folder / f"run{self.runs}"
        settings = ["privacy.detect=true", "privacy.detect_every=1", "data.shape=[1, 16, 16]", "data.train.size=128", "data.test.size=64", "train.epochs=4",
                    "train.learning_rate.peak=0.01", *settings]  # fmt: skip
        ended = subprocess.run([self.programs / "cleave-client", "train", "--config", ROOT / "configs/synthetic.yaml", "--run-dir", run,
                                *([] if port is None else ["--server", f"127.0.0.1:{port}"]), *(f"--set={each}" for each in settings)],
                               capture_output=True, text=True)  # fmt: skip
        return run, ended.returncode, ended.stderr


def model_of(run):
    """The tensors, and their names and places in the file, without the metadata, which has the run's name."""
    data = (run / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, data[8 + size :]


def honest(client):
    """No run is ended, and the model is that of a run without checks."""
    for name, codec in CODECS.items():
        for model in MODELS:
            for seed in (1, 2):
                settings = [f"codec={codec}", model, f"run.seed={seed}"]
                run, code, errors = client.train(*settings)
                assert code == 0, f"{name}: {errors}"
                found = json.loads((run / "summary.json").read_text())["detection"]
                assert found["checks"] == 16 and found["unanswered"] == 0, found
                if seed > 1 or name not in ("none", "power", "delta"):
                    continue
                other, code, errors = client.train(*settings, "privacy.detect=false")
                assert code == 0, errors
                assert model_of(run) == model_of(other), f"{name}: another model"


def mixed(share):
    """The model's gradient plus a random one of `share` times its length."""

    def change(_step, _micro_batch, _activation, payload):
        gradient = array.array("f", payload)
        noise = [random.gauss(0, 1) for _ in gradient]
        factor = share * (sum(x * x for x in gradient) / sum(x * x for x in noise)) ** 0.5
        return array.array("f", [x + factor * y for x, y in zip(gradient, noise, strict=True)]).tobytes()

    return change


def hijacked(client, server):
    """A gradient of which an eighth of the length is foreign passes, and one of which a third is does not."""
    for share, expected in ((0.125, 0), (1 / 3, 1), (10, 1)):
        for model in MODELS:
            proxy = hijack.Hijacker(server.port, mixed(share))
            run, code, errors = client.train("codec=none", model, port=proxy.port)
            proxy.close()
            assert proxy.changed >= 4, proxy.changed
            assert code == expected, f"{share}: {errors}"
            assert ("foreign-gradients" in errors) == (expected == 1), errors
            assert (run / "model.safetensors").exists() == (expected == 0)


def refused(client, without_fetch):
    _, code, errors = client.train(port=without_fetch.port)
    assert code == 1 and "fetch-not-allowed" in errors and "weights.fetch: true" in errors, errors
    for settings, hint in ((["train.staleness=1"], "train.staleness=0"), (["train.ema=0.9"], "train.ema=0"), (["model.cuts=[2, 3, 5]"], "use one server"),
                           (["train.freeze=['fc1*']", "model.cuts=[1, 2]"], "train the head")):  # fmt: skip
        _, code, errors = client.train(*settings)
        assert code == 2 and "bad-detection" in errors and hint in errors, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="the folder of the programs")
    programs = parser.parse_args().programs.resolve()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        client = Client(programs, folder)
        servers = [hijack.Server(programs, folder / "a"), hijack.Server(programs, folder / "b", "--set=weights.fetch=false")]
        try:
            honest(client)
            hijacked(client, servers[0])
            refused(client, servers[1])
        finally:
            for server in servers:
                server.stop()
    print(f"{client.runs} runs")


if __name__ == "__main__":
    main()
