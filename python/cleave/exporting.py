"""Writes a PyTorch model as a .pt2 archive that Cleave can cut and train."""

import contextlib
import functools
import io
import logging
import operator
import os
import re
import sys
import traceback

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from cleave import refusals

MAX_BATCH = 65536


class ExportError(ValueError):
    """The model cannot be exported; the message says what to change."""


def export(model, example_inputs, path, *, output=None, train_mode=True):
    """Exports `model` to `path` ("model.pt2").

    example_inputs  the arguments of model.forward: a tensor, a tuple of tensors, or a dict of
                    tensors by name. Their first dimension is the batch, which needs at least 2
                    samples; the values do not matter.
    output          the value returned by forward that training uses: a name such as "logits", or a
                    position. Not needed if forward returns one tensor.
    train_mode      calls model.train() first, so that dropout and batch norms behave as in
                    training; in evaluations, Cleave switches them to evaluation mode. False: keeps
                    the mode of each module.

    The model does not change. Its parameters keep their names and their requires_grad. The file
    contains neither the examples nor this machine's paths. Returns the torch.export.ExportedProgram.

        cleave.export(torchvision.models.resnet18(), torch.randn(2, 3, 224, 224), "model.pt2")
        cleave.export(roberta, dict(tokenizer(["a", "b"], return_tensors="pt")), "model.pt2",
                      output="logits")
    """
    args, kwargs = _arguments(example_inputs)
    _check_examples({**dict(enumerate(args)), **kwargs})
    _check_path(str(path))
    model = _checked_model(model, train_mode)
    _check_parameters(model)
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    shapes = refusals.dynamic_shapes(model.forward, args, kwargs, batch)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with _mode(model, train_mode), _returning(model, output, kwargs):
        _check_batch_norms(model)
        try:
            with _silent():
                program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
        except ExportError:
            raise
        except Exception as error:  # torch.export raises errors of many kinds
            raise ExportError(_explain(error)) from error
    for name, value in model.state_dict().items():
        if not torch.equal(value, before[name]):
            raise ExportError(f"the export has changed {name}: the model's forward assigns to it")
    _check_program(program)
    _remove_private_parts(program)
    temporary = f"{path}.part.pt2"
    torch.export.save(program, temporary)
    os.replace(temporary, path)
    return program


def _arguments(examples):
    if isinstance(examples, torch.Tensor):
        return (examples,), {}
    if isinstance(examples, dict) or hasattr(examples, "keys"):
        return (), {name: examples[name] for name in examples.keys()}
    return tuple(examples), {}


def _check_examples(examples):
    if not examples:
        raise ExportError("give at least one example input")
    sizes = set()
    for name, value in examples.items():
        if not isinstance(value, torch.Tensor):
            raise ExportError(f"example input {name} is a {type(value).__name__}, not a tensor")
        if value.dim() == 0 or value.shape[0] < 2:
            raise ExportError(f"example input {name} needs a batch of at least 2 samples in its first dimension, but has the shape {list(value.shape)}")
        sizes.add(value.shape[0])
    if len(sizes) > 1:
        raise ExportError(f"the example inputs have different numbers of samples: {sorted(sizes)}")


def _check_path(path):
    if not path.endswith(".pt2"):
        raise ExportError(f"the path {path} does not end with .pt2")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ExportError(f"there is no folder {folder}: create it, or give another path")


def _checked_model(model, train_mode):
    """The model without wrappers."""
    model = refusals.unwrapped(model)
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"the model is of type {type(model).__name__}, not a torch.nn.Module: give an instance of a class derived from it")
    sentence = refusals.of_model(model, train_mode)
    if sentence:
        raise ExportError(sentence)
    return model


def _check_parameters(model):
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ExportError(f"the trained parameter {name} is {_dtype_name(parameter)}: export model.float(), "
                              "and set precision in Cleave's configuration; or set requires_grad=False")


def _check_batch_norms(model):
    for name, module in model.named_modules():
        if module.training and getattr(module, "track_running_stats", False) and getattr(module, "momentum", 0) is None:
            raise ExportError(f"{_module_called(name)} has momentum=None, so its running statistics depend on the number of batches, "
                              "which Cleave does not support: set momentum=0.1")


def _dtype_name(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _module_called(name):
    return f"module {name}" if name else "the model"


@contextlib.contextmanager
def _mode(model, train_mode):
    """Sets train mode if `train_mode`, and restores the mode of each module afterwards."""
    modes = {module: module.training for module in model.modules()}
    if train_mode:
        model.train()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def _returning(model, output, names):
    """Makes forward return only the value `output`. A wrapper module would change all names."""
    forward, own = model.forward, model.__dict__.get("forward")

    @functools.wraps(forward)
    def chosen(*args, **kwargs):
        return _choose(forward(*args, **kwargs), output)

    chosen.__signature__ = refusals.named_signature(forward, names)
    model.forward = chosen
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own


def _choose(returned, output):
    """The value `output` of those that forward returned; the only one if `output` is None."""
    if isinstance(returned, torch.Tensor):
        if output is None:
            return returned
        raise ExportError(f"forward returns one tensor, which has no value {output!r}: omit output=")
    values = _values_in(returned)
    names = ", ".join(map(str, values))
    if output is None and len(values) == 1:
        output = 0
    if output is None:
        suggested = "logits" if "logits" in values else next(iter(values))
        raise ExportError(f"forward returns {len(values)} values ({names}); name the one to train on: output={suggested!r}")
    if isinstance(output, int) and -len(values) <= output < len(values):
        value = list(values.values())[output]
    elif output in values:
        value = values[output]
    else:
        raise ExportError(f"forward returns no {output!r}, only {names}: set output= to one of these")
    if not isinstance(value, torch.Tensor):
        raise ExportError(f"the value {output!r} that forward returns is of type {type(value).__name__}, not a tensor: choose another one, or change forward")
    return value


def _values_in(returned):
    """The values that forward returned, by name, or by position if they have no names."""
    if hasattr(returned, "keys"):  # a dict, or an output of transformers
        values = {name: returned[name] for name in returned.keys()}
    elif hasattr(returned, "_asdict"):
        values = returned._asdict()
    elif isinstance(returned, (tuple, list)):
        values = dict(enumerate(returned))
    else:
        values = getattr(returned, "__dict__", {})
    if not values:
        raise ExportError(f"forward returns a value of type {type(returned).__name__}: return a tensor")
    return values


@contextlib.contextmanager
def _silent():
    """Discards what torch.export logs and prints about an error: ExportError explains it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        logging.disable(before)


def _is_users(file):
    """Whether a source file belongs to the model, rather than to PyTorch, to Python or to this package."""
    if file.startswith(os.path.dirname(os.__file__)) and "site-packages" not in file:
        return False
    return not file.startswith((os.path.dirname(torch.__file__), os.path.dirname(__file__), "<"))


def _place(frames):
    """The last line of the model's own code in a traceback, or an empty string."""
    own = [frame for frame in frames if _is_users(frame.filename)]
    return f' at {os.path.basename(own[-1].filename)}:{own[-1].lineno}: "{own[-1].line}"' if own else ""


def _explain(error):
    kind, text = type(error).__name__, str(error)
    where = _place(traceback.extract_tb(error.__traceback__))
    if "data-dependent" in text.lower() or "DataDependent" in kind:
        return (f"the model's forward branches on the values of a tensor{where}. Replace the condition, for "
                "example by torch.where, since an exported model always runs the same operators")
    if kind in ("ConstraintViolationError", "ConstraintViolation") or "Constraints violated" in text or "specialized" in text:
        return (f"the model works only with the batch size of the example{where}. Remove fixed sizes from its forward: "
                "write x.shape[0] instead of a number, and x.flatten(1) instead of x.view(32, -1)")
    first = text.strip().splitlines()[0] if text.strip() else kind
    return f"torch.export cannot trace the model{where}: {first}"


def _check_program(program):
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            _check_value(node)
            _refuse(node, refusals.of_operator(node))
    _check_output(program)
    for spec, node in zip(program.graph_signature.output_specs, program.graph.output_node().args[0]):
        if spec.kind.name == "USER_OUTPUT" and _has_no_gradient(node):
            raise ExportError("forward computes its output without gradients: remove torch.no_grad() from its last operators, "
                              "and set use_reentrant=False in calls of torch.utils.checkpoint")


def _refuse(node, refusal):
    if refusal:
        problem, advice = refusal
        raise ExportError(f"{_module_of(node)} {problem}{_line_of(node)}. {advice}")


def _check_output(program):
    """The output is one value per sample, and no part of it is a mean or sum over the samples."""
    returned = program.graph.output_node().args[0]
    inputs = set(program.graph_signature.user_inputs)
    batch = next(node.meta["val"].shape[0] for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs)
    for spec, node in zip(program.graph_signature.output_specs, returned):
        if spec.kind.name != "USER_OUTPUT":
            continue
        for each in _needed(node):
            _refuse(each, refusals.of_reduction(each))
        _refuse(node, refusals.of_output(node.meta["val"], batch))


def _needed(node):
    """The nodes from which a node is computed, and the node itself."""
    found, open_nodes = set(), [node]
    while open_nodes:
        each = open_nodes.pop()
        if each not in found:
            found.add(each)
            open_nodes += each.all_input_nodes
    return sorted(found)


def _check_value(node):
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.is_complex():
        raise ExportError(f"{_module_of(node)} uses complex numbers ({node.target}){_line_of(node)}: compute with real numbers instead")
    if free_unbacked_symbols(value):
        raise ExportError(f"{_module_of(node)} uses the values of a tensor as a Python number or as a shape ({node.target}){_line_of(node)}. "
                          "Keep the value in a tensor: omit .item(), and write torch.where(mask, x, 0) instead of x[mask]")


def _has_no_gradient(node):
    """Whether the node is a result of a part in torch.no_grad()."""
    part = node.args[0] if node.target is operator.getitem else node
    return part.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not part.args[0]


def _module_of(node):
    stack = node.meta.get("nn_module_stack") or {}
    return _module_called(list(stack.values())[-1][0] if stack else "")


def _line_of(node):
    frames = re.findall(r'File "([^"]+)", line (\d+), in (.*)\n[ \t]+(\S.*)', node.meta.get("stack_trace") or "")
    return _place([traceback.FrameSummary(file, int(line), name, line=code) for file, line, name, code in frames])


def _remove_private_parts(program):
    program._example_inputs = None  # otherwise the archive contains the examples, pickled
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)  # otherwise each node contains this machine's paths
