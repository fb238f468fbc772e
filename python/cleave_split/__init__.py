"""Split training of PyTorch models on two machines: docs/python.md.

Exports models and datasets (docs/models.md), and runs the programs cleave-client and cleave-server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cleave_split.errors import Error, Interrupted
from cleave_split.runs import Page, Run
from cleave_split.serving import Certificates, Server, certs
from cleave_split.tools import Check, Sweep, doctor, plan, suggest_cuts, sweep
from cleave_split.training import Callback, train

if TYPE_CHECKING:
    from cleave_split.datasets import DatasetError, save_dataset
    from cleave_split.exporting import ExportError, export
    from cleave_split.inserts import InsertError, add_inserts

__version__ = "0.1.0"

# These need PyTorch, which takes seconds to import, so they are imported at the first use.
_LATER = {"DatasetError": "datasets", "save_dataset": "datasets", "ExportError": "exporting", "export": "exporting",
          "InsertError": "inserts", "add_inserts": "inserts"}  # fmt: skip

__all__ = ["Callback", "Certificates", "Check", "DatasetError", "Error", "ExportError", "InsertError", "Interrupted", "Page", "Run", "Server",
           "Sweep", "add_inserts", "certs", "doctor", "export", "plan", "save_dataset", "suggest_cuts", "sweep", "train"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(importlib.import_module(f"cleave_split.{_LATER[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
