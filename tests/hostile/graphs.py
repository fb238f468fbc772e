"""Graphs of operators (proto/graph.proto), byte by byte, for peers that send hostile ones."""
from typing import NamedTuple

import wire as w


def zstd(data, size=None):
    """A zstd frame whose blocks are not compressed. `size`: the declared size, if it differs from the real one."""
    blocks = b"".join(
        ((len(data[at : at + 65536]) << 3) | (at + 65536 >= len(data))).to_bytes(3, "little") + data[at : at + 65536]
        for at in range(0, max(1, len(data)), 65536)
    )
    return bytes.fromhex("28b52ffda0") + (len(data) if size is None else size).to_bytes(4, "little") + blocks


RESULT, PARAMETER = 0, 1
SAMPLES = -1  # as a dimension: the number of samples


def value(shape, dtype="f32", kind=RESULT, name=None):
    return w.message((1, kind), (2, name), (3, dtype), *((4, size) for size in shape), (5, True if kind == PARAMETER else None))


SAMPLES_OF_4 = value((SAMPLES, 4))


def node(op, *arguments, name="n", outputs=(1,), is_list=None):
    return w.message((1, op), (2, name), *((4, argument) for argument in arguments), *((5, output) for output in outputs), (6, is_list))


def tensor_argument(name, number):
    return w.message((1, name), (10, number))


def graph_of(*nodes, values=(SAMPLES_OF_4, SAMPLES_OF_4), inputs=(0,), outputs=(1,)):
    return w.message(*((1, each) for each in values), *((2, node) for node in nodes), *((3, i) for i in inputs),
                     *((4, o) for o in outputs))  # fmt: skip


RELU = node("aten.relu.default", tensor_argument("self", 0))


class Tensor(NamedTuple):
    """A value of a graph under construction."""

    number: int


def zigzag(number):
    return number << 1 ^ number >> 63


def argument(name, given):
    """An argument, by the type of what is given: Tensor, list of Tensor, list of int, or a plain value. `dtype` is a text."""
    if isinstance(given, Tensor):
        return tensor_argument(name, given.number)
    if isinstance(given, list) and given and isinstance(given[0], Tensor):
        return w.message((1, name), (11, w.message(*((1, each.number + 1) for each in given))))
    if isinstance(given, list):
        return w.message((1, name), (7, w.message(*((1, w.message((1, zigzag(each)))) for each in given))))
    if isinstance(given, bool):
        return w.message((1, name), (5, given))
    if isinstance(given, int):
        return w.message((1, name), (3, zigzag(given)))
    if isinstance(given, float):
        return w.message((1, name), (4, given))
    return w.message((1, name), (13 if name == "dtype" else 6, given))


class Graph:
    """A graph under construction, whose only input is f32 [samples, 4]. Declares all results with this shape, however large they are."""

    def __init__(self):
        self.values, self.nodes = [SAMPLES_OF_4], []
        self.input = Tensor(0)

    def _value(self, *of):
        self.values.append(value(*of))
        return Tensor(len(self.values) - 1)

    def parameter(self, name, shape):
        return self._value(shape, "f32", PARAMETER, name)

    def add(self, op, results=1, /, **arguments):
        """Adds `aten.op`. Returns its first result."""
        outputs = [self._value((SAMPLES, 4)) for _ in range(results)]
        given = [argument(name, each) for name, each in arguments.items()]
        self.nodes.append(node(f"aten.{op}", *given, name=f"n{len(self.nodes)}", outputs=[each.number for each in outputs]))
        return outputs[0]

    def full(self, size, fill, dtype="f32"):
        return self.add("full.default", size=list(size), fill_value=fill, dtype=dtype)

    def output(self, tensor):
        """Returns the packed graph with this output."""
        return zstd(graph_of(*self.nodes, values=self.values, outputs=(tensor.number,)))

    def used(self, tensor):
        """Returns the packed graph whose output is the input plus the sum of the tensor. It has a gradient."""
        total = self.add("sum.default", self=self.add("to.dtype", self=tensor, dtype="f32"))
        return self.output(self.add("add.Tensor", self=self.input, other=total))
