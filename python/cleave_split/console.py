"""The commands cleave-client, cleave-server, cleave-link and cleave-relay: each becomes the program for the installed PyTorch."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from cleave_split.errors import Error
from cleave_split.programs import environment, path_of


def _become(program: str) -> NoReturn:
    try:
        path = path_of(program)
        os.execve(path, [program, *sys.argv[1:]], environment())
    except Error as error:
        reason = error
    except OSError as error:
        reason = Error("no-program", f"{path} cannot be run: {error.strerror}", "reinstall the package: pip install --force-reinstall cleave-split")
    print(f"{program}: error [{reason.code}]: {reason.sentence}\n{program}: hint: {reason.hint}", file=sys.stderr)
    sys.exit(2)


def client() -> NoReturn:
    _become("cleave-client")


def server() -> NoReturn:
    _become("cleave-server")


def link() -> NoReturn:
    _become("cleave-link")


def relay() -> NoReturn:
    _become("cleave-relay")
