"""Prepares PyTorch models and datasets for Cleave: docs/models.md."""

from cleave.datasets import DatasetError, save_dataset
from cleave.exporting import ExportError, export

__all__ = ["DatasetError", "ExportError", "export", "save_dataset"]
