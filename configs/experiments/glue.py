#!/usr/bin/env python3
"""Prepares a GLUE task and a RoBERTa model for configs/experiments/{rte,cola}*.yaml.

    python3 configs/experiments/glue.py --task rte --glue data/glue/RTE --model roberta-base --output experiments/rte

Writes model.pt2, train.safetensors and validation.safetensors to the output folder. Needs the package cleave (python/), torch and
transformers. --model is the name or folder of a Hugging Face model; --glue is a folder with GLUE's train.tsv and dev.tsv.
"""

import argparse
import csv
import os
import sys

import torch
import transformers

import cleave_split

TASKS = {
    # columns of a row: sentences, label; whether the file has a header
    "rte": {"sentences": (1, 2), "label": 3, "classes": ["entailment", "not_entailment"], "header": True},
    "cola": {"sentences": (3,), "label": 1, "classes": ["0", "1"], "header": False},
}


def read_rows(path, task):
    """The sentences and the class of each row."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if task["header"]:
        rows = rows[1:]
    texts, labels = [], []
    for number, row in enumerate(rows, start=1):
        try:
            labels.append(task["classes"].index(row[task["label"]]))
            texts.append([row[column] for column in task["sentences"]])
        except (IndexError, ValueError):
            raise SystemExit(f"glue.py: {path}, row {number}: not a row of this task: {row}") from None
    if not rows:
        raise SystemExit(f"glue.py: {path} has no rows")
    return texts, labels


def encode(tokenizer, path, task, length):
    texts, labels = read_rows(path, task)
    columns = list(zip(*texts))
    tokens = tokenizer(*map(list, columns), padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "labels": torch.tensor(labels)}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--glue", required=True, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--model", default="roberta-base", help="name or folder of a Hugging Face model; default: roberta-base")
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--length", type=int, default=128, help="tokens per sample; default: 128")
    options = parser.parse_args(arguments)
    task = TASKS[options.task]
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    data = {split: encode(tokenizer, os.path.join(options.glue, name), task, options.length)
            for split, name in (("train", "train.tsv"), ("validation", "dev.tsv"))}
    cleave_split.save_dataset(data, options.output)
    example = {name: data["train"][name][:2] for name in ("input_ids", "attention_mask")}
    cleave_split.export(model, example, os.path.join(options.output, "model.pt2"), output="logits")
    print(f"{options.output}: {len(data['train']['labels'])} training samples, {len(data['validation']['labels'])} for validation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
