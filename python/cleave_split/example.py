"""Trains on real images, with nothing but this package: python -m cleave_split.example [--epochs N] [--run-dir DIR]"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any, Dict

from cleave_split import Error, train

# The folders that may have the images: the package, and Debian's package dataset-fashion-mnist.
FOLDERS = [pathlib.Path(__file__).parent / "example", pathlib.Path("/usr/share/datasets/fashion-mnist")]
CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def configuration(folder: pathlib.Path) -> Dict[str, Any]:
    """A small CNN on 8,000 of the 10,000 test images of Fashion-MNIST; the other 2,000 are held out. The server has the middle layers."""
    files = {"images": folder / "t10k-images-idx3-ubyte.gz", "labels": folder / "t10k-labels-idx1-ubyte.gz"}
    return {
        "run": {"name": "example"},
        "model": {"name": "small_cnn", "width": 16, "dropout": 0.1, "cuts": [4, 13]},
        "data": {"format": "idx", "classes": 10, "class_names": CLASSES, "mean": 0.2860, "std": 0.3530, "train": files, "holdout": 2000},
        "train": {"batch": 64, "epochs": 6, "optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
                  "learning_rate": {"schedule": "cosine", "peak": 0.05, "warmup_epochs": 0.5}},
        "codec": "block:bits=8",
        "keep": {"best": "top1"},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cleave_split.example", description="Trains a small CNN on real images with a server of its own.")
    parser.add_argument("--epochs", type=int, default=6, help="default: 6")
    parser.add_argument("--run-dir", help="the run's folder; default: runs/<run id>")
    options = parser.parse_args()
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    try:
        if folder is None:
            raise Error("no-images", "this installation has no example images", "install the wheel, or on Debian: apt install dataset-fashion-mnist")
        run = train(configuration(folder), settings={"train.epochs": options.epochs}, run_dir=options.run_dir, on_progress=_print_epoch)
    except Error as error:
        print(error, file=sys.stderr)
        return error.exit_code
    report = run.report()
    print(f"the run is in {run.path}, its charts are in {report.path}")
    return 0


def _print_epoch(event: Dict[str, Any]) -> None:
    if event["event"] == "epoch":
        print(f"\repoch {event['epoch']} of {event['epochs']}: eval loss {event['eval_loss']:.4f}, top1 {100 * event['eval_top1']:.2f} %", flush=True)


if __name__ == "__main__":
    sys.exit(main())
