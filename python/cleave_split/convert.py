"""Converts a PyTorch checkpoint into a safetensors file, which Cleave reads.

    python -m cleave_split.convert CHECKPOINT.pth OUTPUT.safetensors [--key state_dict]

Nothing that is pickled in the checkpoint is executed: only tensors are loaded.
"""

import argparse
import os
import re
import sys
import warnings

import torch

from cleave_split.safetensors_file import can_write, write_safetensors


class ConvertError(ValueError):
    """The checkpoint cannot be converted; `hint` says what to do."""

    def __init__(self, sentence, hint):
        super().__init__(_printable(sentence))
        self.hint = _printable(hint)


def _printable(text):
    """`text` without control characters, which names in a checkpoint may contain."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _check_format(path):
    """Refuses a file that is neither a zip archive nor a pickle, which torch.save wrote before PyTorch 1.6."""
    with open(path, "rb") as file:
        start = file.read(4)
    if start != b"PK\x03\x04" and not start.startswith(b"\x80"):
        raise ConvertError(f"{path} is not a file that torch.save wrote",
                           "give a PyTorch checkpoint, such as model.pth; safetensors files need no conversion")


def _load(path):
    try:
        _check_format(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's advice on how to execute the file
            return torch.load(path, map_location="cpu", weights_only=True)
    except ConvertError:
        raise
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror}", "give the path of a file that torch.save wrote") from error
    except Exception as error:  # damaged files cause errors of many kinds
        if "weights_only" in str(error):
            found = re.search(r"GLOBAL (\w[\w.]*)", str(error))
            raise ConvertError(f"{path} contains code" + (f" ({found[1]})" if found else "") + ", which Cleave never runs",
                               "if you trust the file, load it in your own program, and save only its tensors: "
                               "torch.save(model.state_dict(), 'weights.pth')") from error
        raise ConvertError(f"{path} is damaged or incomplete", "copy or download the file again") from error


def _tensor_dicts(value, key=""):
    """The dicts in `value` that contain tensors, by their keys: "" for `value` itself, otherwise such as "trainer.state_dict"."""
    if not isinstance(value, dict):
        return {}
    tensors = {str(name): entry.detach() for name, entry in value.items() if isinstance(entry, torch.Tensor)}
    found = {key: tensors} if tensors else {}
    for name, entry in value.items():
        found.update(_tensor_dicts(entry, f"{key}.{name}" if key else str(name)))
    return found


def _choose(dicts, key, path):
    """The dict of tensors with this key."""
    if key in dicts:
        return dicts[key]
    sentence = f"the entry {key} of {path} is not a dict of tensors" if key else f"{path} has no tensors at its top level"
    if not dicts:
        raise ConvertError(f"{path} contains no dict of tensors", "save the weights with torch.save(model.state_dict(), 'weights.pth')")
    if "" in dicts:
        raise ConvertError(sentence, "omit --key")
    largest = sorted(dicts, key=lambda each: -len(dicts[each]))[:5]
    raise ConvertError(sentence, f"use --key {largest[0]}" + (f"; other entries with tensors: {', '.join(largest[1:])}" if largest[1:] else ""))


def _check_tensors(tensors):
    for name, tensor in tensors.items():
        if not can_write(tensor):
            kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
            raise ConvertError(f"the tensor {name} is {kind}, which Cleave does not read".replace("torch.", ""),
                               "remove it, or replace it by a dense tensor of floats or integers, in PyTorch; then save the checkpoint again")


def convert(checkpoint, output, key=""):
    """Writes the tensors in the entry `key` of the file `checkpoint` to the file `output`, and returns them."""
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise ConvertError(f"there is no folder {folder}", "create the folder, or give another output file")
    tensors = _choose(_tensor_dicts(_load(checkpoint)), key, checkpoint)
    _check_tensors(tensors)
    try:
        write_safetensors(tensors, output)
    except OSError as error:
        raise ConvertError(f"cannot write {output}: {error.strerror}", "give another output file") from error
    return tensors


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m cleave_split.convert", description=__doc__.splitlines()[0],
                                     epilog="Example: python -m cleave_split.convert resnet18.pth resnet18.safetensors")
    parser.add_argument("checkpoint", help="a file written by torch.save")
    parser.add_argument("output", help="the safetensors file to write")
    parser.add_argument("--key", default="", help="the entry of the checkpoint that contains the weights, such as state_dict or trainer.state_dict")
    options = parser.parse_args(arguments)
    try:
        tensors = convert(options.checkpoint, options.output, options.key)
    except ConvertError as error:
        print(f"cleave_split.convert: error: {error}\ncleave_split.convert: hint: {error.hint}", file=sys.stderr)
        return 2
    print(f"{options.output}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
