"""Tests the event files for TensorBoard, and the scripts of python/examples for MLflow and Weights & Biases.

PROGRAMS is the folder of cleave-client and cleave-server. MLflow and Weights & Biases are replaced by stubs.
"""

import csv
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest

try:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
except ImportError:
    EventAccumulator = None

PROGRAMS = os.environ.get("PROGRAMS", "build/release/bin")
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
SETTINGS = {
    "model": {"name": "mlp", "width": 16},
    "data": {"format": "synthetic", "shape": [8], "classes": 4, "train": {"size": 256}, "test": {"size": 64}},
    "train": {"batch": 16, "epochs": 3, "clip_norm": 1},
    "eval": {"every": 2},
    "codec": "none",
    "threads": {"client": 1, "server": 1},
    "keep": {"best": "top1"},
    "metrics": {"tensorboard": True},
}


def rows(folder, name):
    with open(os.path.join(folder, name), newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def single(value):
    """Rounds to a 32-bit float."""
    return struct.unpack("f", struct.pack("f", float(value)))[0]


class Runs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.run_folder = self.folder / "run"

    def command(self, *arguments, **changes):
        (self.folder / "run.yaml").write_text(json.dumps({**SETTINGS, **changes}))  # JSON is YAML
        return [os.path.join(PROGRAMS, "cleave-client"), "train", *arguments]

    def train(self, *arguments, **changes):
        command = self.command("--config", str(self.folder / "run.yaml"), "--run-dir", str(self.run_folder), *arguments, **changes)
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout


@unittest.skipIf(EventAccumulator is None, "tensorboard is not installed")
class TensorBoard(Runs):
    def scalars(self):
        events = EventAccumulator(str(self.run_folder / "tensorboard"), size_guidance={SCALARS: 0})
        events.Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def agrees_with_the_files(self):
        """Compares all scalars with steps.csv and epochs.csv; if a step has several rows, the last one counts."""
        scalars = self.scalars()
        steps = {int(row["step"]): row for row in rows(self.run_folder, "steps.csv") if row["phase"] == "train"}
        epochs = {int(row["epoch"]): row for row in rows(self.run_folder, "epochs.csv")}

        def is_close(one, other):
            self.assertAlmostEqual(one, other, delta=1e-6 * abs(other) + 1e-30)

        def compare(tag, expected):
            expected = [(step, value) for step, value in expected if value != ""]
            if not expected:
                return self.assertNotIn(tag, scalars)
            self.assertEqual([step for step, _ in scalars[tag]], [step for step, _ in expected], tag)
            for (_, value), (_, other) in zip(scalars[tag], expected):
                is_close(value, single(other))

        columns = {"train/loss": "loss", "train/top1": "top1", "train/top5": "top5", "train/learning_rate": "learning_rate",
                   "train/gradient_norm": "gradient_norm", "speed/step_seconds": "seconds"}  # fmt: skip
        for tag, column in columns.items():
            compare(tag, [(step, row[column]) for step, row in sorted(steps.items())])
        for way in ("up", "down"):
            sums = [(step, float(row[f"wire_{way}_bytes"]) + float(row[f"control_{way}_bytes"])) for step, row in sorted(steps.items())]
            compare(f"link/{way}_bytes", sums)
        compare("speed/samples_per_second", [(step, float(row["samples"]) / float(row["seconds"])) for step, row in sorted(steps.items())])
        for (_, wait), row in zip(scalars["speed/wait_seconds"], (steps[step] for step in sorted(steps))):
            self.assertTrue(0 <= wait <= single(row["seconds"]))
        ends, end = [], 0
        for _, row in sorted(epochs.items()):
            end += int(row["steps"])
            ends.append((end, row))
        for metric in ("loss", "top1", "top5"):
            compare(f"epoch/train_{metric}", [(end, row[f"train_{metric}"]) for end, row in ends])
            compare(f"eval/{metric}", [(end, row[f"eval_{metric}"]) for end, row in ends])
        compare("epoch/number", [(end, row["epoch"]) for end, row in ends])
        return scalars

    def test_scalars_equal_the_csv_files(self):
        self.train()
        scalars = self.agrees_with_the_files()
        summary = json.loads((self.run_folder / "summary.json").read_text())
        self.assertEqual(summary["tensorboard"], str(self.run_folder / "tensorboard"))
        # keep.best: the first of the best evaluations.
        best = max((float(row["eval_top1"]), -int(row["epoch"])) for row in rows(self.run_folder, "epochs.csv") if row["eval_top1"])
        self.assertAlmostEqual(summary["kept"]["value"], best[0], places=6)
        self.assertEqual((summary["kept"]["epoch"], summary["kept"]["metric"]), (-best[1], "top1"))
        self.assertEqual(summary["eval"]["best_epoch"], -best[1])
        self.assertEqual(len(scalars["train/loss"]), 3 * 16)
        self.assertEqual([step for step, _ in scalars["eval/loss"]], [32, 48])
        # What TensorBoard's own pages use.
        runs = EventMultiplexer()
        runs.AddRunsFromDirectory(str(self.folder))
        runs.Reload()
        text = runs.Tensors("run/tensorboard", "config.yaml")[0].tensor_proto.string_val[0].decode()
        self.assertIn("clip_norm: 1", text)
        self.assertEqual(runs.SummaryMetadata("run/tensorboard", "config.yaml").plugin_data.plugin_name, "text")

    def test_repeated_steps_count_once(self):
        waits = {part: 15 for part in ("F1", "T3", "B1", "F2", "B2")}
        changes = {"model": {"name": "sleep", "of": "mlp", "width": 16, **waits}, "checkpoint": {"every_seconds": 0, "every_steps": 10}, "train": {**SETTINGS["train"], "micro_batches": 1}}
        command = self.command("--config", str(self.folder / "run.yaml"), "--run-dir", str(self.run_folder), **changes)
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(client.wait)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        deadline = time.time() + 120
        while not (self.run_folder / "steps.csv").exists() or len(rows(self.run_folder, "steps.csv")) < 17:
            self.assertLess(time.time(), deadline)
            self.assertIsNone(client.poll())
            time.sleep(0.05)
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
        ended = subprocess.run(self.command("--resume", str(self.run_folder)), capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        phases = [(row["phase"], row["step"]) for row in rows(self.run_folder, "steps.csv")]
        self.assertIn("resume", [phase for phase, _ in phases])
        self.assertGreater(len(phases), len(set(phases)), "no step was done again")
        self.assertEqual(len(list((self.run_folder / "tensorboard").iterdir())), 2)
        self.assertEqual(len(self.agrees_with_the_files()["train/loss"]), 3 * 16)

    def test_without_the_key_there_are_no_event_files(self):
        self.train(metrics={"tensorboard": False})
        self.assertFalse((self.run_folder / "tensorboard").exists())


class Calls:
    """Records the calls of a stub module."""

    def __init__(self, returned=None):
        self.made, self.returned = [], returned

    def __getattr__(self, name):
        return lambda *arguments, **named: self.made.append((name, arguments, named)) or self.returned

    def of(self, name):
        return [(arguments, named) for made, arguments, named in self.made if made == name]


class Trackers(Runs):
    def tracker(self, name, stub):
        """The module of a script, with `stub` in place of the tracker."""
        saved = dict(sys.modules)
        self.addCleanup(lambda: (sys.modules.clear(), sys.modules.update(saved)))
        self.addCleanup(sys.path.remove, str(EXAMPLES))
        sys.path.insert(0, str(EXAMPLES))
        module = types.ModuleType(name)
        module.__getattr__ = lambda attribute: getattr(stub, attribute)
        sys.modules[name] = module
        sys.modules.pop(f"track_{name}", None)  # it has the stub of an earlier call
        try:
            return __import__(f"track_{name}")
        except ImportError as error:
            self.skipTest(str(error))

    def check_steps(self, logged):
        """`logged`: [(step, figures)]"""
        steps = [(step, figures["step/loss"]) for step, figures in logged if "step/loss" in figures]
        recorded = [row for row in rows(self.run_folder, "steps.csv") if row["phase"] == "train"]
        self.assertEqual([step for step, _ in steps], list(range(1, 49)))
        for (_, loss), row in zip(steps, recorded):
            self.assertAlmostEqual(loss, float(row["loss"]), places=6)
        evaluations = [(step, figures["epoch/eval_top1"]) for step, figures in logged if "epoch/eval_top1" in figures]
        self.assertEqual([step for step, _ in evaluations], [32, 48])
        self.assertTrue(all("step/learning_rate" in figures and "step/gradient_norm" in figures for _, figures in logged if "step/loss" in figures))

    def test_mlflow(self):
        lines = self.train("--json-lines").splitlines()
        for source in (str(self.run_folder), "-"):
            with self.subTest(source=source):
                calls = Calls()
                self.tracker("mlflow", calls).main(source, lines)
                self.assertIn((("train.batch", "16"), {}), calls.of("log_param"))
                self.check_steps([(named["step"], figures) for (figures,), named in calls.of("log_metrics")])
                files = {os.path.basename(path) for (path, *_), _ in calls.of("log_artifact")}
                self.assertEqual(files, {"model.safetensors", "model.best.safetensors", "config.yaml", "summary.json"})
                self.assertEqual(calls.of("end_run"), [(("FINISHED",), {})])

    def test_weights_and_biases(self):
        self.train()
        subprocess.run([os.path.join(PROGRAMS, "cleave-client"), "report", str(self.run_folder)], check=True, capture_output=True)
        (self.run_folder / "adapter").mkdir()
        run = Calls()
        run.name = "run"
        artifact = Calls()
        calls = Calls()
        calls.init = lambda **named: calls.made.append(("init", (), named)) or run
        calls.Artifact = lambda *arguments, **named: artifact
        self.tracker("wandb", calls).main(str(self.run_folder))
        self.assertEqual(calls.of("init")[0][1]["config"]["train.batch"], 16)
        self.check_steps([(figures["train_step"], figures) for (figures,), _ in run.of("log")])
        self.assertEqual([os.path.basename(path) for (path, _), _ in artifact.of("add_dir")], ["adapter"])
        self.assertIn("report.html", {os.path.basename(path) for (path,), _ in artifact.of("add_file")})
        self.assertEqual(run.of("finish"), [((), {"exit_code": 0})])

    def test_a_run_that_failed(self):
        calls = Calls()
        tracker = self.tracker("mlflow", calls)
        self.train()
        begin = json.dumps({"event": "begin", "folder": str(self.run_folder)})
        step = json.dumps({"event": "step", "step": 1, "loss": 2.5, "steps": 48})
        tracker.main("-", [begin, step, json.dumps({"event": "failed", "code": "cannot-write"})])
        self.assertEqual(calls.of("log_metrics"), [(({"step/loss": 2.5},), {"step": 1})])
        self.assertEqual(calls.of("end_run"), [(("FAILED",), {})])

    def test_rotated_tables_and_rows_that_were_written_again(self):
        self.tracker("mlflow", Calls())
        tracked_run = sys.modules["tracked_run"]
        (self.folder / "steps.1.csv").write_text("phase,step,loss\ntrain,1,3\ntrain,2,2\n")
        (self.folder / "steps.2.csv").write_text("phase,step,loss\nresume,1,\ntrain,2,1\neval,1,9\n")
        (self.folder / "steps.10.csv").write_text("phase,step,loss\ntrain,3,0.5\n")
        (self.folder / "steps.csv").write_text("phase,step,loss\ntrain,4,0.25\ntrain,5,0.1")
        (self.folder / "epochs.csv").write_text("epoch,steps,eval_loss\n1,4,0.5\n")
        events = list(tracked_run.events(str(self.folder), []))
        self.assertEqual([(step, figures["loss"]) for kind, step, figures in events if kind == "step"], [(1, 3), (2, 1), (3, 0.5), (4, 0.25)])
        self.assertEqual([event[1:] for event in events if event[0] == "epoch"], [(4, {"epoch": 1, "eval_loss": 0.5})])


if __name__ == "__main__":
    unittest.main()
