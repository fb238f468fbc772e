"""Writes safetensors files, which Cleave reads."""

import json
import os
import struct

import torch

_DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}


def can_write(tensor):
    """Whether Cleave's files can contain the tensor: it is dense, and its dtype is not complex, quantized or of 8-bit floats."""
    return tensor.layout == torch.strided and tensor.dtype in _DTYPES


def write_safetensors(tensors, path):
    """Writes a dict of tensors for which `can_write` is true. The file appears whole or not at all."""
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
