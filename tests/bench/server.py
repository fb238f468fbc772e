"""A server on loopback, for the benchmarks."""
import pathlib
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build/release/bin"


class Server:
    """`settings`: KEY=VALUE; `arguments`: of the process."""

    def __init__(self, store, *settings, **arguments):
        self.process = subprocess.Popen(
            [PROGRAMS / "cleave-server", "serve", "--config", ROOT / "configs/server.yaml", "--set=listen.port=0", f"--set=store={store}",
             *(f"--set={one}" for one in settings), "--log-level", "error"], stdout=subprocess.PIPE, text=True, **arguments)  # fmt: skip
        self.address = "127.0.0.1:" + self.process.stdout.readline().rsplit(":", 1)[1].strip()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
