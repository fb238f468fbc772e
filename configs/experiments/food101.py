#!/usr/bin/env python3
"""Writes the lists of FOOD101's training and test images for configs/experiments/food101.yaml.

    python3 configs/experiments/food101.py --data data/food-101

The folder is the content of the archive food-101.tar.gz (Bossard et al., 2014): images/CLASS/NUMBER.jpg, and meta/train.txt and
meta/test.txt with a line CLASS/NUMBER per image.
"""

import argparse
import csv
import os
import sys


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder food-101")
    options = parser.parse_args(arguments)
    for split in ("train", "test"):
        names = os.path.join(options.data, "meta", split + ".txt")
        if not os.path.exists(names):
            parser.error(f"{names} does not exist: unpack food-101.tar.gz, and pass its folder with --data")
        with open(names) as file:
            images = file.read().split()
        with open(os.path.join(options.data, split + ".csv"), "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label"])
            rows.writerows([f"images/{image}.jpg", image.split("/")[0]] for image in images)
        print(f"{options.data}/{split}.csv: {len(images)} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
