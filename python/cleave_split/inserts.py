"""Adds the layers of learned inserts to a PyTorch model, so that it computes what Cleave trained: docs/take_home.md."""

import re

import torch

_NAME = re.compile(r"insert\.(\d+)\.(?:(\d+)\.)?(encoder|decoder)\.(.+)")


class InsertError(ValueError):
    """The inserts do not fit the model."""


class _Half(torch.nn.Module):
    """The encoder or the decoder of an insert; holds its tensors under the names that they have in Cleave's files."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            module, parts = self, name.split(".")
            for part in parts[:-1]:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(parts[-1], torch.nn.Parameter(tensor.detach().clone()))

    def apply_linear(self, x):
        """y = W x + b, of the channels of images and of the last dimension of other tensors, plus the correction of `residual`."""
        y = _affine(x, self.weight, self.bias)
        if hasattr(self, "inner"):
            hidden = torch.relu(_affine(x, self.inner.weight, self.inner.bias))
            y = y + _affine(hidden, self.outer.weight, self.outer.bias)
        return y


def _affine(x, weight, bias):
    return torch.nn.functional.conv2d(x, weight, bias) if weight.dim() == 4 else torch.nn.functional.linear(x, weight, bias)


class _Insert(torch.nn.Module):
    def __init__(self, is_conv, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = _Half(encoder), _Half(decoder)
        self.is_conv = is_conv
        self.is_pca = "mean" in encoder

    def add_outer(self, level, insert):
        """Adds the next insert at the cut, which encodes what this one puts out."""
        self.add_module(str(level), insert)
        self.outer = level

    def forward(self, x):
        encoded = self.encode(x)
        if hasattr(self, "outer"):
            encoded = self._modules[str(self.outer)](encoded)
        return self.decode(encoded, x.shape)

    def encode(self, x):
        if self.is_pca:
            mean = self.encoder.mean
            x = x - (mean.view(-1, 1, 1) if self.is_conv else mean)
            if not self.is_conv:
                return torch.nn.functional.linear(x, self.encoder.weight)
        elif not self.is_conv:
            return self.encoder.apply_linear(x)
        kernel = self.encoder.weight.shape[-1]
        height, width = x.shape[-2:]
        padded = torch.nn.functional.pad(x, (0, -width % kernel, 0, -height % kernel))
        return torch.nn.functional.conv2d(padded, self.encoder.weight, getattr(self.encoder, "bias", None), stride=kernel)

    def decode(self, encoded, shape):
        if not self.is_conv:
            return torch.nn.functional.linear(encoded, self.decoder.weight.t(), self.decoder.bias) if self.is_pca else self.decoder.apply_linear(encoded)
        kernel = self.encoder.weight.shape[-1]
        decoded = torch.nn.functional.conv_transpose2d(encoded, self.decoder.weight, self.decoder.bias, stride=kernel)
        return decoded[..., : shape[-2], : shape[-1]]


def _group(tensors):
    """{(cut, level): {"encoder": {name: tensor}, "decoder": …}}; the first insert at a cut has the level 1."""
    inserts = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match:
            inserts.setdefault((int(match[1]), int(match[2] or 1)), {"encoder": {}, "decoder": {}})[match[3]][match[4]] = tensor
    return inserts


def _kind(kinds, cut, level):
    """What `kinds` says about an insert; None: nothing."""
    given = (kinds or {}).get(cut)
    return given if given is None or isinstance(given, str) else given[level - 1]


def _is_conv(cut, kind, encoder, decoder, is_pca):
    """Whether an insert is a convolution, from the shapes of its weights: the decoder of `conv` has the encoder's shape, and that of
    the other kinds has it transposed. An insert of the kind `pca` is a convolution if it has images."""
    if is_pca:
        return encoder.dim() == 4
    if kind is not None:
        return kind == "conv"
    if encoder.dim() != 4 or encoder.shape != decoder.shape:
        return False
    if encoder.shape[0] == encoder.shape[1] and encoder[0, 0].numel() == 1:
        raise InsertError(f"the insert at cut {cut} has as many features as its input, so its kind cannot be told: add kinds={{{cut}: KIND}}")
    return True


def add_inserts(model, tensors, cuts, kinds=None):
    """Adds the inserts in `tensors` to `model`, after the modules that `cuts` names.

    `tensors`: a model file of a run or of `cleave-client export`, loaded as a dict. `cuts`: the run's `model.cuts`. `kinds`: the kinds of
    the inserts by cut, such as {0: "conv"}, or {0: ["conv", "linear"]} if the cut has two; needed only where the shapes of the weights do not determine the kind. Afterwards
    `model.load_state_dict(tensors, strict=True)` succeeds, and the model's outputs include the inserts: each is a submodule
    `insert.CUT`, which a forward hook of the cut's module applies to the module's output. Raises InsertError.
    """
    inserts = _group(tensors)
    if not inserts:
        raise InsertError("the file has no inserts; load it with load_state_dict alone")
    if hasattr(model, "insert"):
        raise InsertError("the model already has an attribute 'insert'; if it is a Sequential, put it into a module of your own")
    modules = dict(model.named_modules())
    for (cut, level), halves in inserts.items():
        if cut >= len(cuts) or cuts[cut] not in modules:
            known = f"'{cuts[cut]}' is not one of its modules" if cut < len(cuts) else f"only {len(cuts)} cuts are given"
            raise InsertError(f"the file has an insert at cut {cut}, but {known}; cuts must be the run's model.cuts")
        if any("weight" not in half or not half.keys() & {"bias", "mean"} for half in halves.values()) or (level > 1 and (cut, level - 1) not in inserts):
            raise InsertError(f"the insert at cut {cut} is not complete")
    conv = {
        (cut, level): _is_conv(cut, _kind(kinds, cut, level), halves["encoder"]["weight"], halves["decoder"]["weight"], "mean" in halves["encoder"])
        for (cut, level), halves in inserts.items()
    }
    model.insert = torch.nn.Module()
    inner = {}  # the last insert so far, by cut
    for (cut, level), halves in sorted(inserts.items(), key=lambda each: each[0]):
        insert = _Insert(conv[cut, level], **halves)
        if level > 1:
            inner[cut].add_outer(level, insert)
            inner[cut] = insert
            continue
        inner[cut] = insert
        model.insert.add_module(str(cut), insert)

        def apply(_module, _inputs, output, insert=insert):
            return (insert(output[0]), *output[1:]) if isinstance(output, tuple) else insert(output)

        modules[cuts[cut]].register_forward_hook(apply)
    return model
