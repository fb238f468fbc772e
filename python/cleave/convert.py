"""Converts a PyTorch checkpoint into a safetensors file, which Cleave reads.

    python -m cleave.convert CHECKPOINT.pth OUTPUT.safetensors [--key state_dict]

Nothing that is pickled in the checkpoint is executed: only tensors are loaded.
"""

import argparse
import json
import os
import pickle
import struct
import sys

import torch

_DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}


def write_safetensors(tensors, path):
    """Writes a dict of tensors. The file appears whole or not at all."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.part"
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    os.replace(temporary, path)


def _tensors_in(checkpoint, key):
    if key:
        checkpoint = checkpoint[key]
    if not isinstance(checkpoint, dict):
        raise SystemExit("cleave.convert: the checkpoint is not a dict of tensors; pass the name of the entry that is one with --key")
    tensors = {name: value.detach().cpu() for name, value in checkpoint.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise SystemExit(f"cleave.convert: no tensors found; pass the entry that contains them with --key, one of {', '.join(map(str, checkpoint))}")
    return tensors


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m cleave.convert", description=__doc__.splitlines()[0],
                                     epilog="Example: python -m cleave.convert resnet18.pth resnet18.safetensors")
    parser.add_argument("checkpoint", help="a file written by torch.save")
    parser.add_argument("output", help="the safetensors file to write")
    parser.add_argument("--key", help="the entry of the checkpoint that contains the weights, such as state_dict")
    options = parser.parse_args(arguments)
    try:
        checkpoint = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise SystemExit(f"cleave.convert: {options.checkpoint} cannot be read without executing what it contains: "
                         f"{str(error).splitlines()[0]}") from error
    tensors = _tensors_in(checkpoint, options.key)
    write_safetensors(tensors, options.output)
    print(f"{options.output}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
