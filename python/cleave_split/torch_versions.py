"""Chooses the programs of this package that are built for the installed PyTorch: bin/torch-2.11 for any 2.11."""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import os
import pathlib
import re
import sys
from typing import Dict, List, Optional, Tuple

from cleave_split.errors import Error

FOLDER = pathlib.Path(__file__).parent / "bin"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

Minor = Tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Programs:
    """A folder of programs, and the PyTorch whose LibTorch they use."""

    folder: pathlib.Path
    torch: pathlib.Path  # the folder of the package torch

    def environment(self) -> Dict[str, str]:
        """This process's environment, in which the dynamic loader finds LibTorch and, next to it, the GPU libraries."""
        libraries = [str(self.torch / "lib"), *sorted(glob.glob(str(self.torch.parent / "nvidia" / "*" / "lib")))]
        before = os.environ.get("LD_LIBRARY_PATH")
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries + ([before] if before else []))}


def supported() -> List[Minor]:
    """The minor versions of PyTorch for which this package has programs, oldest first. Empty: it has none."""
    names = (re.fullmatch(r"torch-(\d+)\.(\d+)", path.name) for path in (FOLDER.iterdir() if FOLDER.is_dir() else ()))
    return sorted((int(name[1]), int(name[2])) for name in names if name)


def installed() -> Tuple[Optional[str], Optional[pathlib.Path]]:
    """The version of the installed PyTorch and its folder, without importing it; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None, None
    folder = pathlib.Path(spec.submodule_search_locations[0])
    try:
        found = re.search(r"__version__ = ['\"]([^'\"]+)", (folder / "version.py").read_text())
    except OSError:
        found = None
    return (found[1] if found else None), folder


def choose() -> Optional[Programs]:
    """The programs for the installed PyTorch; None if this package has no programs. Raises Error if none are built for it."""
    minors = supported()
    if not minors:
        return None
    known = ", ".join(f"{major}.{minor}" for major, minor in minors)
    wanted = "torch=={}.{}.*".format(*minors[-1])
    command = f"{sys.executable} -m pip install '{wanted}'"
    version, folder = installed()
    if version is None or folder is None:
        raise Error("no-torch", "PyTorch is not installed for this Python", f"{command}, or without GPU libraries: {command} --index-url {CPU_INDEX}")
    found = re.match(r"(\d+)\.(\d+)", version)
    minor = (int(found[1]), int(found[2])) if found else (0, 0)
    if minor not in minors:
        newer = "; or install a newer version of this package" if minor > minors[-1] else ""
        raise Error("torch-version", f"this package has programs for PyTorch {known}, but {version} is installed in {folder.parent}", command + newer)
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        raise Error("no-torch", f"the PyTorch in {folder} has no lib/libtorch_cpu.so", f"{command} --force-reinstall")
    return Programs(FOLDER / "torch-{}.{}".format(*minor), folder)
