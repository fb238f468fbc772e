"""What Cleave cannot run. of_operator, of_reduction and of_output return (what is wrong, what to change), or None."""

import inspect
import operator

import torch
from torch import nn

from cleave_split.operators import ALLOWED

# Arithmetic with sizes, which torch.export writes as Python functions.
_SIZE_FUNCTIONS = {
    operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.truediv, operator.pow,
    torch.sym_min, torch.sym_max, torch.sym_float,
}  # fmt: skip
_REGIONS = {torch.ops.higher_order.wrap_with_set_grad_enabled, torch.ops.higher_order.wrap_with_autocast}
# What to write instead of an operator, by its name without the overload.
_INSTEAD = {
    "_cdist_forward": "torch.cdist(a, b)",
    "_pack_padded_sequence": "the padded batch itself: rnn(x)[0], then take the last valid step with torch.gather",
    "as_strided": "x.unfold(dimension, size, step) or x.reshape(…)",
    "bincount": "F.one_hot(ids, number).sum(0)",
    "block_diag": "torch.cat of the blocks, each padded with F.pad",
    "cholesky": "torch.linalg.cholesky(x)",
    "corrcoef": "centred = x - x.mean(-1, keepdim=True), and centred @ centred.mT",
    "cov": "centred = x - x.mean(-1, keepdim=True), and centred @ centred.mT / (n - 1)",
    "fractional_max_pool2d": "nn.MaxPool2d or nn.AdaptiveMaxPool2d",
    "fractional_max_pool3d": "nn.MaxPool3d or nn.AdaptiveMaxPool3d",
    "histc": "F.one_hot(torch.bucketize(x, edges), bins).sum(0)",
    "masked_select": "torch.where(mask, x, 0)",
    "matrix_exp": "torch.linalg.matrix_power, or a series with a fixed number of terms",
    "multinomial": "logits.argmax(-1), or a sample that the data contain",
    "nonzero": "torch.where(mask, x, 0)",
    "nonzero_numpy": "torch.where(mask, x, 0)",
    "pdist": "torch.cdist(x, x)",
    "put": "x.index_put(…) or x.scatter(…)",
    "quantile": "x.sort(dim)[0].select(dim, position)",
    "renorm": "F.normalize(x, dim=…)",
    "repeat_interleave": "x.repeat_interleave(number, dim) with a fixed number",
    "unique": "torch.where with a mask of fixed size",
    "unique2": "torch.where with a mask of fixed size",
    "vander": "x.unsqueeze(-1) ** torch.arange(n)",
}


def of_operator(node):
    """For a node of an exported graph with an operator that Cleave does not have."""
    target = node.target
    if node.op != "call_function" or target in _SIZE_FUNCTIONS or target in _REGIONS:
        return None
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"calls torch.ops.higher_order.{target.name()}, which Cleave does not run", "Remove calls such as torch.cond and torch.while_loop"
    if not isinstance(target, torch._ops.OpOverload):
        name = getattr(target, "__name__", target)
        return f"computes {name} of a tensor's size, which Cleave does not run", "Remove the condition on the size, or compute the number in __init__"
    if target.namespace != "aten":
        return f"calls the operator {target}, which is not one of PyTorch's own", "Replace it in the model"
    name = str(target).removeprefix("aten.")
    if name in ALLOWED or name in ("sym_size.int", "sym_numel.default") or "_assert" in name or name.startswith("sym_constrain_range"):
        return None
    instead = _INSTEAD.get(name.split(".")[0].strip("_"), _INSTEAD.get(name.split(".")[0]))
    advice = f"Write {instead}" if instead else "Replace it in the model; docs/models.md lists the operators that are allowed"
    return f"calls the operator aten.{name}, which Cleave does not run", advice


def of_reduction(node):
    """For a loss that reduces the whole batch to one number."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    arguments = target._schema.arguments
    for position, argument in enumerate(arguments):
        if argument.name != "reduction":
            continue
        given = node.kwargs.get("reduction", node.args[position] if position < len(node.args) else argument.default_value)
        if given != 0:
            name = target._schema.name.removeprefix("aten::").removesuffix("_nd")
            name = "cross_entropy" if name == "cross_entropy_loss" else name
            return ("computes one loss for the whole batch, but Cleave needs one per sample",
                    f'Write F.{name}(…, reduction="none"), and .flatten(1).mean(1) if it has a value per pixel or token')
    return None


def of_output(value, batch):
    """For the output of forward; `batch`: the symbol of the number of samples."""
    if value.dim() == 0:
        return ("returns one number for the whole batch, but Cleave needs a value per sample",
                'Use reduction="none" in losses, and .flatten(1).mean(1) instead of .mean()')
    size = value.shape[0]
    if isinstance(size, torch.SymInt) and size.node.expr == batch.node.expr:
        return None
    return (f"returns a tensor of shape {list(value.shape)}, whose first dimension is not the {batch} samples",
            "Reshape it, for example with .reshape(x.shape[0], -1)")


def of_model(model, train_mode):
    """A sentence on the model itself, before it is exported, or None."""
    if isinstance(model, torch.jit.ScriptModule):
        return "the model is a TorchScript module: give the nn.Module that it was made from"
    for name, module in model.named_modules():
        where = f"module {name}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{where} is a TorchScript module: give the nn.Module that it was made from"
        if any(torch.nn.parameter.is_lazy(value) for value in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            return f"{where} is a {type(module).__name__} whose parameters have no shape yet: call the model once with the example, as in model(example), before the export"
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and (train_mode or module.training):
            return (f"{where} is a {type(module).__name__} with track_running_stats=True, whose running statistics Cleave does not train: "
                    "set track_running_stats=False, or call .eval() on it and export with train_mode=False")
    return None


def unwrapped(model):
    """The module inside DataParallel and torch.compile, which add nothing that an export contains."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            return model


def named_signature(forward, names):
    """The signature of forward in which the given `names` stand instead of **kwargs, since torch.export looks for them."""
    signature = inspect.signature(forward)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    known = {parameter.name for parameter in parameters}
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names if name not in known]
    return signature.replace(parameters=[*parameters[:-1], *added])


def dynamic_shapes(forward, args, kwargs, batch):
    """The argument dynamic_shapes of torch.export in which the first dimension of every input is the batch."""
    if kwargs:
        return {name: {0: batch} for name in kwargs}
    shapes = [{0: batch} for _ in args]
    kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    fixed = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:fixed], tuple(shapes[fixed:])) if len(shapes) > fixed else tuple(shapes)
