"""Prepares PyTorch models for Cleave: docs/models.md."""

from cleave.exporting import ExportError, export

__all__ = ["ExportError", "export"]
