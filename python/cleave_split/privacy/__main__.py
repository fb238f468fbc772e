"""python -m cleave_split.privacy audit RECORDING..."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import runpy
import sys
from typing import Optional, Sequence

from cleave_split.errors import Error

from .audit import MAX_SAMPLES, audit
from .table import ATTACKS, Model

_PROGRAM = "python -m cleave_split.privacy"
_NAMES = [field.name for field in dataclasses.fields(Model)]


def _model(path: Optional[str]) -> Optional[Model]:
    """The Model whose fields a Python file defines."""
    if path is None:
        return None
    if not pathlib.Path(path).is_file():
        raise Error("wrong-use", f"there is no file {path}", f"give --model a Python file that defines some of {', '.join(_NAMES)}")
    values = runpy.run_path(path)
    if not any(name in values for name in _NAMES):
        raise Error("wrong-use", f"{path} defines none of {', '.join(_NAMES)}", "define what the attacker knows of the model: docs/privacy.md")
    return Model(**{name: values[name] for name in _NAMES if name in values})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="What does the server learn? Attacks on recorded traffic.")
    commands = parser.add_subparsers(dest="command", required=True)
    attacks = commands.add_parser("attacks", help="lists the attacks")
    attacks.add_argument("--markdown", action="store_true", help="as the table in docs/privacy.md")
    command = commands.add_parser(
        "audit", help="runs all attacks that fit on recordings", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  cleave-client train --config run.yaml --record-traffic recording --record-inputs\n"
               f"  {_PROGRAM} audit recording --model known.py")  # fmt: skip
    command.add_argument("recordings", nargs="+", metavar="RECORDING", help="a folder of train --record-traffic DIR --record-inputs")
    command.add_argument("--output", default="audit", metavar="DIR", help="the folder to write; if interrupted, rerun to resume (default: audit)")
    command.add_argument("--model", metavar="FILE.py", help="a Python file that defines what the attacker knows of the model: docs/privacy.md")
    command.add_argument("--run", action="append", default=[], metavar="DIR", help="the folder of a recorded run that was moved; repeatable")
    command.add_argument("--attack", action="append", default=[], metavar="NAME", help="runs only this attack; repeatable")
    command.add_argument("--known", type=float, default=0.5, metavar="SHARE", help="share of the samples that the attacker knows (default: 0.5)")
    command.add_argument("--samples", type=int, default=MAX_SAMPLES, metavar="N", help=f"maximum samples per flow (default: {MAX_SAMPLES})")
    command.add_argument("--quiet", action="store_true", help="shows no progress")
    return parser


def _list(is_markdown: bool) -> None:
    if is_markdown:
        print("| Attack | Finds | The attacker knows | Needs |\n|---|---|---|---|")
    for attack in ATTACKS:
        if is_markdown:
            print(f"| {attack.name} | {attack.finds}s | {attack.knows} | {attack.needs} |")
        else:
            print(f"{attack.name:<22}{attack.finds:<8}knows {attack.knows}; needs {attack.needs}")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "attacks":
        _list(options.markdown)
        return 0
    try:
        result = audit(options.recordings, options.output, model=_model(options.model), runs=options.run, known=options.known,
                       attacks=options.attack, max_samples=options.samples, bar=not options.quiet)  # fmt: skip
    except Error as error:
        print(f"{_PROGRAM}: error [{error.code}]: {error.sentence}\n{_PROGRAM}: hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{_PROGRAM}: error [not-writable]: {error}\n{_PROGRAM}: hint: check the permissions and the free space of the disk", file=sys.stderr)
        return 1
    for flow in result["flows"]:
        print(f"{flow['recording']} {flow['flow']} {flow['codec']} (epochs: {flow['epochs']}): {flow['verdict']}")
    print(f"{options.output}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
