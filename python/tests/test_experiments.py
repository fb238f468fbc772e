"""Tests the configurations of the experiments on images and of GPT-2, with a few steps on generated files in the real formats.

PROGRAMS is the folder of cleave-client and cleave-server.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

import numpy
import torch
import torchvision
from PIL import Image

from cleave_split.safetensors_file import write_safetensors

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "configs", "experiments"))

import food101  # noqa: E402
import gpt2  # noqa: E402

CLIENT = os.path.join(os.path.abspath(os.environ.get("PROGRAMS", "build/release/bin")), "cleave-client")
SAMPLES = 16


def records(labels, classes, count):
    """Samples of CIFAR's binary files: the labels' bytes, then 3 x 32 x 32 bytes."""
    generator = numpy.random.default_rng(1)
    rows = generator.integers(0, 256, (count, labels + 3072), dtype=numpy.uint8)
    for label in range(labels):
        rows[:, label] = numpy.arange(count) % classes[label]
    return rows.tobytes()


def archive(files):
    """A .tar.gz file with these contents by name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return written.getvalue()


# Small images for which the tail of CIFAR's configurations, a 4 x 4 pooling, still has a window.
CROPPED = {"data.resize": 132, "data.crop": 128}


class Experiments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.makedirs(self.path("data"))
        torch.manual_seed(0)
        write_safetensors(torchvision.models.mobilenet_v2().state_dict(), self.path("data/mobilenet_v2.safetensors"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(content)

    def client(self, command, name, settings):
        """Runs a command with the experiment's configuration, in a folder with its data; returns its JSON."""
        options = [option for key, value in settings.items() for option in ("--set", f"{key}={value}")]
        self.run_folder = os.path.join(tempfile.mkdtemp(dir=self.folder), "run")
        ended = subprocess.run([CLIENT, command, "--config", os.path.join(ROOT, "configs/experiments", name + ".yaml"), "--json",
                                "--run-dir", self.run_folder, *options], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def trains(self, name, **overrides):
        """Runs the experiment's configuration for two steps, in a folder with its data."""
        summary = self.client("train", name, {"train.max_steps": 2, "eval.batch": 8, "data.resize": 64, **overrides})
        self.assertEqual(summary["steps"], 2)
        self.assertIn("top1", summary["eval"])

    def test_cifar10(self):
        for part in range(1, 6):
            self.write(f"data/cifar-10-batches-bin/data_batch_{part}.bin", records(1, [10], SAMPLES))
        self.write("data/cifar-10-batches-bin/test_batch.bin", records(1, [10], SAMPLES))
        for batch, micro_batches in ((64, 1), (64, 4), (64, 8)):
            with self.subTest(batch=batch, micro_batches=micro_batches):
                self.trains("cifar10", **{**CROPPED, "train.batch": batch, "train.micro_batches": micro_batches})

    def test_cifar100(self):
        self.write("data/cifar-100-binary/train.bin", records(2, [20, 100], 256))
        self.write("data/cifar-100-binary/test.bin", records(2, [20, 100], SAMPLES))
        self.trains("cifar100", **{**CROPPED, "train.batch": 128, "train.micro_batches": 8, "codec": "'sort:q=6,s=2,select=exact'"})

    def test_food101(self):
        generator = numpy.random.default_rng(2)
        names = {"train": [], "test": []}
        for number in range(101):
            for split in names:
                name = f"food_{number:03}/{len(names[split])}{'1' if split == 'train' else '2'}"
                os.makedirs(os.path.dirname(self.path(f"data/food-101/images/{name}")), exist_ok=True)
                pixels = generator.integers(0, 256, (80 + number % 7, 96, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(self.path(f"data/food-101/images/{name}.jpg"))
                names[split].append(name)
        for split, lines in names.items():
            self.write(f"data/food-101/meta/{split}.txt", "\n".join(lines).encode())
        food101.main(["--data", self.path("data/food-101")])
        self.trains("food101", **{"data.crop": 48, "train.batch": 50})

    def test_results(self):
        """results.py estimates the time of its runs, trains them and prints their table."""
        os.symlink(os.path.join(ROOT, "configs"), self.path("configs"))
        generator = numpy.random.default_rng(4)
        few = {"train.epochs": 1, "train.batch": 32, "train.micro_batches": 2, "train.learning_rate.warmup_epochs": 0}
        for split, count in (("train", 64), ("test", SAMPLES)):
            images, labels = generator.integers(0, 256, (count, 28, 28), dtype=numpy.uint8), numpy.arange(count, dtype=numpy.uint8) % 10
            for name, each in (("images", images), ("labels", labels)):
                self.write(f"{split}-{name}", b"\0\0\x08" + bytes([each.ndim]) + numpy.array(each.shape, ">u4").tobytes() + each.tobytes())
                few[f"data.{split}.{name}"] = self.path(f"{split}-{name}")
        ended = subprocess.run([sys.executable, os.path.join(ROOT, "configs/experiments/results.py"), "staleness", "--only", "D = 0", "--no-speed",
                                "--programs", os.path.dirname(CLIENT), *(option for key, value in few.items() for option in ("--set", f"{key}={value}"))],
                               cwd=self.folder, capture_output=True, text=True)  # fmt: skip
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("results: 3 runs are left", ended.stderr)
        self.assertIn("| D = 0 ", ended.stdout)

    def test_missing_files(self):
        """Experiments whose data cannot be downloaded here say what goes where."""
        os.symlink(os.path.join(ROOT, "configs"), self.path("configs"))
        for experiment in ("cifar10", "two_machines", "rte"):
            ended = subprocess.run([sys.executable, os.path.join(ROOT, "configs/experiments/results.py"), experiment, "--programs", os.path.dirname(CLIENT)],
                                   cwd=self.folder, capture_output=True, text=True)  # fmt: skip
            self.assertEqual(ended.returncode, 1)
            self.assertRegex(ended.stderr, rf"^{experiment} needs data/\S+: \w+")
            self.assertNotIn("Traceback", ended.stderr)

    def test_data_parallel(self):
        script = os.path.join(ROOT, "configs/experiments/data_parallel.py")
        ended = subprocess.run([sys.executable, script, "--model", "mobilenet_v2", "--devices", "2", "--batch", "5", "--steps", "1"],
                               capture_output=True, text=True)  # fmt: skip
        self.assertEqual(ended.returncode, 0, ended.stderr)
        found = json.loads(ended.stdout)
        self.assertEqual(len(found["peak_bytes"]), 2)
        self.assertAlmostEqual(found["samples_per_second"], 5 / found["seconds"])
        self.assertAlmostEqual(found["seconds"], found["forward"] + found["backward"] + found["update"], delta=0.5 * found["seconds"])
        model = torchvision.models.mobilenet_v2(num_classes=10)
        self.assertEqual(found["gradient_bytes"], 4 * sum(each.numel() for each in model.parameters()))

    def test_gpt2(self):
        generator = numpy.random.default_rng(3)
        words = numpy.array("the a film story keyboard player works never again , . !".split())
        ratings = {f"hutto_ICWSM_2014/{name}_GroundTruth.txt":
                       "".join(f"{group}_{row}\t0.5\t{' '.join(words[generator.integers(0, len(words), 12)])}\n" for group in range(20) for row in range(8))
                   for name in ("movieReviewSnippets", "nytEditorialSnippets", "amazonReviewSnippets")}
        inner = archive({name: text.encode() for name, text in ratings.items()})
        self.write("vaderSentiment.tar.gz", archive({"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": inner}))
        gpt2.main(["--output", self.path("experiments/gpt2"), "--source", self.path("vaderSentiment.tar.gz"), "--vocabulary", "280", "--length", "16",
                   "--width", "32", "--heads", "2"])
        few = {"data.length": 16, "train.max_steps": 2, "eval.batch": 8}
        self.assertTrue(self.client("verify", "gpt2", few)["equal"])
        self.assertEqual(self.client("train", "gpt2", few)["main_metric"], "perplexity")
        base = {"weights.file": self.run_folder + "/model.safetensors", **few}
        self.assertTrue(self.client("verify", "gpt2_lora", base)["equal"])
        adapted = self.client("train", "gpt2_lora", {**base, "codec": "block:bits=4"})
        self.assertEqual(adapted["steps"], 2)
        self.assertIn("perplexity", adapted["eval"])
        self.assertNotIn("gradient/0", adapted["codec"])
        self.assertTrue(os.path.exists(os.path.join(self.run_folder, "adapter/adapter_model.safetensors")))
        self.assertEqual(self.client("train", "gpt2_lora", {**base, "model.lora.rank": 0})["steps"], 2)


if __name__ == "__main__":
    unittest.main()
