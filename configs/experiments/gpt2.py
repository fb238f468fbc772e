#!/usr/bin/env python3
"""Prepares real text, its tokenizer and a small GPT-2 for configs/experiments/gpt2.yaml and gpt2_lora.yaml.

    python3 configs/experiments/gpt2.py --output experiments/gpt2

Downloads the source of vaderSentiment from PyPI with pip. It contains sentences of movie reviews, of editorials of the New York Times
and of product reviews from Amazon (Hutto and Gilbert, "VADER", ICWSM 2014). Movie reviews and editorials are the text that the model is
trained on from scratch (base-train.txt, base-test.txt); product reviews are the text that it is adapted to (products-train.txt,
products-test.txt). The tokenizer is a byte-level BPE of base-train.txt. Needs the package cleave (python/), torch and transformers.
"""

import argparse
import glob
import os
import random
import subprocess
import sys
import tarfile
import tempfile

import tokenizers
import torch
import transformers

import cleave_split

SOURCE = "vaderSentiment==3.3.2"
# Per text: its files in the archive, and the share of the text that is held out. The smaller text has the larger share, so that its
# perplexity is measured on enough tokens.
TEXTS = {
    "base": (["movieReviewSnippets", "nytEditorialSnippets"], 0.1),
    "products": (["amazonReviewSnippets"], 0.2),
}
END = "<|endoftext|>"


def download(folder):
    """Returns the path of the package's source."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder]
    subprocess.run([*pip, "--no-binary", ":all:", SOURCE], check=True)
    return glob.glob(os.path.join(folder, "vader*.tar.gz"))[0]


def read_archive(path):
    """Returns the lines of each file of ratings: an ID, a rating and a sentence, separated by tabs."""
    with tarfile.open(path) as source:
        name = [each for each in source.getnames() if each.endswith("hutto_ICWSM_2014.tar.gz")][0]
        with tarfile.open(fileobj=source.extractfile(name)) as archive:
            return {name: archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt").read().decode("utf-8", errors="replace").splitlines()
                    for names, _ in TEXTS.values() for name in names}


def split(lines, held_out):
    """Returns the sentences of training and test. Sentences of one article or review (IDs such as 12_3) are in the same split, and
    repeated sentences are left out."""
    groups, seen = {}, set()
    for line in lines:
        identifier, _, sentence = line.split("\t", 2)
        if sentence not in seen:
            seen.add(sentence)
            groups.setdefault(identifier.split("_")[0], []).append(sentence)
    order = list(groups)
    random.Random(1).shuffle(order)
    test = set(order[: round(held_out * len(order))])
    return ([sentence for group in order if group not in test for sentence in groups[group]],
            [sentence for group in order if group in test for sentence in groups[group]])


def train_tokenizer(sentences, vocabulary):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((sentence + "\n" for sentence in sentences), trainer)
    return tokenizer


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--source", help="the source of vaderSentiment 3.3.2, a .tar.gz file; default: downloaded from PyPI")
    parser.add_argument("--vocabulary", type=int, default=4000, help="tokens of the tokenizer; default: 4000")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sample; default: 64")
    parser.add_argument("--layers", type=int, default=4, help="default: 4")
    parser.add_argument("--width", type=int, default=128, help="values per token in the model; default: 128")
    parser.add_argument("--heads", type=int, default=4, help="heads of a layer; default: 4")
    parser.add_argument("--seed", type=int, default=1, help="seed of the initial weights; default: 1")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        lines = read_archive(options.source or download(scratch))
    os.makedirs(options.output, exist_ok=True)
    texts = {}
    for text, (names, held_out) in TEXTS.items():
        parts = [split(lines[name], held_out) for name in names]
        for number, part in enumerate(("train", "test")):
            texts[f"{text}-{part}"] = [sentence for each in parts for sentence in each[number]]
    tokenizer = train_tokenizer(texts["base-train"], options.vocabulary)
    tokenizer.save(os.path.join(options.output, "tokenizer.json"))
    for name, sentences in texts.items():
        with open(os.path.join(options.output, name + ".txt"), "w", encoding="utf-8", newline="") as file:
            file.writelines(sentence + "\n" for sentence in sentences)
        tokens = sum(len(each.ids) for each in tokenizer.encode_batch([sentence + "\n" for sentence in sentences]))
        print(f"{options.output}/{name}.txt: {len(sentences)} sentences, {tokens} tokens")
    end = tokenizer.token_to_id(END)
    config = transformers.GPT2Config(vocab_size=tokenizer.get_vocab_size(), n_positions=options.length, n_embd=options.width,
                                     n_layer=options.layers, n_head=options.heads, bos_token_id=end, eos_token_id=end)
    torch.manual_seed(options.seed)
    model = transformers.GPT2LMHeadModel(config)
    config.save_pretrained(options.output)
    cleave_split.export(model, {"input_ids": torch.zeros(2, options.length, dtype=torch.long)}, os.path.join(options.output, "model.pt2"), output="logits")
    print(f"{options.output}/model.pt2: {model.num_parameters() / 1e6:.2f} M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
