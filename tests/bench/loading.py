"""Measures whether training on JPEG files waits for data. Trains on a folder of images of 500 x 375 pixels, with RandomResizedCrop to 224 x
224 and flips. Client and server wait instead of computing, for as long as a step takes at 100 images per second.

All files are copies of tests/bench/photo.jpg. The wait for data is the time between two training steps on the client, minus the same time
in a run with synthetic data, which costs almost no time. The first two steps are not counted. Called by scripts/bench.sh loading."""

import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import tempfile

from machine import Others, conclude

PHOTO = pathlib.Path(__file__).parent / "photo.jpg"
MICRO_BATCHES = 4
CLASSES = 4


def photos(folder, count):
    content = PHOTO.read_bytes()
    for split, size in (("train", count), ("test", CLASSES)):
        for index in range(size):
            path = folder / split / f"class{index % CLASSES}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return {"format": "folder", "train": {"folder": str(folder / "train")}, "test": {"folder": str(folder / "test")}, "resize": 256,
            "crop": 224, "mean": "imagenet", "std": "imagenet", "augment": {"crop_scale": [0.08, 1.0], "flip": True}}


def synthetic(count):
    return {"format": "synthetic", "shape": [3, 224, 224], "classes": CLASSES, "train": {"size": count}, "test": {"size": CLASSES}}


def measure(options, data, folder):
    """Returns the median seconds between two steps and the median seconds of a step."""
    each = 1e3 * options.batch / options.rate / MICRO_BATCHES  # ms of all actions of a micro-batch on the client
    config = folder / "run.yaml"
    config.write_text(json.dumps({
        "model": {"name": "sleep", "of": "mobilenet_v2", "F1": 0.3 * each, "T3": 0.3 * each, "B1": 0.4 * each, "F2": 0.2 * each, "B2": 0.2 * each},
        "data": data, "eval": {"every": 0}, "codec": "block:bits=8", "checkpoint": {"every_seconds": 0},
        "train": {"batch": options.batch, "micro_batches": MICRO_BATCHES, "learning_rate": {"schedule": "constant", "peak": 0.01},
                  "epochs": options.steps, "max_steps": options.steps}}))
    run = pathlib.Path(tempfile.mkdtemp(dir=folder))
    server = subprocess.Popen([f"{options.programs}/cleave-server", "serve", "--set", "listen.port=0", "--set", "models.allow=[sleep]",
                               "--set", "limits.memory_mib=20000",  # admission counts the body's memory, although the body only waits
                               "--set", f"store={run}/store"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = next(line.split()[-1] for line in server.stdout if " listens on " in line)
    subprocess.run([f"{options.programs}/cleave-client", "train", "--config", config, "--server", address, "--run-dir", run / "run",
                    "--quiet"], stdout=subprocess.DEVNULL, check=True)
    server.terminate()
    server.wait()
    with open(run / "run" / "steps.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "train"][2:]
    return [statistics.median(float(row[name]) for row in rows) for name in ("between_seconds", "seconds")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=100, help="images per second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    rows = []
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        variants = {"synthetic": synthetic(options.batch * 4), "folder": photos(folder / "photos", options.batch * 4)}
        runs = {name: [] for name in variants}
        for _ in range(options.rounds):
            for name, data in variants.items():
                runs[name].append(measure(options, data, folder))
    print(f"{'data':<12}{'between steps ms':>18}{'step ms':>10}{'images/s':>10}")
    for name, values in runs.items():
        between, step = (statistics.median(each) for each in zip(*values))
        rows.append({"data": name, "between_seconds": between, "step_seconds": step})
        print(f"{name:<12}{1e3 * between:>18.2f}{1e3 * step:>10.1f}{options.batch / (step + between):>10.1f}")
    conclude(others.share(), rows, options.json)


if __name__ == "__main__":
    main()
