"""Prepares PyTorch models and datasets for Cleave: docs/models.md."""

from cleave_split.datasets import DatasetError, save_dataset
from cleave_split.exporting import ExportError, export
from cleave_split.inserts import InsertError, add_inserts

__all__ = ["DatasetError", "ExportError", "InsertError", "add_inserts", "export", "save_dataset"]
