"""Finds and starts the programs, and reads what they print."""

from __future__ import annotations

import collections
import concurrent.futures
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Union

from cleave_split.errors import Error, error_in, error_of
from cleave_split.torch_versions import choose

Path = Union[str, "os.PathLike[str]"]
Config = Union[Path, Mapping[str, Any]]


class HasAddress(Protocol):
    """Such as a Server."""

    address: str


OneServer = Union[str, HasAddress]
Servers = Union[OneServer, Sequence[OneServer], None]

log = logging.getLogger("cleave_split")


def path_of(program: str) -> str:
    """The path of cleave-client, cleave-server, cleave-link or cleave-relay.

    Looks in the folder CLEAVE_PROGRAMS if that is set, then in this package, then in PATH.
    """
    folder = os.environ.get("CLEAVE_PROGRAMS")
    if folder:
        path = os.path.join(os.path.abspath(folder), program)
        if os.access(path, os.X_OK):
            return path
        raise Error("no-program", f"there is no {program} in {folder}, the folder CLEAVE_PROGRAMS", "set CLEAVE_PROGRAMS to the folder of the programs, or unset it")
    chosen = choose()
    if chosen:
        return str(chosen.folder / program)
    found = shutil.which(program)
    if found:
        return os.path.abspath(found)
    raise Error("no-program", f"this installation of cleave-split has no programs, and {program} is not in PATH",
                "on 64-bit x86 Linux, install the wheel: docs/install.md; or add the folder of the built programs to PATH")


def environment() -> Dict[str, str]:
    """The environment in which the programs find LibTorch."""
    chosen = None if os.environ.get("CLEAVE_PROGRAMS") else choose()
    return chosen.environment() if chosen else dict(os.environ)


# Programs end when the thread that started them ends, so one thread starts them all, and lives as long as this process.
_starter: Optional[concurrent.futures.ThreadPoolExecutor] = None
_starter_process = 0
_starter_lock = threading.Lock()


def _in_starter(function, *arguments):
    global _starter, _starter_process
    with _starter_lock:
        if _starter is None or _starter_process != os.getpid():  # after a fork, the thread is missing
            _starter, _starter_process = concurrent.futures.ThreadPoolExecutor(1, "cleave-starter"), os.getpid()
    return _starter.submit(function, *arguments).result()


class Process:
    """A program in progress. It ends with this Python process, whatever ends that: see _launch.py.

    A Ctrl-C in the terminal does not reach it, because it has a session of its own: interrupt() does.
    """

    MAX_LOG_LINES = 500

    def __init__(self, program: str, arguments: Sequence[str]):
        self.program = program
        launcher = str(pathlib.Path(__file__).with_name("_launch.py"))
        command = [sys.executable, "-I", "-S", launcher, str(os.getpid()), path_of(program), *arguments]
        self._lines: "collections.deque[str]" = collections.deque(maxlen=self.MAX_LOG_LINES)
        self._process = _in_starter(lambda: subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True,
            encoding="utf-8", errors="replace"))  # fmt: skip
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """The lines of stdout, as they are printed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")

    def log_text(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self._lines)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the end, and returns the exit code."""
        code = self._process.wait(timeout)
        self._reader.join(timeout=5)  # a grandchild may still hold the pipe
        return code

    def signal(self, number: int) -> None:
        if self.is_running():
            self._process.send_signal(number)

    def interrupt(self) -> int:
        """Interrupts the program as Ctrl-C in a shell does, and waits for its end. A second Ctrl-C meanwhile ends it at once."""
        threading.Thread(target=lambda: collections.deque(self.lines(), maxlen=0), daemon=True).start()  # it must not wait for a reader
        while True:
            self.signal(signal.SIGINT)
            try:
                return self.wait()
            except KeyboardInterrupt:
                continue

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            line = line.rstrip("\n")
            self._lines.append(line)
            found = re.search(r"\[(warning|error)\] (.*)", line)
            if found:
                log.log(logging.WARNING if found[1] == "warning" else logging.ERROR, found[2])
            else:
                log.debug(line)


def run(program: str, *arguments: str) -> str:
    """Runs a program, and returns what it printed on stdout. Raises its error."""
    text, code = output_of(program, *arguments)
    if code != 0:
        raise error_in_output(text, code, program)
    return text


def run_json(program: str, *arguments: str, accepted: Sequence[int] = (0,)) -> Any:
    """Runs a program with --json, and returns the document that it printed. Raises its error."""
    text, code = output_of(program, *arguments, "--json")
    if code not in accepted:
        raise error_in_output(text, code, program)
    document = json.loads(text)
    if isinstance(document, dict) and list(document) == ["error"]:
        raise error_of(document["error"])
    return document


class _Output(str):
    """What a program printed on stdout; `log`: on stderr."""

    log = ""


def output_of(program: str, *arguments: str) -> "tuple[_Output, int]":
    process = Process(program, arguments)
    try:
        text = _Output("".join(f"{line}\n" for line in process.lines()))
        code = process.wait()
    except BaseException:
        process.interrupt()
        raise
    text.log = process.log_text()
    return text, code


def error_in_output(text: _Output, code: int, program: str) -> Error:
    try:
        return error_of(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return error_in(text.log, code, program)


# ---- arguments ----


def set_options(settings: Optional[Mapping[str, Any]]) -> List[str]:
    """{"train.epochs": 3} as ["--set", "train.epochs=3"]."""
    return [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value_text(value)}")]


def value_text(value: Any) -> str:
    """A value as --set takes it: text as it is, all else as JSON, which is YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=plain)


def plain(value: Any) -> Any:
    """For json.dumps: paths, and numbers and arrays of NumPy and PyTorch."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a configuration cannot have a value of type {type(value).__name__}: {value!r}")


def connection_options(server: Servers, tls: Optional[Path]) -> List[str]:
    """`server`: "HOST:PORT", a Server, or several of these."""
    options: List[str] = []
    if server is not None:
        several: Sequence[Any] = server if isinstance(server, (list, tuple)) else [server]
        options += ["--server", ",".join(each if isinstance(each, str) else each.address for each in several)]
    if tls is not None:
        options += ["--tls", os.fspath(tls)]
    return options


class ConfigFile:
    """The configuration as a file: `with ConfigFile(config) as options:` yields ["--config", FILE]. A dict becomes a temporary file."""

    def __init__(self, config: Optional[Config]):
        self._config = config
        self._folder: Optional[str] = None

    def __enter__(self) -> List[str]:
        if self._config is None:
            return []
        if not isinstance(self._config, Mapping):
            return ["--config", os.fspath(self._config)]
        self._folder = tempfile.mkdtemp(prefix="cleave-")
        path = os.path.join(self._folder, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._config, file, indent=1, default=plain, ensure_ascii=False)  # JSON is YAML
        return ["--config", path]

    def __exit__(self, _: object, error: object, __: object) -> None:
        if self._folder is None:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, Error):  # the file is gone; `key` says where in the dict
            error.sentence = re.sub(rf"{re.escape(self._folder)}/config\.yaml(:\d+: |:\d+)?", "", error.sentence)
            error.location = ""
