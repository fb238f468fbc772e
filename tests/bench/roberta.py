#!/usr/bin/env python3
"""Writes RoBERTa-base with random weights and a classifier of two classes as model.pt2, and random tokens as train.safetensors and
test.safetensors. Needs torch, transformers and the package cleave_split (python/). Called by gpu.py."""

import argparse
import os

import torch
import transformers

import cleave_split


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--samples", type=int, default=768, help="default: 768")
    parser.add_argument("--length", type=int, default=128, help="tokens per sample; default: 128")
    options = parser.parse_args()
    torch.manual_seed(1)
    config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_labels=2)
    model = transformers.RobertaForSequenceClassification(config)

    def split(samples):
        tokens = torch.randint(3, config.vocab_size, (samples, options.length))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.randint(0, 2, (samples,))}

    os.makedirs(options.output, exist_ok=True)
    cleave_split.save_dataset({"train": split(options.samples), "test": split(32)}, options.output)
    example = {name: split(2)[name] for name in ("input_ids", "attention_mask")}
    cleave_split.export(model, example, os.path.join(options.output, "model.pt2"), output="logits")


if __name__ == "__main__":
    main()
