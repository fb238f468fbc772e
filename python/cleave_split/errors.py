"""The exceptions of the programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from cleave_split.runs import Run


class Error(Exception):
    """What a program reports when it fails: docs/troubleshooting.md lists the codes.

    code       such as "other-data"; "wrong-use" for a wrong argument
    sentence   what is wrong, and where
    hint       how to fix it
    resume     the command that continues the run; empty if there is none
    key        what must change: a key of the configuration or an option; empty if neither
    location   where the configuration has the key; empty if it does not have it
    exit_code  1: a retry or a change elsewhere may help; 2: the call, the configuration or the data is wrong
    """

    def __init__(self, code: str, sentence: str, hint: str = "", *, resume: str = "", key: str = "", location: str = "", exit_code: int = 2):
        super().__init__(code, sentence, hint)
        self.code, self.sentence, self.hint = code, sentence, hint
        self.resume, self.key, self.location, self.exit_code = resume, key, location, exit_code

    def __str__(self) -> str:
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"[{self.code}] {self.sentence}{hint}"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or the notebook's stop button, ended a run after it made a checkpoint. `run.resume()` continues it.

    run  the run; None if it had not begun
    """

    def __init__(self, sentence: str, run: Optional[Run] = None):
        super().__init__(sentence)
        self.run = run


def error_of(report: Mapping[str, Any]) -> Error:
    """The exception for a program's JSON error."""
    texts = {name: str(report.get(name) or "") for name in ("sentence", "hint", "resume", "key", "location")}
    sentence, hint = texts.pop("sentence"), texts.pop("hint")
    return Error(str(report["code"]), sentence, hint, exit_code=int(report["exit_code"]), **texts)


def error_in(log: str, exit_code: int, program: str) -> Error:
    """The exception for the error that `log`, a program's output on stderr, ends with."""
    found = re.findall(r"^[\w-]+: error(?: \[([\w-]+)\])?: (.*)\n[\w-]+: hint: (.*)$", log, re.M)
    if found:
        code, sentence, hint = found[-1]
        return Error(code or "wrong-use", sentence, hint, exit_code=exit_code)
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return Error("program-ended", f"{program} {how} without a message: {log[-2000:].strip() or 'it printed nothing'}",
                 "run the same command in a terminal; if it ends in the same way, reinstall the package", exit_code=exit_code)
