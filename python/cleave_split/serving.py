"""Starts cleave-server, and makes certificates."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any, Dict, Mapping, Optional

from cleave_split import programs
from cleave_split.errors import Error, error_in
from cleave_split.programs import Config, ConfigFile, Path, Process, set_options


class Server:
    """A server on this machine. Runs from construction until close(), or the end of the `with` block.

    config    the path of a YAML file, or a dict: docs/configuration.md, "The server's keys"
    settings  replaces values of the configuration. Without `listen.port`, the server listens on a free port of loopback.

        with cleave_split.Server(settings={"store": "store"}) as server:
            cleave_split.train("photos.yaml", server=server)

    Raises Error if it cannot start. It ends with this Python process, whatever ends that.
    """

    def __init__(self, config: Optional[Config] = None, *, settings: Optional[Mapping[str, Any]] = None):
        self._settings = {"listen.port": 0, **(settings or {})} if config is None else dict(settings or {})
        self._config = config
        with ConfigFile(config) as arguments:
            self._process = Process("cleave-server", ["serve", *arguments, *set_options(self._settings)])
            self.address = self._listening_address()
            """HOST:PORT, for clients on this machine."""

    def _listening_address(self) -> str:
        try:
            for line in self._process.lines():
                found = re.search(r" listens on (.+)$", line)
                if found:
                    threading.Thread(target=lambda: [None for _ in self._process.lines()], daemon=True).start()
                    return re.sub(r"^(0\.0\.0\.0|\[::\])", "127.0.0.1", found[1])
            code = self._process.wait()
        except BaseException:
            self.close()
            raise
        raise error_in(self._process.log_text(), code, "cleave-server")

    def __repr__(self) -> str:
        return f"<Server {self.address}, {'running' if self.is_running else 'ended'}>"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._process.is_running()

    @property
    def log(self) -> str:
        """The last lines of its log."""
        return self._process.log_text()

    def reload(self) -> None:
        """Reloads certificates, revocations and the access file (SIGHUP)."""
        self._process.signal(signal.SIGHUP)

    def status(self) -> Dict[str, Any]:
        """Sessions, memory and refusals, as `cleave-server status --json`."""
        with ConfigFile(self._config) as arguments:
            return programs.run_json("cleave-server", "status", *arguments, *set_options(self._settings))

    def close(self) -> None:
        """Lets steps in progress finish, informs the clients, and ends the server."""
        self._process.signal(signal.SIGTERM)
        code = self._process.wait()
        if code not in (0, -signal.SIGTERM):
            raise error_in(self._process.log_text(), code, "cleave-server")


class Certificates:
    """The certificates in a folder: docs/security.md. `cleave_split.certs` are those in ./certs.

        certs.init(names=["train.example.org"])
        clinic = certs.client("clinic-a")  # a folder to copy to the client's machine
    """

    def __init__(self, folder: Path = "certs"):
        self.folder = os.fspath(folder)

    def init(self, names: "tuple[str, ...] | list[str]" = (), *, renew: bool = False) -> None:
        """Makes an authority and the server's certificate. `names`: host names and addresses of the server; default: this machine's."""
        self._run("init", *[word for name in names for word in ("--name", name)], *_renew(renew))

    def client(self, name: str, *, renew: bool = False) -> str:
        """Makes a client's certificate, and returns the folder to copy to its machine, for `tls`."""
        return self._run("client", name, *_renew(renew))

    def revoke(self, name: str) -> None:
        """Revokes all certificates of a client. Call reload() of a running server afterwards."""
        self._run("revoke", name)

    def list(self) -> "list[Dict[str, Any]]":
        """All certificates with their state and expiry."""
        return programs.run_json("cleave-server", "certs", "list", "--folder", self.folder)["certificates"]

    def _run(self, command: str, *arguments: str) -> str:
        """Returns the path of what the command has made or changed."""
        return programs.run_json("cleave-server", "certs", command, *arguments, "--folder", self.folder)["path"]


def _renew(renew: bool) -> "list[str]":
    return ["--renew"] if renew else []


certs = Certificates()

__all__ = ["Certificates", "Error", "Server", "certs"]
