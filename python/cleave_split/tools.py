"""Sweeps, plans, suggested cuts and checks."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

from cleave_split import programs
from cleave_split.programs import Config, ConfigFile, Path, Servers, connection_options, set_options, value_text
from cleave_split.runs import Page, Run
from cleave_split.tables import read

if TYPE_CHECKING:
    import pandas


class Sweep:
    """The folder of a sweep: docs/sweep.md describes its files."""

    def __init__(self, path: Path):
        self.path = pathlib.Path(path)

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r})"

    @property
    def results(self) -> pandas.DataFrame:
        """results.csv: a row per point."""
        return read(self.path / "results.csv")

    @property
    def groups(self) -> pandas.DataFrame:
        """groups.csv: a row per group of points that differ only in the seed or the fold, with mean and standard deviation."""
        return read(self.path / "groups.csv")

    def run(self, point: str) -> Run:
        """The run of a point: `point` is from `results`."""
        return Run(self.path / point)

    def report(self) -> Page:
        """The page with the tables and charts: a notebook shows it."""
        return Page(self.path / "report.html")


def sweep(config: Config, grid: Mapping[str, Sequence[Any]], *, reference: Optional[Mapping[str, Any]] = None,
          settings: Optional[Mapping[str, Any]] = None, folder: Optional[Path] = None,
          server: Servers = None, tls: Optional[Path] = None) -> Sweep:  # fmt: skip
    """Trains with every combination of the values in `grid`, and compares them. If interrupted, the same call resumes.

    grid       values by key, such as {"codec": ["none", "block:bits=4"], "link.rate": ["100Mbit/s", "1Gbit/s"]}
    reference  the grid's values that are the baseline of the speed-up, such as {"codec": "none"}
    folder     default: sweeps/<run.name>
    The rest is as for train(). If a point failed, the sweep is returned too: `results` has its `failure`.
    """
    arguments = [word for key, values in grid.items() for value in values for word in ("--grid", f"{key}={value_text(value)}")]
    arguments += [word for key, value in (reference or {}).items() for word in ("--reference", f"{key}={value_text(value)}")]
    arguments += connection_options(server, tls) + set_options(settings)
    if folder is not None:
        arguments += ["--folder", os.fspath(folder)]
    with ConfigFile(config) as options:
        return Sweep(programs.run_json("cleave-client", "sweep", *options, *arguments, accepted=(0, 1))["folder"])


def plan(config: Config, *, rate: str, latency: str, profile: Optional[Path] = None, server_profile: Union[Path, Sequence[Path], None] = None,
         settings: Optional[Mapping[str, Any]] = None, options: Sequence[str] = ()) -> Dict[str, Any]:  # fmt: skip
    """Finds the settings with the shortest predicted step on a link, as `cleave-client plan --json` prints them.

    rate, latency    of the link: "100Mbit/s", and one way: "10ms"
    profile          the client's times, from `cleave-client profile`; None: measures them now
    server_profile   the server's times, from `cleave-server profile` there, or one per server; None: measures them on this machine
    options          further options of `cleave-client plan`, such as ["--keep-cuts"]
    """
    with ConfigFile(config) as config_options, tempfile.TemporaryDirectory(prefix="cleave-") as folder:
        chosen = [*config_options, *set_options(settings)]
        if profile is None:
            profile = os.path.join(folder, "client.json")
            programs.run("cleave-client", "profile", *chosen, "--output", profile, "--log-level", "warn")
        if server_profile is None:
            server_profile = os.path.join(folder, "server.json")
            programs.run("cleave-server", "profile", "--of", os.fspath(profile), "--output", server_profile, "--log-level", "warn")
        servers = [server_profile] if isinstance(server_profile, (str, os.PathLike)) else list(server_profile)
        return programs.run_json("cleave-client", "plan", *chosen, "--profile", os.fspath(profile),
                                 *(word for each in servers for word in ("--server-profile", os.fspath(each))),
                                 "--rate", rate, "--latency", latency, *options)  # fmt: skip


def suggest_cuts(file: Path) -> List[str]:
    """The two suggested cuts of an exported model, for `model.cuts`: docs/models.md, "Choose the cuts"."""
    cuts = programs.run_json("cleave-client", "models", "show", os.fspath(file))["cuts"]
    return [cut["names"][0] for cut in cuts if cut["suggested"]]


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of doctor()."""

    name: str
    finding: str  # ok, warn, FAIL or skipped
    sentence: str
    hint: str  # empty: nothing to do
    figures: Mapping[str, Any]

    def __str__(self) -> str:
        hint = f"\n{'':20}hint: {self.hint}" if self.hint else ""
        return f"{self.finding:<4}  {self.name:<12}  {self.sentence}{hint}"


def doctor(config: Optional[Config] = None, *, server: Servers = None, tls: Optional[Path] = None,
           settings: Optional[Mapping[str, Any]] = None, seconds: float = 3) -> List[Check]:  # fmt: skip
    """Checks what a run needs: LibTorch, threads, memory, disk, data, certificates, the server, the link, admission.

    seconds  approximate duration of the link's measurement
    Returns the checks. A run will fail if one of them has the finding "FAIL".
    """
    with ConfigFile(config) as options:
        arguments = [*options, *connection_options(server, tls), *set_options(settings), "--seconds", str(seconds)]
        report = programs.run_json("cleave-client", "doctor", *arguments, accepted=(0, 1))
    return [Check(check["check"], check["finding"], check["sentence"], check["hint"], check["figures"]) for check in report["checks"]]
