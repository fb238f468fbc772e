"""Reads and writes safetensors files."""

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


def read_safetensors(path, names=None):
    """The tensors of a file that Cleave has written, by name; if `names` is given, only these."""
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        tensors = {}
        for name in header if names is None else names:
            begin, end = header[name]["data_offsets"]
            dtype, shape = dtypes[header[name]["dtype"]], header[name]["shape"]
            file.seek(8 + size + begin)
            content = bytearray(file.read(end - begin))
            # frombuffer does not accept an empty buffer.
            tensors[name] = torch.frombuffer(content, dtype=dtype).reshape(shape) if end > begin else torch.empty(shape, dtype=dtype)
    return tensors
