"""Prepares PyTorch models and datasets for Cleave: docs/models.md."""

from cleave.datasets import DatasetError, save_dataset
from cleave.exporting import ExportError, export
from cleave.inserts import InsertError, add_inserts

__all__ = ["DatasetError", "ExportError", "InsertError", "add_inserts", "export", "save_dataset"]
