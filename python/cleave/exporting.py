"""Writes a PyTorch model as a .pt2 archive that Cleave can cut and train."""

import contextlib
import functools
import os
import re

import torch

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
    if not str(path).endswith(".pt2"):
        raise ExportError(f"the path {path} does not end with .pt2")
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    shapes = {name: {0: batch} for name in kwargs} if kwargs else tuple({0: batch} for _ in args)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with _mode(model, train_mode), _returning(model, output):
        try:
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
def _returning(model, output):
    """Makes forward return only the value `output`. A wrapper module would change all names."""
    if output is None:
        yield
        return
    forward = model.forward

    @functools.wraps(forward)
    def chosen(*args, **kwargs):
        returned = forward(*args, **kwargs)
        names = list(returned.keys()) if hasattr(returned, "keys") else None
        if isinstance(output, str) and (output not in names if names is not None else not hasattr(returned, output)):
            raise ExportError(f"forward returns no {output}" + (f", only {', '.join(names)}" if names else ""))
        if isinstance(output, int) or isinstance(returned, dict) or hasattr(returned, "keys"):
            return returned[output]
        return getattr(returned, output)

    model.forward = chosen
    try:
        yield
    finally:
        del model.forward


def _users_line(error):
    """The last line of the model's own code in an error of torch.export, or an empty string."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.*)', str(error))
    own = [frame for frame in frames if "/site-packages/torch/" not in frame[0]]
    return f' at {os.path.basename(own[-1][0])}:{own[-1][1]}: "{own[-1][2].strip()}"' if own else ""


def _explain(error):
    kind, text = type(error).__name__, str(error)
    where = _users_line(error)
    if "data-dependent" in text.lower() or "DataDependent" in kind:
        return (f"the model's forward branches on the values of a tensor{where}. Replace the condition, for "
                "example by torch.where, since an exported model always runs the same operators")
    if kind in ("ConstraintViolationError", "ConstraintViolation") or "Constraints violated" in text or "specialized" in text:
        return (f"the model works only with the batch size of the example{where}. Remove fixed sizes from its forward: "
                "write x.shape[0] instead of a number, and x.flatten(1) instead of x.view(32, -1)")
    first = text.strip().splitlines()[0] if text.strip() else kind
    return f"torch.export cannot trace the model{where}: {first}"


def _check_program(program):
    outputs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    if len(outputs) != 1:
        raise ExportError(f"the model returns {len(outputs)} values; name the one to train on: output=\"logits\", or output=0")
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            if node.target.namespace != "aten":
                raise ExportError(f"the operator {node.target} in {_module_of(node)} is not one of PyTorch's own: replace it in the model")


def _module_of(node):
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return f"module {path}" if path else "the model"


def _remove_private_parts(program):
    program._example_inputs = None  # otherwise the archive contains the examples, pickled
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)  # otherwise each node contains this machine's paths
