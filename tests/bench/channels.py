#!/usr/bin/env python3
"""Compares quantisers with the same number of bits per value, by the SNR in dB, on the tensors of two models.

    .deps/python/bin/python tests/bench/channels.py

Needs the models of configs/experiments/efficientnet.py and reviews.py, in experiments/. With "bits per channel", all blocks of a
channel have the same number of bits; the numbers follow from the channels' standard deviations, as those of `adaptive` do from its blocks'
ranges. A block has 64 values; its minimum and step are not rounded.
"""
import gzip

import numpy
import torch

SIZE = 64
ITEMS = "/usr/share/datasets/fashion-mnist/train"


def hadamard():
    matrix = torch.ones(1, 1, dtype=torch.double)
    while len(matrix) < SIZE:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / SIZE**0.5


def quantised(blocks, widths):
    low, high = blocks.min(1, keepdim=True).values, blocks.max(1, keepdim=True).values
    widths = widths.view(-1, 1).double()
    step = ((high - low) / (2**widths - 1).clamp(min=1)).clamp(min=1e-30)
    return torch.where(widths == 0, (low + high) / 2, ((blocks - low) / step).round() * step + low)


def widths_for(scales, bits):
    """0, 2, …, 8 bits per value: one more for twice the scale, and at most `bits` on average (reverse water-filling)."""
    def at(level):
        widths = (torch.log2(scales.clamp(min=1e-30)) - level).round().clamp(0, 8)
        return torch.where(widths == 1, torch.zeros_like(widths), widths)

    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if at(middle).mean() <= bits else (middle, high)
    return at(high)


def snr(values, decoded):
    return (10 * torch.log10(values.square().sum() / (values - decoded).square().sum())).item()


def compare(tensor, channel):
    """SNR per kind, for 2, 3 and 4 bits. `channel`: the dimension of the channels."""
    values = tensor.detach().double()
    blocks = values.movedim(channel, -1).reshape(-1, SIZE)  # images cross in the order channels last
    by_channel = values.movedim(channel, 0).reshape(values.shape[channel], -1, SIZE)
    reordered = by_channel.reshape(-1, SIZE)
    rotated = blocks @ hadamard()

    def same(of, bits):
        return of, torch.full((len(of),), bits)

    def adaptive(of, bits):
        return of, widths_for(of.amax(1) - of.amin(1), bits)

    kinds = {
        "`block`": lambda bits: same(blocks, bits),
        "with rotation": lambda bits: same(rotated, bits),
        "`adaptive`": lambda bits: adaptive(blocks, bits),
        "`channels(block)`": lambda bits: same(reordered, bits),
        "`channels(adaptive)`": lambda bits: adaptive(reordered, bits),
        "bits per channel": lambda bits: (reordered, widths_for(by_channel.flatten(1).std(1), bits).repeat_interleave(by_channel.shape[1])),
    }
    found = {}
    for kind, of in kinds.items():
        found[kind] = []
        for bits in (2, 3, 4):
            encoded, widths = of(bits)
            found[kind].append(snr(encoded, quantised(encoded, widths)))
    return found


def tensors(file, inputs, labels, modules):
    """The outputs of these modules of an exported model, and their gradients."""
    model = torch.export.unflatten(torch.export.load(file))
    kept = {}

    def keep(name):
        def hook(_module, _inputs, output):
            kept[name] = output[0] if isinstance(output, tuple) else output
            kept[name].retain_grad()

        return hook

    for name, module in model.named_modules():
        if name in modules:
            module.register_forward_hook(keep(name))
    output = model(**inputs)
    torch.nn.functional.cross_entropy(output if torch.is_tensor(output) else output[0], labels).backward()
    return kept


def items(kind, offset):
    with gzip.open(f"{ITEMS}-{kind}-ubyte.gz") as file:
        return torch.tensor(numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=offset))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)  # of dropout
    from safetensors.torch import load_file

    reviews = {name: values[:8] for name, values in load_file("experiments/reviews/train.safetensors").items()}
    images = items("images-idx3", 16)[: 16 * 784].reshape(16, 1, 28, 28).float() / 255
    images = torch.nn.functional.interpolate(images, size=64, mode="bilinear")
    found = [
        ("MiniLM", -1, tensors("experiments/reviews/model.pt2", {name: reviews[name] for name in ("input_ids", "attention_mask")}, reviews["labels"],
                               ["bert.encoder.layer.0", "bert.encoder.layer.4"])),
        ("EfficientNet-Lite0", 1, tensors("experiments/efficientnet/model.pt2", {"image": images}, items("labels-idx1", 8)[:16].long(),
                                          ["net._bn0", "net._blocks.0"])),
    ]  # fmt: skip
    rows = [(model, name, what, compare(values, channel)) for model, channel, kept in found for name, tensor in kept.items()
            for what, values in (("activations", tensor), ("gradients", tensor.grad))]  # fmt: skip
    print(f"| Tensor | Values | {' | '.join(rows[0][3])} |\n|{'---|' * (2 + len(rows[0][3]))}")
    for model, name, what, kinds in rows:
        cells = [", ".join(f"{value:.1f}" for value in each) for each in kinds.values()]
        print(f"| {model}, `{name}` | {what} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
