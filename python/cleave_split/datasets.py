"""Writes datasets in the format `tensors`, which Cleave reads."""

import os
import shutil

import torch

from cleave_split.safetensors_file import write_safetensors


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class DatasetError(ValueError):
    """The data cannot be written; the message says what to change."""


def save_dataset(dataset, folder, *, columns=None, max_shard_bytes=1 << 30):
    """Writes a dataset to `folder` and returns the paths to set in data.train.file and data.test.file, by split.

    dataset          a Hugging Face Dataset or DatasetDict, or a dict of arrays or tensors, or a dict of such dicts by
                     split. A column has one array of numbers per sample; all samples' arrays have the same length, so
                     tokenize with padding="max_length". An earlier version of a split is replaced.
    columns          the names of the columns to write; by default all columns of numbers
    max_shard_bytes  a larger split is written as a folder of several files

        encoded = dataset.map(lambda row: tokenizer(row["text"], padding="max_length", truncation=True, max_length=128))
        cleave_split.save_dataset(encoded, "data/reviews", columns=["input_ids", "attention_mask", "label"])
    """
    splits = dict(dataset.items()) if _has_splits(dataset) else {"data": dataset}
    os.makedirs(folder, exist_ok=True)
    return {name: _save_split(split, os.path.join(folder, name), columns, max_shard_bytes) for name, split in splits.items()}


def _has_splits(dataset):
    """Whether `dataset` is a dict of datasets by split."""
    if not isinstance(dataset, dict) or not dataset:
        return False
    first = next(iter(dataset.values()))
    return isinstance(first, dict) or hasattr(first, "column_names")


def _columns_of(dataset, wanted):
    if not hasattr(dataset, "column_names") and not hasattr(dataset, "keys"):
        raise DatasetError(f"the dataset is of type {type(dataset).__name__}, not a dict of columns: give one list per column, "
                           'such as {"x": [0.5, 1.5], "label": [0, 1]}')
    names = list(getattr(dataset, "column_names", None) or dataset.keys())
    if not names:
        raise DatasetError('the dataset has no columns: give at least one, such as {"x": [0.5, 1.5]}')
    for name in wanted or []:
        if name not in names:
            raise DatasetError(f"there is no column {name}, only {', '.join(names)}")
    columns, skipped = {}, []
    for name in wanted or names:
        tensor = _as_tensor(name, dataset[name])
        if tensor is not None:
            columns[name] = tensor
        elif wanted:
            raise DatasetError(f"the column {name} does not consist of numbers: tokenize it first, or leave it out of columns=")
        else:
            skipped.append(name)
    if not columns:
        raise DatasetError(f"none of the columns consists of numbers: {', '.join(skipped)}; tokenize them first")
    return columns


def _as_tensor(name, values):
    """The column as a tensor that Cleave can read; None if its values are not numbers."""
    try:
        values = values[:]
    except (TypeError, IndexError, KeyError) as error:
        raise DatasetError(f"the column {name} is a single value of type {type(values).__name__}: give a list or an array with one value per sample") from error
    try:
        tensor = torch.as_tensor(values)
    except (ValueError, TypeError, RuntimeError):
        if not _contains_numbers(values):
            return None
        tensor = _stacked(name, values)
    if tensor.is_complex():
        raise DatasetError(f"the column {name} has complex numbers, which Cleave does not read: split them into real and imaginary parts")
    if tensor.is_floating_point():
        return tensor if tensor.dtype == torch.float64 else tensor.float()
    return tensor if tensor.dtype in _INTEGERS else tensor.long()


def _stacked(name, values):
    """Stacks the rows of a column. The error names the first row that does not fit."""
    rows = []
    for row, value in enumerate(values):
        try:
            rows.append(torch.as_tensor(value))
        except (ValueError, TypeError, RuntimeError) as error:
            wrong = [each for each in _leaves(value) if not _is_number(each)]
            fault = (f"contains {wrong[0]!r:.40}, which is not a number: replace it, or remove the row" if wrong
                     else "has lists of different lengths: give it a rectangular shape")
            raise DatasetError(f"row {row} of the column {name} {fault}") from error
        if rows[row].shape != rows[0].shape:
            raise DatasetError(f"row {row} of the column {name} has the shape {list(rows[row].shape)}, but row 0 has {list(rows[0].shape)}: "
                               "give all rows the same shape; for text, tokenize with padding='max_length', truncation=True")
    return torch.stack(rows)


def _leaves(value):
    """The values in nested lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _is_number(value):
    try:
        torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError):
        return False
    return True


def _contains_numbers(values):
    """Whether the first value of a column that is not missing is a number."""
    first = next((each for each in _leaves(list(values)) if each is not None), None)
    return first is not None and _is_number(first)


def _save_split(dataset, path, wanted, max_shard_bytes):
    columns = _columns_of(dataset, wanted)
    samples = {name: len(values) for name, values in columns.items()}
    if len(set(samples.values())) != 1:
        raise DatasetError(f"the columns have different numbers of samples: {samples}")
    count = next(iter(samples.values()))
    if count == 0:
        raise DatasetError(f"there are no samples in {os.path.basename(path)}")
    bytes_each = sum(values[0].numel() * values.element_size() for values in columns.values())
    per_shard = max(1, max_shard_bytes // max(1, bytes_each))
    file = path + ".safetensors"
    if count <= per_shard:
        write_safetensors(columns, file)
        shutil.rmtree(path, ignore_errors=True)  # an earlier version of this split
        return file
    shutil.rmtree(path + ".part", ignore_errors=True)
    os.makedirs(path + ".part")
    for shard, first in enumerate(range(0, count, per_shard)):
        part = {name: values[first : first + per_shard] for name, values in columns.items()}
        write_safetensors(part, os.path.join(path + ".part", f"{shard:05}.safetensors"))
    shutil.rmtree(path, ignore_errors=True)
    os.replace(path + ".part", path)
    if os.path.exists(file):
        os.remove(file)
    return path
