"""Exported models compute what PyTorch computes, and errors say what to change.

    python3 -m unittest discover -s python/tests        (scripts/test_python.sh sets everything up)

GRAPH_RUNNER is the path of the program graph_runner.
"""

import contextlib
import io
import os
import subprocess
import sys
import unittest
import zipfile

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import cleave_split
from cleave_split.convert import main as convert
from graph_case import GraphCase, read_safetensors
from models import MODELS, MORE_CUTS, some

# Cleave changes running statistics in the update, PyTorch in the forward pass.
BUFFER_TOLERANCE = 1e-6
CHANNELS_LAST = ["mobilenet_v2", "resnet18", "efficientnet"]


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


class Applied(nn.Module):
    """A linear layer, followed by a function."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


class Exported(GraphCase):
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
        for name, make, example, output, cuts in some(MODELS):
            with self.subTest(name):
                torch.manual_seed(0)
                model = make()
                cleave_split.export(model, example, self.path("model.pt2"), output=output, evaluation=False)
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
                self.assert_equal_to_eager(self.run_graph({**inputs, "labels": labels}), eager, tied)
                for parts in [cuts, *MORE_CUTS.get(name, [])] if cuts else []:
                    tolerance = 0
                    if name in CHANNELS_LAST:
                        # Images cross a cut in channels-last order, in which convolutions sum differently;
                        # batch norms of few values enlarge the difference in the gradients.
                        tolerance = 1e-3
                        eager = {each: eager[each] for each in ("logits", "loss")}
                    self.assert_equal_to_eager(self.run_graph({**inputs, "labels": labels}, *parts), eager, tied, tolerance)

    def input_name(self):
        import json

        with zipfile.ZipFile(self.path("model.pt2")) as archive:
            record = [n for n in archive.namelist() if n.endswith("models/model.json")][0]
            signature = json.loads(archive.read(record))["graph_module"]["signature"]
        user = [s["user_input"] for s in signature["input_specs"] if "user_input" in s]
        return user[0]["arg"]["as_tensor"]["name"]

    def test_the_archive_has_no_examples_and_no_paths(self):
        # Without cleave_split.export, nodes of this file's class have the lines of its forward.
        torch.export.save(torch.export.export(Own(), (torch.ones(2, 4),)), self.path("plain.pt2"))
        with zipfile.ZipFile(self.path("plain.pt2")) as archive:
            self.assertTrue(any(b"test_export.py" in archive.read(record) for record in archive.namelist()))
        cleave_split.export(Own(), torch.full((2, 4), 1234.5), self.path("model.pt2"))
        with zipfile.ZipFile(self.path("model.pt2")) as archive:
            for record in archive.namelist():
                content = archive.read(record)
                for private in (b"stack_trace", b".py", os.path.dirname(__file__).encode(), torch.tensor([1234.5]).numpy().tobytes()):
                    self.assertNotIn(private, content, record)

    def test_the_model_does_not_change(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        cleave_split.export(model, torch.randn(3, 4), self.path("model.pt2"))
        self.assertFalse(model.training)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_values_that_are_not_numbers_do_not_count_as_changes(self):
        class Threshold(nn.Module):
            def __init__(self, changes):
                super().__init__()
                self.linear, self.changes = nn.Linear(4, 2), changes
                self.register_buffer("threshold", torch.tensor(float("nan")))
                self.register_buffer("limits", torch.tensor([[1, float("nan")], [2, 3]]).T)

            def forward(self, x):
                if self.changes:
                    self.threshold.fill_(1)
                return self.linear(x) + torch.nan_to_num(self.limits).sum() + torch.nan_to_num(self.threshold)

            def train(self, mode=True):
                if self.changes and not mode:
                    self.threshold.fill_(1)
                return super().train(mode)

        cleave_split.export(Threshold(False), torch.randn(2, 4), self.path("model.pt2"))
        self.assert_refused(["threshold"], Threshold(True), torch.randn(2, 4), self.path("none.pt2"))

    def assert_refused(self, words, model, *arguments, **options):
        with self.assertRaises(cleave_split.ExportError) as refused:
            cleave_split.export(model, *arguments, **options)
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

        out = self.path("model.pt2")
        self.assert_refused(["at least 2 samples"], linear, torch.randn(1, 4), out)
        self.assert_refused(["different numbers of samples"], linear, (torch.randn(2, 4), torch.randn(3, 4)), out)
        self.assert_refused(["not a tensor"], linear, ("x",), out)
        self.assert_refused([".pt2"], linear, torch.randn(2, 4), self.path("model.pth"))
        self.assert_refused(["values of a tensor", "test_export.py", "torch.where"], Branch(), torch.randn(2, 4), out)
        self.assert_refused(["batch size of the example"], Fixed(), torch.randn(2, 4), out)
        self.assert_refused(["no folder"], linear, torch.randn(2, 4), self.path("missing/model.pt2"))
        self.assert_refused(["of type function, not a torch.nn.Module"], lambda x: x, torch.randn(2, 4), out)
        self.assert_refused(["linear.weight is bfloat16", "model.float()"], Applied(torch.relu).bfloat16(), torch.randn(2, 4), out)
        self.assert_refused(["module 1 has momentum=None", "momentum=0.1"], nn.Sequential(linear, nn.BatchNorm1d(2, momentum=None)), torch.randn(2, 4), out)
        self.assert_refused(["missing a required argument"], linear, {"x": torch.randn(2, 4)}, out)
        self.assertFalse(os.path.exists(out))

    def test_values_that_cleave_cannot_compute_are_refused(self):
        def refused(words, function):
            self.assert_refused(words, Applied(function), torch.randn(2, 4), self.path("model.pt2"))

        refused(["complex numbers", "fft", "test_export.py"], lambda y: torch.fft.fft(y).abs())
        refused(["as a Python number", "aten.item", "test_export.py"], lambda y: y * y.sum().item())
        refused(["as a shape", "torch.where"], lambda y: y[y > 0].sum() + y)
        refused(["without gradients", "use_reentrant=False"], lambda y: torch.utils.checkpoint.checkpoint(torch.relu, y, use_reentrant=True))
        fourier = nn.Sequential(nn.Linear(4, 4), Applied(lambda y: torch.fft.fft(y).abs()))
        self.assert_refused(["module 1 uses complex numbers"], fourier, torch.randn(2, 4), self.path("model.pt2"))

    def test_foreign_operators_are_refused_with_the_line(self):
        class Vander(nn.Module):
            def forward(self, x):
                return torch.vander(x[0]).sum() + x

        out = self.path("model.pt2")
        self.assert_refused(["module 1 calls the operator aten.vander.default", 'test_export.py:', "torch.vander(x[0])", "Write x.unsqueeze(-1)"],
                            nn.Sequential(nn.Linear(4, 4), Vander()), torch.randn(2, 4), out)
        self.assert_refused(["aten.special_i0.default", "docs/models.md"], Applied(torch.special.i0), torch.randn(2, 4), out)
        self.assert_refused(["computes gt of a tensor's size"], Applied(lambda y: y * (y.shape[0] > 1)), torch.randn(2, 4), out)
        self.assertFalse(os.path.exists(out))

    def test_a_loss_of_the_whole_batch_is_refused(self):
        class WithLoss(nn.Module):
            def __init__(self, loss):
                super().__init__()
                self.linear, self.loss = nn.Linear(4, 3), loss

            def forward(self, x, y):
                return self.loss(self.linear(x), y)

        example, out = (torch.randn(2, 4), torch.tensor([0, 2])), self.path("model.pt2")
        per_batch = ["one loss for the whole batch", 'Write F.cross_entropy(…, reduction="none")', "test_export.py:"]
        self.assert_refused(per_batch, WithLoss(F.cross_entropy), example, out)
        self.assert_refused(per_batch, WithLoss(lambda y, classes: y + F.cross_entropy(y, classes, reduction="sum")), example, out)
        self.assert_refused(["one number for the whole batch", ".flatten(1).mean(1)"], Applied(torch.mean), torch.randn(2, 4), out)
        self.assert_refused(["whose first dimension is not the", "reshape(x.shape[0], -1)"], Applied(torch.flatten), torch.randn(2, 4), out)
        self.assertFalse(os.path.exists(out))
        cleave_split.export(WithLoss(lambda y, classes: F.cross_entropy(y, classes, reduction="none")), example, out)
        # A loss that is not the output does not matter.
        cleave_split.export(WithLoss(lambda y, classes: {"loss": F.cross_entropy(y, classes), "logits": y}), example, out, output="logits")

    def test_wrapped_models_are_exported(self):
        class Arguments(Own):
            def forward(self, *inputs):
                return super().forward(inputs[0] + inputs[-1])

        class Named(Own):
            def forward(self, **batch):
                return super().forward(batch["x"] * batch["attention_mask"])

        x, out = torch.randn(2, 4), self.path("model.pt2")
        for model, example, inputs in (
            (Arguments(), (x, x), ("inputs_0", "inputs_1")),
            (Named(), {"x": x, "attention_mask": x}, ("x", "attention_mask")),
            (nn.DataParallel(Own()), x, ("x",)),
            (torch.compile(Own()), x, ("x",)),
        ):
            program = cleave_split.export(model, example, out)
            self.assertEqual(program.graph_signature.user_inputs, inputs)
            self.assertEqual(list(program.state_dict), ["linear.weight", "linear.bias"])

    def test_modules_that_cannot_be_trained_are_refused(self):
        norm = nn.Sequential(nn.Conv1d(2, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True))
        x, out = torch.randn(2, 2, 8), self.path("model.pt2")
        self.assert_refused(["module 1 is a InstanceNorm1d with track_running_stats=True", "train_mode=False"], norm, x, out)
        self.assert_refused(["module 0 is a LazyLinear", "call the model once"], nn.Sequential(nn.LazyLinear(3)), x, out)
        self.assert_refused(["TorchScript"], torch.jit.script(nn.Linear(8, 2)), x, out)
        cleave_split.export(norm.eval(), x, out, train_mode=False)

    def test_sparse_embeddings_train_with_dense_gradients(self):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.bag = nn.Embedding(7, 3, sparse=True), nn.EmbeddingBag(7, 3, sparse=True)

            def forward(self, ids):
                return self.embedding(ids).mean(1) + self.bag(ids)

        ids, labels, model = torch.tensor([[1, 2], [2, 6]]), torch.tensor([0, 2]), Sparse()
        cleave_split.export(model, ids, self.path("model.pt2"))
        eager = eager_step(model, ids, None, labels)
        self.assert_equal_to_eager(self.run_graph({"ids": ids, "labels": labels}), {name: value.to_dense() for name, value in eager.items()}, {})

    def test_the_output_is_chosen(self):
        def exported(returned, **options):
            cleave_split.export(Applied(returned), torch.randn(2, 4), self.path("model.pt2"), **options)

        def refused(words, returned, **options):
            self.assert_refused(words, Applied(returned), torch.randn(2, 4), self.path("none.pt2"), **options)

        def two(y):
            return {"loss": y.sum(), "logits": y}

        exported(two, output="logits")
        exported(two, output=-1)
        exported(lambda y: (y, None), output=0)
        exported(lambda y: {"logits": y})
        refused(["2 values (loss, logits)", "output='logits'"], two)
        refused(["2 values (0, 1)", "output=0"], lambda y: (y, y))
        refused(["no 'logit', only loss, logits"], two, output="logit")
        refused(["no 2, only 0, 1"], lambda y: (y, y), output=2)
        refused(["one tensor", "omit output="], lambda y: y, output="logits")
        refused(["one tensor", "omit output="], lambda y: y, output=0)
        refused(["'cache' that forward returns is of type object"], lambda y: {"logits": y, "cache": object()}, output="cache")
        refused(["type NoneType"], lambda y: None)
        gpt2 = {name: make for name, make, *_ in MODELS}["gpt2"]()
        self.assert_refused(["past_key_values", "output='logits'"], gpt2, {"input_ids": torch.ones(2, 5).long()}, self.path("none.pt2"))

    def test_a_forward_of_the_instance_is_kept(self):
        model = Own()
        model.forward = own = lambda x: {"logits": torch.relu(model.linear(x))}
        cleave_split.export(model, torch.randn(2, 4), self.path("model.pt2"), output="logits")
        self.assertIs(model.forward, own)

    def test_checkpointing_that_is_not_reentrant_is_exported(self):
        class Checkpointed(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.last(torch.utils.checkpoint.checkpoint(torch.relu, self.first(x), use_reentrant=False))

        x, labels, model = torch.randn(2, 4), torch.tensor([0, 2]), Checkpointed()
        cleave_split.export(model, x, self.path("model.pt2"))
        self.assert_equal_to_eager(self.run_graph({"x": x, "labels": labels}), eager_step(model, x, None, labels), {})

    def test_failed_exports_print_nothing(self):
        program = ("import torch, cleave_split\n"
                   "class Branch(torch.nn.Module):\n"
                   "    def forward(self, x):\n"
                   "        return x if x.sum() > 0 else -x\n"
                   "for model in (Branch(), torch.nn.Linear(5, 2)):\n"
                   "    try:\n"
                   "        cleave_split.export(model, torch.randn(2, 4), 'none.pt2')\n"
                   "    except cleave_split.ExportError as error:\n"
                   "        print(error)\n")
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(ended.stderr, "")
        self.assertIn("branches on the values", ended.stdout)

    def test_convert(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        torch.save({"epoch": 3, "state_dict": model.state_dict()}, self.path("checkpoint.pth"))
        convert([self.path("checkpoint.pth"), self.path("model.safetensors"), "--key", "state_dict"])
        written = read_safetensors(self.path("model.safetensors"))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(written[name], value), name)

    def save(self, value, name="checkpoint.pth", **options):
        torch.save(value, self.path(name), **options)
        return self.path(name)

    def assert_not_converted(self, words, *arguments):
        """Expects an error and a hint on two lines, exit code 2, and no file."""
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            self.assertEqual(convert([arguments[0], self.path("none.safetensors"), *arguments[1:]]), 2)
        lines = printed.getvalue().splitlines()
        self.assertEqual([line.split(": ")[:2] for line in lines], [["cleave_split.convert", "error"], ["cleave_split.convert", "hint"]])
        for word in words:
            self.assertIn(word, printed.getvalue())
        self.assertFalse(os.path.exists(self.path("none.safetensors")))

    def test_convert_finds_nested_entries(self):
        nested = self.save({"trainer": {"state_dict": {"a": torch.ones(2)}, "epoch": 3}, "optimizer": {"state": {0: {"step": torch.ones(1)}}}})
        self.assertEqual(convert([nested, self.path("model.safetensors"), "--key", "trainer.state_dict"]), 0)
        self.assertEqual(list(read_safetensors(self.path("model.safetensors"))), ["a"])
        self.assert_not_converted(["top level", "--key trainer.state_dict; other", "optimizer.state.0"], nested)
        self.assert_not_converted(["the entry sd", "--key trainer.state_dict"], nested, "--key", "sd")
        self.assert_not_converted(["trainer.epoch", "--key trainer.state_dict"], nested, "--key", "trainer.epoch")
        self.assert_not_converted(["the entry sd", "omit --key"], self.save({"a": torch.ones(2)}), "--key", "sd")

    def test_convert_reports_wrong_use(self):
        with open(self.path("text.pth"), "w") as file:
            file.write("hello")
        with open(self.save({"a": torch.ones(2)}, "whole.pth"), "rb") as whole, open(self.path("cut.pth"), "wb") as cut:
            cut.write(whole.read()[:300])
        self.assert_not_converted(["not a file that torch.save wrote"], self.path("text.pth"))
        self.assert_not_converted(["damaged or incomplete"], self.path("cut.pth"))
        self.assert_not_converted(["No such file"], self.path("missing.pth"))
        self.assert_not_converted(["no dict of tensors"], self.save([torch.ones(2)]))
        self.assert_not_converted(["the tensor a is complex64"], self.save({"a": torch.zeros(2, dtype=torch.complex64)}))
        self.assert_not_converted(["the tensor a?[1m is sparse_coo"], self.save({"a\033[1m": torch.zeros(2).to_sparse()}))
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            self.assertEqual(convert([self.path("whole.pth"), self.path("missing/none.safetensors")]), 2)
        self.assertIn("no folder", printed.getvalue())

    def test_convert_executes_nothing(self):
        class Evil:
            def __reduce__(self):
                return (open, (marker, "w"))

        marker = self.path("evil.txt")
        for new_format in (True, False):
            evil = self.save({"a": Evil()}, _use_new_zipfile_serialization=new_format)
            self.assert_not_converted(["contains code", "open), which Cleave never runs", "state_dict()"], evil)
        self.assert_not_converted(["contains code (torch.nn.modules.linear.Linear)"], self.save(nn.Linear(2, 2)))
        torch.jit.script(nn.Linear(2, 2)).save(self.path("script.pth"))
        self.assert_not_converted(["contains code, which"], self.path("script.pth"))
        self.assertFalse(os.path.exists(marker))

    def test_the_command_prints_nothing_else(self):
        command = [sys.executable, "-W", "default", "-m", "cleave_split.convert", self.save({"a": torch.ones(2)}), self.path("model.safetensors")]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))


if __name__ == "__main__":
    sys.exit(unittest.main())
