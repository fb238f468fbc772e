"""Tests the Python API against the real programs. CLEAVE_PROGRAMS or PROGRAMS is the folder of cleave-client and cleave-server."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

os.environ.setdefault("CLEAVE_PROGRAMS", os.path.abspath(os.environ.get("PROGRAMS", "build/release/bin")))

import pandas
import torch
from torch import nn

import cleave_split
from cleave_split import errors, progress, tables

SETTINGS = {
    "model": {"name": "mlp", "width": 16},
    "data": {"format": "synthetic", "shape": [8], "classes": 4, "train": {"size": 256}, "test": {"size": 64}},
    "train": {"batch": 16, "epochs": 2},
    "codec": "none",
    "threads": {"client": 1, "server": 1},
    "keep": {"best": "top1"},
}
STEPS_PER_EPOCH = 16
# A run that takes long enough to be interrupted.
LONG = {"train.epochs": 100000, "checkpoint.every_steps": 20, "eval.every": 1000}


def programs_with(word):
    """The process IDs of the programs whose command line has this word."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if "cleave-" in words and word in words:
                found.append(int(folder.name))
    return found


class ApiTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def train(self, name="run", settings=None, config=SETTINGS, **options):
        return cleave_split.train(config, run_dir=self.folder / name, settings=settings, bar=False, **options)

    def python(self, code):
        """Starts another Python with this code."""
        text = "import cleave_split, sys\nSETTINGS = %r\nLONG = %r\n%s" % (SETTINGS, LONG, textwrap.dedent(code))
        return subprocess.Popen([sys.executable, "-c", text], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                env={**os.environ, "PYTHONPATH": str(pathlib.Path(cleave_split.__file__).parents[1])})  # fmt: skip

    def assert_ends(self, word):
        """Waits for the end of all programs whose command line has this word."""
        deadline = time.monotonic() + 60
        while programs_with(word):
            self.assertLess(time.monotonic(), deadline, f"still running: {programs_with(word)}")
            time.sleep(0.05)


class Training(ApiTest):
    def test_a_run_has_its_events_and_tables(self):
        events = []
        run = self.train(on_progress=events.append)
        self.assertEqual(run.path, self.folder / "run")
        kinds = [event["event"] for event in events]
        epoch = ["step"] * STEPS_PER_EPOCH + ["epoch"]
        self.assertEqual(kinds, ["begin", *epoch, *epoch, "done"])
        steps = run.steps
        trained = steps[steps["phase"] == "train"]
        self.assertEqual(trained["step"].tolist(), list(range(1, 2 * STEPS_PER_EPOCH + 1)))
        self.assertEqual([float(f"{event['loss']:.9g}") for event in events if event["event"] == "step"], trained["loss"].tolist())
        self.assertEqual(run.epochs["epoch"].tolist(), [1, 2])
        self.assertEqual(str(steps["time"].dtype.tz), "UTC")
        self.assertEqual(run.summary["steps"], 2 * STEPS_PER_EPOCH)
        tensors = run.transfers.query("phase == 'train' and step > 0")
        self.assertEqual(len(tensors), 2 * STEPS_PER_EPOCH * 4 * 4)  # micro-batches and flows

    def test_a_file_and_a_dict_give_the_same_bits(self):
        file = self.folder / "config.yaml"
        file.write_text(json.dumps(SETTINGS))
        one, other = self.train("one"), self.train("other", config=file)
        self.assertEqual((one.path / "model.safetensors").stat().st_size, (other.path / "model.safetensors").stat().st_size)
        self.assertEqual(one.steps["loss"].tolist()[:32], other.steps["loss"].tolist()[:32])

    def test_a_run_goes_on(self):
        run = self.train()
        self.assertIs(type(run.resume(epochs=3, bar=False)), cleave_split.Run)
        self.assertEqual(run.epochs["epoch"].tolist(), [1, 2, 3])
        whole = self.train("whole", settings={"train.epochs": 3})
        self.assertEqual(run.epochs["train_loss"].tolist(), whole.epochs["train_loss"].tolist())

    def test_lost_steps_and_rotated_files_are_read_once(self):
        """Kills the client, so that steps are computed again, while the tables are rotated."""
        settings = {**LONG, "train.epochs": 12, "metrics.rotate": "64kB", "checkpoint.every_steps": 100, "checkpoint.every_seconds": 0,
                    "model": {"name": "sleep", "of": "mlp", "F1": 2, "B1": 2}}  # slow, so that it is killed before the next checkpoint

        def kill(event):
            if event.get("step") == 110:
                run, deadline = cleave_split.Run(self.folder / "run"), time.monotonic() + 60
                while run.rows("steps").query("phase == 'train'")["step"].max() < 105:
                    self.assertLess(time.monotonic(), deadline, "the rows of the steps were not written")
                    time.sleep(0.05)
                for process in programs_with(str(self.folder / "run")):
                    os.kill(process, signal.SIGKILL)

        with self.assertRaises(cleave_split.Error) as failed:
            self.train(settings=settings, on_progress=kill)
        self.assertEqual(failed.exception.code, "program-ended")
        self.assertIn("signal 9", failed.exception.sentence)
        run = cleave_split.Run(self.folder / "run")
        self.assertEqual(run.summary, {})
        run.resume(bar=False)
        self.assertGreater(len(tables.parts(run.path, "transfers")), 3)
        steps, whole = run.steps, self.train("whole", settings=settings).steps
        for phase in ("train", "eval"):
            one, other = (rows[rows["phase"] == phase] for rows in (steps, whole))
            self.assertEqual(one["step"].tolist(), other["step"].tolist())
            self.assertEqual(one["loss"].tolist(), other["loss"].tolist())
        self.assertGreater(len(run.rows("steps").query("phase == 'train'")), len(whole.query("phase == 'train'")))  # the lost steps
        key = ["phase", "step", "micro_batch", "flow", "role"]
        tensors = run.transfers.query("step > 0")
        self.assertFalse(tensors.duplicated(key).any())
        self.assertEqual(len(tensors), len(cleave_split.Run(self.folder / "whole").transfers.query("step > 0")))

    def test_an_incomplete_line_is_left_out(self):
        run = self.train()
        count = len(run.steps)
        with open(run.path / "steps.csv", "a") as file:
            file.write("2026-01-31T00:00:00.000Z,run")
        self.assertEqual(len(run.steps), count)

    def test_a_callback_is_called(self):
        called = []

        class Own(cleave_split.Callback):
            def on_begin(self, run, event):
                called.append(("begin", run.path))

            def on_epoch(self, run, event):
                called.append(("epoch", event["epoch"], run.epochs["epoch"].tolist() if event["epoch"] == 1 else None))

            def on_done(self, run, event):
                called.append(("done", event["steps"]))

        self.train(on_progress=Own())
        self.assertEqual([name for name, *_ in called], ["begin", "epoch", "epoch", "done"])
        self.assertEqual(called[0][1], self.folder / "run")

    def test_an_exception_of_a_callback_interrupts_the_run(self):
        def stop(event):
            if event.get("step") == 30:
                raise ValueError("enough")

        with self.assertRaisesRegex(ValueError, "enough"):
            self.train(settings=LONG, on_progress=[stop])
        self.assertEqual(programs_with(str(self.folder / "run")), [])
        run = cleave_split.Run(self.folder / "run")
        last = int(run.steps["step"].max())
        self.assertGreaterEqual(last, 30)
        run.resume(settings={"train.epochs": -(-last // STEPS_PER_EPOCH) + 1}, bar=False)
        self.assertEqual(run.summary["steps_redone"], 0)  # it had made a checkpoint

    def test_two_runs_at_once(self):
        results = {}
        threads = [threading.Thread(target=lambda name=name: results.update({name: self.train(name)})) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        losses = [results[name].epochs["train_loss"].tolist() for name in ("one", "two")]
        self.assertEqual(losses[0], losses[1])

    def test_interrupted_as_in_a_shell(self):
        process = self.python("""
            try:
                cleave_split.train(SETTINGS, settings=LONG, run_dir="run", on_progress=lambda event: print(event["event"], flush=True))
            except cleave_split.Interrupted as error:
                print("interrupted", error.run.path, error)
        """)
        for line in process.stdout:
            if line == "step\n":
                break
        process.send_signal(signal.SIGINT)  # only to Python, as Jupyter does
        text, log = process.communicate(timeout=120)
        self.assertIn("interrupted run the run was interrupted; to continue it: cleave_split.Run('run').resume()", text, log)
        self.assertEqual(programs_with(str(self.folder)), [])

    def test_no_program_is_left_after_kill(self):
        process = self.python("""
            server = cleave_split.Server(settings={"store": "STORE"})
            cleave_split.train(SETTINGS, server=server, settings=LONG, run_dir="RUN", on_progress=lambda event: print(event["event"], flush=True))
        """.replace("STORE", str(self.folder / f"{self.folder.name}-store")).replace("RUN", str(self.folder / f"{self.folder.name}-run")))  # fmt: skip
        for line in process.stdout:
            if line == "step\n":
                break
        self.assertGreaterEqual(len(programs_with(f"{self.folder.name}-")), 2)
        process.kill()
        process.communicate()
        self.assert_ends(f"{self.folder.name}-")


class Failures(ApiTest):
    def error_of(self, call, *arguments, **options):
        with self.assertRaises(cleave_split.Error) as failed:
            call(*arguments, **options)
        return failed.exception

    def test_errors_have_code_sentence_and_hint(self):
        error = self.error_of(self.train, settings={"model.name": "mlpp"})
        self.assertEqual((error.code, error.key, error.exit_code), ("unknown-model", "model.name", 2))
        self.assertIn("did you mean mlp", error.hint)
        error = self.error_of(self.train, config={**SETTINGS, "trian": {}})
        self.assertEqual((error.code, error.location), ("config-unknown-key", ""))
        self.assertNotIn(tempfile.gettempdir(), error.sentence)  # the file of a dict is gone
        self.assertIn("hint: ", str(error))
        error = self.error_of(self.train, config="missing.yaml")
        self.assertIn("missing.yaml", error.sentence)
        error = self.error_of(self.train, server="127.0.0.1:1", settings={"connect.retry_seconds": 0.1})
        self.assertEqual(error.exit_code, 1)

    def test_errors_of_other_programs(self):
        error = self.error_of(cleave_split.Server, settings={"listen.prot": 0})
        self.assertEqual(error.code, "config-unknown-key")
        self.assertIn("listen.port", error.hint + error.sentence)
        error = self.error_of(cleave_split.Certificates(self.folder / "none").client, "clinic-a")
        self.assertIn("certs init", error.hint)
        run = self.train()
        error = self.error_of(run.predict, self.folder / "none.csv")
        self.assertEqual(error.exit_code, 2)
        self.assertTrue(error.hint)

    def test_wrong_paths(self):
        self.assertEqual(self.error_of(cleave_split.Run, self.folder).code, "no-run")
        with self.assertRaisesRegex(TypeError, "type object"):
            self.train(config={"model": object()})
        before = os.environ["CLEAVE_PROGRAMS"]
        self.addCleanup(os.environ.__setitem__, "CLEAVE_PROGRAMS", before)
        os.environ["CLEAVE_PROGRAMS"] = str(self.folder)
        self.assertEqual(self.error_of(self.train).code, "no-program")

    def test_text_of_a_log(self):
        text = "[x] [info] a\ncleave-server: error [address-in-use]: it is used\ncleave-server: hint: use another\n"
        error = errors.error_in(text, 1, "cleave-server")
        self.assertEqual((error.code, error.sentence, error.hint, error.exit_code), ("address-in-use", "it is used", "use another", 1))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.relu(self.body(torch.relu(self.first(x)))))


class Results(ApiTest):
    def test_own_model_and_arrays(self):
        torch.manual_seed(1)
        x = torch.randn(96, 8)
        labels = x[:, :3].argmax(1)
        paths = cleave_split.save_dataset({"train": {"x": x, "labels": labels}, "test": {"x": x[:32], "labels": labels[:32]}}, self.folder / "data")
        cleave_split.export(Small(), x[:2], self.folder / "model.pt2")
        cuts = cleave_split.suggest_cuts(self.folder / "model.pt2")
        self.assertEqual(len(cuts), 2)
        data = {"format": "tensors", "train": {"file": paths["train"]}, "test": {"file": paths["test"]}}
        config = {**SETTINGS, "model": {"name": "graph", "file": self.folder / "model.pt2", "cuts": cuts}, "data": data}
        run = self.train(config=config, settings={"train.epochs": 3})
        for best in (False, True):
            model = run.load(Small(), best=best).eval()
            with torch.no_grad():
                expected = model(x[:5])
            outputs = torch.tensor(run.predict(x[:5].numpy(), best=best, raw=True).filter(like="output").to_numpy())
            self.assertLess((outputs - expected).abs().max(), 1e-5)
            named = run.predict({"x": x[:5]}, best=best)
            self.assertEqual(named["class"].astype(int).tolist(), expected.argmax(1).tolist())
            self.assertEqual(run.evaluate(best=best)["samples"], 32)
        with self.assertRaisesRegex(RuntimeError, "Missing key"):
            run.load(nn.Linear(2, 2))
        self.assertEqual(len(run.predict()), 32)

    def test_tables(self):
        frame = pandas.DataFrame({"age": range(20, 84), "dose": [n % 7 / 2 for n in range(64)], "outcome": ["yes", "no"] * 32})
        frame.to_csv(self.folder / "patients.csv", index=False)
        data = {"format": "csv", "label": "outcome", "train": {"file": self.folder / "patients.csv"}, "test": {"file": self.folder / "patients.csv"}}
        run = self.train(config={**SETTINGS, "data": data})
        predicted = run.predict(frame.drop(columns="outcome").head(6))
        self.assertEqual(len(predicted), 6)
        self.assertTrue(set(predicted["class"]) <= {"yes", "no"})
        self.assertEqual(run.predict(self.folder / "patients.csv")["class"].tolist()[:6], predicted["class"].tolist())

    def test_report_and_bar(self):
        run = self.train()
        page = run.report()
        self.assertTrue(page.path.exists())
        self.assertIn("<iframe srcdoc=", page._repr_html_())

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        with contextlib.redirect_stderr(Terminal()) as shown:
            bar = progress.ProgressBar()
            for step in range(1, 5):
                bar({"event": "step", "step": step, "steps": 4, "loss": 0.5, "top1": 0.25, "images_per_second": 1000.0})
            bar({"event": "epoch", "eval_loss": 0.25, "eval_top1": 0.5})
            bar({"event": "done"})
        last = shown.getvalue().split("\r")[-1]
        self.assertIn("step 4 of 4  100 %  loss 0.5000  top1 25.00 %  eval loss 0.2500  eval top1 50.00 %  1000 samples/s", last)
        self.assertTrue(last.endswith("\n"))


class Tools(ApiTest):
    def test_server_with_certificates(self):
        certs = cleave_split.Certificates(self.folder / "certs")
        certs.init(["localhost", "127.0.0.1"])
        clinic = certs.client("clinic-a")
        self.assertEqual({each["kind"] for each in certs.list()}, {"authority", "server", "client"})
        with cleave_split.Server(settings={"store": self.folder / "store", "tls.enabled": True, "tls.folder": certs.folder}) as server:
            self.assertTrue(server.is_running)
            checks = cleave_split.doctor(SETTINGS, server=server, tls=clinic, seconds=0.2)
            self.assertEqual([str(check) for check in checks if check.finding == "FAIL"], [])
            self.train(server=server, tls=clinic)
            self.assertEqual(server.status()["sessions"], [])
            certs.revoke("clinic-a")
            server.reload()
            with self.assertRaises(cleave_split.Error) as refused:
                self.train("other", server=server, tls=clinic, settings={"connect.retry_seconds": 1})
            self.assertIn("revoked", refused.exception.sentence)
        self.assertFalse(server.is_running)
        self.assertTrue((self.folder / "store" / "clinic-a").is_dir())

    def test_sweep(self):
        swept = cleave_split.sweep(SETTINGS, {"codec": ["none", "block:bits=4"], "train.epochs": [1]}, reference={"codec": "none"}, folder=self.folder / "sweep")
        self.assertEqual(swept.results["status"].tolist(), ["done", "done"])
        self.assertEqual(swept.groups["codec"].tolist(), ["none", "block:bits=4"])
        self.assertEqual(swept.run(swept.results["point"][1]).epochs["epoch"].tolist(), [1])
        self.assertTrue(swept.report().path.exists())

    def test_plan(self):
        plan = cleave_split.plan(SETTINGS, rate="100Mbit/s", latency="10ms", options=["--keep-cuts"])
        self.assertTrue(plan)

    def test_doctor_without_a_configuration(self):
        checks = {check.name: check for check in cleave_split.doctor()}
        self.assertEqual(checks["libtorch"].finding, "ok")
        self.assertIn("not given", checks["config"].sentence)


if __name__ == "__main__":
    sys.exit(unittest.main())
