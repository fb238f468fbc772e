"""Synthetic image files in the formats that the client reads. Reading them costs as much as reading real files, unlike the format
`synthetic`, which computes each image."""

import os
import struct


def cifar_data(folder, samples):
    """The configuration's `data` for `samples` CIFAR-10 images, written to `folder`, resized to 224
    x 224."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    for name in names + ["test_batch.bin"]:
        count = max(1, samples // 5 + (name == names[0]) * (samples % 5)) if name in names else 1
        with open(f"{folder}/{name}", "wb") as file:
            for index in range(count):
                file.write(bytes([index % 10]) + os.urandom(3072))
    return f"{{format: cifar10, folder: {folder}, resize: 224}}"


def idx_data(folder, samples):
    """The configuration's `data` for `samples` images of 28 x 28 with one channel, written to `folder` in IDX."""
    for name, count in (("train", samples), ("test", 1)):
        with open(f"{folder}/{name}-images", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + os.urandom(count * 28 * 28))
        with open(f"{folder}/{name}-labels", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(index % 10 for index in range(count)))
    files = lambda name: f"{{images: {folder}/{name}-images, labels: {folder}/{name}-labels}}"
    return f"{{format: idx, classes: 10, train: {files('train')}, test: {files('test')}}}"
