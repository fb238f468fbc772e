"""Each allowed operator computes what PyTorch computes: results and gradients are bit-identical.

GRAPH_RUNNER is the path of the program graph_runner.
"""

import pathlib
import re
import sys
import unittest

import torch
from torch import nn

import cleave_split
from cleave_split.operators import ALLOWED
from graph_case import GraphCase
from operator_cases import CASES, NOT_COMPARED, RANDOM

SAMPLES = 3


class Case(nn.Module):
    """Applies a function to [samples, 1] * weight, so that the weight's gradient shows the function's."""

    def __init__(self, shape, function):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.function = function
        for number, value in enumerate(getattr(function, "__defaults__", None) or ()):
            if isinstance(value, nn.Module):
                self.add_module(f"layer{number}", value)

    def forward(self, x):
        y = self.function(x.reshape([-1] + [1] * self.weight.dim()) * self.weight)
        return nn.functional.softsign(y.float()).reshape(x.shape[0], -1)


class Together(nn.Module):
    """Several cases in one model: one export and one run for all."""

    def __init__(self, cases):
        super().__init__()
        self.cases = nn.ModuleList(Case(shape, function) for _, shape, function in cases)

    def forward(self, x):
        return torch.cat([case(x) for case in self.cases], 1)


def operators_in(program):
    nodes = [node for module in program.graph_module.modules() for node in getattr(module, "graph", torch.fx.Graph()).nodes]
    return {str(node.target).removeprefix("aten.") for node in nodes if isinstance(node.target, torch._ops.OpOverload)}


def memory_of_operators():
    """The lists of common/graph/operators.cpp: own, mayShare or inPlace, by the operator's name."""
    source = (pathlib.Path(__file__).resolve().parents[2] / "common/graph/operators.cpp").read_text()
    memory = {}
    for kind, words in re.findall(r"constexpr std::string_view k\w+ =  // ResultMemory::(\w+)\n([^;]*);", source):
        memory.update({name: kind for text in re.findall(r'"([^"]*)"', words) for name in text.split()})
    return memory


def storages(value):
    """The memory of the tensors in a value, which may be a list."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each.untyped_storage().data_ptr() for each in values if isinstance(each, torch.Tensor) and each.numel() > 0]


class SharedMemory(torch.fx.Interpreter):
    """Runs an exported model, and notes operators whose results share memory against what the table says."""

    def __init__(self, module, memory):
        super().__init__(module)
        self.memory, self.wrong = memory, set()

    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        name = str(target).removeprefix("aten.")
        if isinstance(target, torch._ops.OpOverload) and name in self.memory:
            first = set(storages(args[0])) if args else set()
            others = {each for value in (*args[1:], *kwargs.values()) for each in storages(value)}
            own = self.memory[name] == "own"
            if any(each in others - first or own and each in first for each in storages(result)):
                self.wrong.add(name)
        return result


class Operators(GraphCase):
    def compare(self, cases):
        """The names of the cases whose results or gradients differ, and the operators in them."""
        torch.manual_seed(0)
        model, x = Together(cases), torch.randn(SAMPLES, 1)
        program = cleave_split.export(model, x, self.path("model.pt2"), evaluation=False)
        logits = model(x)
        labels = torch.arange(SAMPLES)
        nn.functional.cross_entropy(logits, labels).backward()
        results = self.run_graph({"x": x, "labels": labels})
        begin, different = 0, []
        for number, (name, *_) in enumerate(cases):
            size = model.cases[number](x).shape[1]
            columns = slice(begin, begin + size)
            begin += size
            self.assertTrue(torch.isfinite(logits[:, columns]).all(), name)
            if not torch.equal(results["logits"][:, columns], logits[:, columns]):
                different.append(name)
            for parameter, value in model.cases[number].named_parameters():
                if value.grad is not None and not torch.equal(results[f"grad.cases.{number}.{parameter}"], value.grad):
                    different.append(f"{name}: gradient of {parameter}")
        self.shared |= self.sharing(program, x)
        return different, operators_in(program)

    def sharing(self, program, x):
        checker = SharedMemory(program.module(), self.memory)
        checker.run(x)
        return checker.wrong

    def test_results_and_gradients_are_those_of_pytorch(self):
        different, seen = [], set()
        self.memory, self.shared = memory_of_operators(), set()
        self.assertEqual(set(self.memory), ALLOWED)
        size = 100
        for begin in range(0, len(CASES), size):
            wrong, operators = self.compare(CASES[begin : begin + size])
            different += wrong
            seen |= operators
        self.assertEqual(different, [])
        self.assertEqual(sorted(self.shared), [], "results that share memory, but not as common/graph/operators.cpp says")
        self.assertEqual(sorted(ALLOWED - seen - NOT_COMPARED), [], "operators without a case")
        self.assertEqual(sorted(NOT_COMPARED - ALLOWED), [], "operators that are not allowed")

    def test_random_operators_draw_numbers(self):
        # Cleave's numbers differ from PyTorch's.
        model = Together([(name, [50], lambda x, function=function: x * 0 + function(x.detach().sigmoid())) for name, function in RANDOM.items()])
        x = torch.randn(SAMPLES, 1)
        program = cleave_split.export(model, x, self.path("model.pt2"))
        self.assertEqual(sorted(set(RANDOM) - operators_in(program)), [])
        drawn = self.run_graph({"x": x, "labels": torch.arange(SAMPLES)})["logits"]
        self.assertTrue(torch.isfinite(drawn).all())
        for begin, name in zip(range(0, drawn.shape[1], 50), RANDOM):
            self.assertGreater(len(drawn[:, begin : begin + 50].unique()), 1, name)


if __name__ == "__main__":
    sys.exit(unittest.main())
