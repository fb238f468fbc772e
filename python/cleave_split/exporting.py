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
import zipfile

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from cleave_split import refusals

MAX_BATCH = 65536


class ExportError(ValueError):
    """The model cannot be exported; the message says what to change."""


def export(model, example_inputs, path, *, output=None, train_mode=True, evaluation=True):
    """Exports `model` to `path` ("model.pt2").

    example_inputs  the arguments of model.forward: a tensor, a tuple of tensors, or a dict of
                    tensors by name. Their first dimension is the batch, which needs at least 2
                    samples; the values do not matter.
    output          the value returned by forward that training uses: a name such as "logits", or a
                    position. Not needed if forward returns one tensor.
    train_mode      calls model.train() before it exports the model for training. False: keeps the
                    mode of each module.
    evaluation      False: exports the model for training only, for a model whose evaluation mode
                    cannot be exported. Evaluations then run the operators of training, without
                    dropout and with the running statistics of batch norms. Cleave warns if the
                    results could differ from those after model.eval().

    The file has two graphs of the model: one for training, and one for evaluations and
    predictions, which is exported after model.eval(). Both use the same weights. The model does not
    change. Its parameters keep their names and their requires_grad. The file
    contains neither the examples nor this machine's paths. Returns the torch.export.ExportedProgram
    for training.

        cleave_split.export(torchvision.models.resnet18(), torch.randn(2, 3, 224, 224), "model.pt2")
        cleave_split.export(roberta, dict(tokenizer(["a", "b"], return_tensors="pt")), "model.pt2",
                      output="logits")
    """
    args, kwargs = _arguments(example_inputs)
    _check_examples({**dict(enumerate(args)), **kwargs})
    _check_path(str(path))
    model = _checked_model(model, train_mode)
    _check_parameters(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with _modes_kept(model):
        if train_mode:
            model.train()
        _check_batch_norms(model)
        program = _traced(model, args, kwargs, output)
        _check_unchanged(model, before, "the export has changed {}: the model's forward assigns to it")
        _check_program(program)
        _check_output(program)
        _check_gradient(program)
        evaluated = _evaluation_of(model, args, kwargs, output, before, program) if evaluation else None
    _remove_private_parts(program)
    files = {}
    if evaluated:
        _remove_private_parts(evaluated)
        _share_constants(program, evaluated)
        files["evaluation.json"] = _graph_text(evaluated)
    temporary = f"{path}.part.pt2"
    torch.export.save(program, temporary, extra_files=files)
    os.replace(temporary, path)
    return program


def _evaluation_of(model, args, kwargs, output, before, program):
    """The program of model.eval(), which fits `program`, the one for training."""
    model.eval()
    _check_unchanged(model, before, "model.eval() changes {}: a method train() or eval() of the model assigns to it; remove that")
    try:
        evaluation = _traced(model, args, kwargs, output, may_return_it=True)
        _check_unchanged(model, before, "the export has changed {}: the model's forward assigns to it")
        _check_program(evaluation)
        _check_output(evaluation)
        _check_same(program, evaluation)
        _check_cuts(program, evaluation)
    except ExportError as error:
        raise ExportError(f"in evaluation mode (model.eval()): {error}; or export the model for training only: evaluation=False") from error
    return evaluation


def _traced(model, args, kwargs, output, may_return_it=False):
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    shapes = refusals.dynamic_shapes(model.forward, args, kwargs, batch)
    with _returning(model, output, kwargs, may_return_it), _without_fast_path():
        try:
            with _silent():
                return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
        except ExportError:
            raise
        except Exception as error:  # torch.export raises errors of many kinds
            raise ExportError(_explain(error)) from error


@contextlib.contextmanager
def _without_fast_path():
    """Makes transformers of torch.nn call ordinary operators in evaluation mode too."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _check_unchanged(model, before, text):
    state = model.state_dict()
    for name in {**before, **state}:
        if name not in state or name not in before or not _are_same(state[name], before[name]):
            raise ExportError(text.format(name))


def _are_same(first, second):
    """Whether the bits are equal, also those of NaN."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (first, second)))


def _check_same(program, evaluation):
    """Both modes must have the same parameters and buffers, and the same inputs and outputs."""
    first, second = program.state_dict, evaluation.state_dict
    for name in {**first, **second}:
        if name not in first or name not in second or first[name].data_ptr() != second[name].data_ptr():
            raise ExportError(f"{name} is not the same tensor as in training mode: create parameters and buffers in __init__, and do not replace them")
    for what, names in (("takes", lambda each: each.graph_signature.user_inputs), ("returns", lambda each: each.graph_signature.user_outputs)):
        trained, evaluated = (_descriptions(each, names(each)) for each in (program, evaluation))
        if trained != evaluated:
            raise ExportError(f"forward {what} {evaluated}, but in training mode {trained}: make both the same, "
                              "for example by moving what differs out of forward")


def _descriptions(program, names):
    """The types and shapes of these values for the example inputs: "float32 [2, 10]"."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return _texts(values[name] for name in names if isinstance(values.get(name), torch.Tensor))


def _texts(tensors):
    return ", ".join(f"{_dtype_name(each)} {[size if isinstance(size, int) else size.node.hint for size in each.shape]}" for each in tensors)


def _check_cuts(program, evaluation):
    """A model is cut at two modules, after which the same tensors must cross in both modes."""
    trained, evaluated = _crossings(program), _crossings(evaluation)
    different = [name for name, crossing in trained.items() if evaluated.get(name) != crossing]
    if len(trained) < 2 or len(trained) - len(different) >= 2:
        return
    pairs = [f"after {name} {evaluated.get(name, 'nothing')} instead of {trained[name]}" for name in different]
    raise ExportError(f"other tensors cross the possible cuts than in training mode ({'; '.join(pairs[:4])}{'; …' if len(pairs) > 4 else ''}): "
                      "compute what differs within a module, so that it takes and returns the same tensors in both modes")


def _crossings(program):
    """The tensors that cross after each module, by its name. A model can be cut only there."""
    needed = set(_needed(program.graph.output_node()))
    nodes, signature = [node for node in program.graph.nodes if node in needed], program.graph_signature
    sources = {*signature.inputs_to_parameters, *signature.user_inputs}
    depending, ends = set(), {}
    for position, node in enumerate(nodes):
        value = node.meta.get("val")
        is_source = node.op == "placeholder" and node.name in sources and isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_source or depending.intersection(node.all_input_nodes):
            depending.add(node)
        if node.op == "call_function" and node in depending:
            names = [name for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
            ends.update({name: position for name in names if name})
    crossings = {}
    for name, end in ends.items():
        later = set(nodes[end + 1 :])
        crossing = [node for node in nodes[: end + 1] if node in depending and node.name not in signature.inputs_to_parameters
                    and isinstance(node.meta.get("val"), torch.Tensor) and later.intersection(node.users)]
        if crossing and end + 2 < len(nodes):  # the last node is the output
            crossings[name] = _texts(node.meta["val"] for node in crossing)
    return crossings




def _share_constants(program, evaluation):
    """Gives the program for training the constants of the other one, under new names where they differ."""
    for spec in evaluation.graph_signature.input_specs:
        value, other = evaluation.constants.get(spec.target), program.constants.get(spec.target)
        if not isinstance(value, torch.Tensor):
            continue
        if isinstance(other, torch.Tensor) and value.dtype == other.dtype and torch.equal(value, other):
            continue
        del evaluation.constants[spec.target]
        spec.target = f"evaluation.{spec.target}"
        evaluation.constants[spec.target] = program.constants[spec.target] = value


def _graph_text(program):
    """The program's graph as torch.export.save writes it."""
    empty = torch.zeros(0)  # instead of the weights, which the other program has
    for tensors in (program.state_dict, program.constants):
        for name, value in tensors.items():
            tensors[name] = torch.nn.Parameter(empty) if isinstance(value, torch.nn.Parameter) else empty
    file = io.BytesIO()
    torch.export.save(program, file)
    with zipfile.ZipFile(file) as archive:
        record = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        return archive.read(record).decode()


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
def _modes_kept(model):
    """Restores the mode of each module afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        model.train(modes[model])  # a train() of the model's own may undo more than the flags
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def _returning(model, output, names, may_return_it):
    """Makes forward return only the value `output`. A wrapper module would change all names.

    may_return_it   whether forward may return that value as its only one."""
    forward, own = model.forward, model.__dict__.get("forward")

    @functools.wraps(forward)
    def chosen(*args, **kwargs):
        returned = forward(*args, **kwargs)
        return returned if may_return_it and isinstance(returned, torch.Tensor) else _choose(returned, output)

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


def _check_gradient(program):
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
