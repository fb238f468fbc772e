"""Exported models compute what PyTorch computes, and errors say what to change.

    python3 -m unittest discover -s python/tests        (scripts/test_python.sh sets everything up)

GRAPH_RUNNER is the path of the program graph_runner.
"""

import os
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile

import torch
from torch import nn

import cleave
from cleave.convert import main as convert
from cleave.convert import write_safetensors
from models import MODELS, MORE_CUTS

RUNNER = os.environ.get("GRAPH_RUNNER", "build/release/bin/graph_runner")
# Cleave changes running statistics in the update, PyTorch in the forward pass.
BUFFER_TOLERANCE = 1e-6
CHANNELS_LAST = ["mobilenet_v2", "resnet18", "efficientnet_b0"]


def read_safetensors(path):
    import json
    import struct

    dtypes = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool, "F64": torch.float64}
    data = open(path, "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + size + begin : 8 + size + end])
        tensors[name] = torch.frombuffer(raw, dtype=dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def eager_step(model, inputs, output, labels):
    """PyTorch's results, under the names that graph_runner writes."""
    model.train()
    returned = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits = returned[output] if output else returned
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)
    loss.backward()
    results = {"logits": logits.detach(), "loss": loss.detach()}
    # A tied parameter has several names, of which an exported model has one.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            results["grad." + name] = parameter.grad
    for name, buffer in model.named_buffers():
        if name in model.state_dict():  # others, such as position ids, are not saved
            results["buffer." + name] = buffer
    return results


def tied_names(model):
    """Maps each name of a tied parameter to all its names, each with "grad." before it."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter.data_ptr(), []).append("grad." + name)
    return {name: group for group in names.values() if len(group) > 1 for name in group}


class Own(nn.Module):
    """A model whose forward is in this file."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


class Exported(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_graph(self, inputs, labels, cuts=None):
        write_safetensors({**inputs, "labels": labels}, self.path("inputs.safetensors"))
        command = [RUNNER, self.path("model.pt2"), self.path("inputs.safetensors"), self.path("out.safetensors")]
        ended = subprocess.run(command + (cuts or []), capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return read_safetensors(self.path("out.safetensors"))

    def assert_equal_to_eager(self, results, eager, tied, tolerance=0):
        """tolerance 0 requires bit-identical results."""
        for name, expected in eager.items():
            if name in tied and name not in results:
                self.assertTrue(any(other in results for other in tied[name]), f"{name} is missing")
                continue
            self.assertIn(name, results)
            if name.startswith("buffer."):
                difference = (results[name].double() - expected.double()).abs().max().item() if expected.numel() else 0
                self.assertLessEqual(difference, BUFFER_TOLERANCE, name)
            else:
                worst = (results[name] - expected).abs().max().item()
                if tolerance:
                    limit = tolerance * max(1e-3, expected.abs().max().item())
                    self.assertLessEqual(worst, limit, f"{name} differs by up to {worst:g}")
                else:
                    self.assertTrue(torch.equal(results[name], expected), f"{name} differs by up to {worst:g}")

    def test_models_equal_eager_pytorch(self):
        for name, make, example, output, cuts in MODELS:
            with self.subTest(name):
                torch.manual_seed(0)
                model = make()
                cleave.export(model, example, self.path("model.pt2"), output=output)
                with torch.no_grad():
                    returned = model(**example) if isinstance(example, dict) else model(example)
                    shape = (returned[output] if output else returned).shape
                # The forward above changed the running statistics.
                torch.manual_seed(0)
                model = make()
                rows = int(torch.tensor(shape[:-1]).prod())
                labels = torch.arange(rows) % shape[-1]
                eager = eager_step(model, example, output, labels)
                inputs = example if isinstance(example, dict) else {"x": example}
                if not isinstance(example, dict):
                    inputs = {self.input_name(): example}
                tied = tied_names(model)
                self.assert_equal_to_eager(self.run_graph(inputs, labels), eager, tied)
                for parts in [cuts, *MORE_CUTS.get(name, [])] if cuts else []:
                    tolerance = 0
                    if name in CHANNELS_LAST:
                        # Images cross a cut in channels-last order, in which convolutions sum differently;
                        # batch norms of few values enlarge the difference in the gradients.
                        tolerance = 1e-3
                        eager = {each: eager[each] for each in ("logits", "loss")}
                    self.assert_equal_to_eager(self.run_graph(inputs, labels, parts), eager, tied, tolerance)

    def input_name(self):
        import json

        with zipfile.ZipFile(self.path("model.pt2")) as archive:
            record = [n for n in archive.namelist() if n.endswith("models/model.json")][0]
            signature = json.loads(archive.read(record))["graph_module"]["signature"]
        user = [s["user_input"] for s in signature["input_specs"] if "user_input" in s]
        return user[0]["arg"]["as_tensor"]["name"]

    def test_the_archive_has_no_examples_and_no_paths(self):
        # Without cleave.export, nodes of this file's class have the lines of its forward.
        torch.export.save(torch.export.export(Own(), (torch.ones(2, 4),)), self.path("plain.pt2"))
        with zipfile.ZipFile(self.path("plain.pt2")) as archive:
            self.assertTrue(any(b"test_export.py" in archive.read(record) for record in archive.namelist()))
        cleave.export(Own(), torch.full((2, 4), 1234.5), self.path("model.pt2"))
        with zipfile.ZipFile(self.path("model.pt2")) as archive:
            for record in archive.namelist():
                content = archive.read(record)
                for private in (b"stack_trace", b".py", os.path.dirname(__file__).encode(), torch.tensor([1234.5]).numpy().tobytes()):
                    self.assertNotIn(private, content, record)

    def test_the_model_does_not_change(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        cleave.export(model, torch.randn(3, 4), self.path("model.pt2"))
        self.assertFalse(model.training)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def assert_refused(self, words, model, *arguments, **options):
        with self.assertRaises(cleave.ExportError) as refused:
            cleave.export(model, *arguments, **options)
        for word in words:
            self.assertIn(word, str(refused.exception))

    def test_errors_say_what_to_change(self):
        linear = nn.Linear(4, 2)

        class Branch(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        class Fixed(nn.Module):
            def forward(self, x):
                return x.view(2, 4)

        class Two(nn.Module):
            def forward(self, x):
                return x, x + 1

        out = self.path("model.pt2")
        self.assert_refused(["at least 2 samples"], linear, torch.randn(1, 4), out)
        self.assert_refused(["different numbers of samples"], linear, (torch.randn(2, 4), torch.randn(3, 4)), out)
        self.assert_refused(["not a tensor"], linear, ("x",), out)
        self.assert_refused([".pt2"], linear, torch.randn(2, 4), self.path("model.pth"))
        self.assert_refused(["values of a tensor", "test_export.py", "torch.where"], Branch(), torch.randn(2, 4), out)
        self.assert_refused(["batch size of the example"], Fixed(), torch.randn(2, 4), out)
        self.assert_refused(["2 values", "output="], Two(), torch.randn(2, 4), out)
        self.assertFalse(os.path.exists(out))

    def test_convert(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        torch.save({"epoch": 3, "state_dict": model.state_dict()}, self.path("checkpoint.pth"))
        convert([self.path("checkpoint.pth"), self.path("model.safetensors"), "--key", "state_dict"])
        written = read_safetensors(self.path("model.safetensors"))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(written[name], value), name)
        with self.assertRaises(SystemExit) as refused:
            convert([self.path("checkpoint.pth"), self.path("none.safetensors")])
        self.assertIn("--key", str(refused.exception))

    def test_convert_executes_nothing(self):
        class Evil:
            def __reduce__(self):
                return (open, ("evil.txt", "w"))

        torch.save({"a": Evil()}, self.path("evil.pth"))
        with self.assertRaises(SystemExit) as refused:
            convert([self.path("evil.pth"), self.path("none.safetensors")])
        self.assertIn("without executing", str(refused.exception))
        self.assertFalse(os.path.exists("evil.txt"))


if __name__ == "__main__":
    sys.exit(unittest.main())
