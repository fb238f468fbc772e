"""Reads the CSV tables of runs and sweeps: docs/metrics.md, "Files and readers"."""

from __future__ import annotations

import io
import pathlib
import re
from typing import TYPE_CHECKING, Any, List, Optional, Sequence

from cleave_split.errors import Error

if TYPE_CHECKING:
    import pandas


def pandas_module() -> Any:
    try:
        import pandas
    except ImportError:
        raise Error("no-pandas", "DataFrames need pandas, which is not installed", "pip install pandas") from None
    return pandas


def parts(folder: pathlib.Path, name: str) -> List[pathlib.Path]:
    """The files of a table that may be rotated, in order: transfers.1.csv, transfers.2.csv, transfers.csv."""
    numbered = ((re.fullmatch(rf"{name}\.(\d+)\.csv", path.name), path) for path in folder.glob(f"{name}.*.csv"))
    rotated = [path for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]
    return [*rotated, folder / f"{name}.csv"]


def whole_rows(folder: pathlib.Path, name: str) -> Optional[bytes]:
    """The header and all complete rows, also while the run continues; None if there is no such table."""
    while True:
        files = parts(folder, name)
        rows: List[bytes] = []
        for file in files:
            try:
                content = file.read_bytes()
            except FileNotFoundError:  # for a moment after a rotation, or before the first row
                continue
            rows.append(content[: content.rfind(b"\n") + 1])
        if parts(folder, name) == files:  # otherwise a file was rotated meanwhile
            break
    rows = [part for part in rows if part]
    if not rows:
        return None
    return rows[0] + b"".join(part[part.index(b"\n") + 1 :] for part in rows[1:])


def table(folder: pathlib.Path, name: str) -> pandas.DataFrame:
    """All rows of a run's table."""
    pandas = pandas_module()
    content = whole_rows(folder, name)
    if content is None:
        raise Error("no-table", f"{folder} has no {name}.csv with a complete line", "wait until the run has begun, or check the folder", exit_code=1)
    rows = pandas.read_csv(io.BytesIO(content))
    rows["time"] = pandas.to_datetime(rows["time"])
    return rows


def last_rows(rows: pandas.DataFrame, key: Sequence[str]) -> pandas.DataFrame:
    """The last of the rows with the same `key`, in the order of the file."""
    return rows[~rows.duplicated([*key], keep="last")].reset_index(drop=True)


def read(path: pathlib.Path) -> pandas.DataFrame:
    return pandas_module().read_csv(path)
