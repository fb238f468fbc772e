#!/usr/bin/env python3
"""Writes tests/data/torchvision_resized.bin, the reference data for tests/client/data/samples/transforms_test.cpp: 100
Pillow images after torchvision's Resize and CenterCrop. The file has 64 pixels of each resulting
image, 3 bytes per pixel. Pixel n of the 64 is at position n x P / 64, rounded down, of the image's P
pixels.

Needs torchvision; no test runs it. Last used with torchvision 0.26.0 and Pillow 13.0.0.
Example: python3 tests/oracle/resized_images.py"""
import pathlib

import numpy
from PIL import Image
from torchvision import transforms

IMAGES = 100
PIXELS = 64
# (resize, crop) of the configuration; 0: not set.
SIZES = [(256, 224), (40, 32), (64, 64), (232, 224), (9, 7), (0, 64), (48, 0), (224, 0)]


def mixed(value):
    """A 32-bit hash whose upper bits depend on all bits of the value."""
    value = value * 2654435761 & 0xFFFFFFFF
    return (value ^ value >> 15) * 2246822519 & 0xFFFFFFFF


def image(number):
    """The image with this number: noise, a gradient, a checkerboard, rings or coarse noise."""
    height = 1 + mixed(2 * number) % 400
    width = 1 + mixed(2 * number + 1) % 500
    y, x, c = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    kind = number % 5
    if kind == 0:
        values = mixed((y * width + x) * 3 + c + number) >> 24
    elif kind == 1:
        values = (x * 255 // width + y * (c + 1) * 100 // height) % 256
    elif kind == 2:
        values = (x // (1 + number % 7) + y // (1 + number % 3) + c) % 2 * 255
    elif kind == 3:
        values = ((x - width // 2) ** 2 + (y - height // 2) ** 2 + c * 50) // (4 + number % 31) % 256
    else:
        values = mixed((y // 8 * 100 + x // 8) * 3 + c + number) >> 24
    return Image.fromarray(values.astype(numpy.uint8))


def resized(number):
    """uint8 [height, width, 3]"""
    resize, crop = SIZES[number % len(SIZES)]
    steps = []
    if resize > 0:
        steps.append(transforms.Resize(resize if crop > 0 else (resize, resize)))
    if crop > 0:
        steps.append(transforms.CenterCrop(crop))
    return numpy.array(transforms.Compose(steps)(image(number)))


def main():
    data = b""
    for number in range(IMAGES):
        pixels = resized(number).reshape(-1, 3)
        data += pixels[[n * len(pixels) // PIXELS for n in range(PIXELS)]].tobytes()
    folder = pathlib.Path(__file__).resolve().parent.parent / "data"
    (folder / "torchvision_resized.bin").write_bytes(data)


if __name__ == "__main__":
    main()
