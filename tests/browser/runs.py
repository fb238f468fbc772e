"""Writes run folders for tests, with the columns of docs/metrics.md and figures that the tests know."""
import csv
import datetime
import json
import math
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN = datetime.datetime(2026, 1, 31, 12, 0, 0)
FLOWS = (("activation/0", True), ("gradient/1", True), ("activation/1", False), ("gradient/0", False))
STARTED = "2026-01-31T11:59:58.125Z"
RAW, HEAD = 401408, 325
ADVICE = "no setting would save more than 5 % of a step"


def columns(table):
    text = (ROOT / "docs/metrics.md").read_text()
    block = re.search(rf"<!-- begin:{table} -->(.*?)<!-- end:{table} -->", text, re.S)[1]
    return re.findall(r"^\| `(\w+)`", block, re.M)


def utc(seconds):
    return (BEGIN + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds") + "Z"


class Table:
    """A growing CSV file."""

    def __init__(self, folder, name, names):
        folder.mkdir(parents=True, exist_ok=True)
        self.names = names
        self.file = open(folder / f"{name}.csv", "w", newline="")
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow(names)

    def row(self, **cells):
        unknown = set(cells) - set(self.names)
        assert not unknown, f"no such columns: {unknown}"
        self.writer.writerow([cells.get(name, "") for name in self.names])

    def flush(self):
        self.file.flush()


class Run:
    """A run with `step_seconds` per step. Writes the folders of both sides, in the same places as a client without --server."""

    CLIENT_ONLY = ("loss", "top1", "top5")

    def __init__(self, folder, name="test-20260131-120000-0000", codec="block:bits=8", step_seconds=0.05, rate=50e6,
                 config="", total=0):  # fmt: skip
        self.folder, self.name, self.codec, self.step_seconds, self.rate = pathlib.Path(folder), name, codec, step_seconds, rate
        self.server = self.folder / "server" / "local" / name
        self.steps = 0
        self.generation = 1
        self.lost = 0  # seconds of lost steps and of interruptions
        self.tables = {}
        for side, place in (("client", self.folder), ("server", self.server)):
            for table in ("transfers", "steps", "epochs"):
                names = [column for column in columns(table)
                         if side == "client" or not column.endswith(self.CLIENT_ONLY)]
                self.tables[side, table] = Table(place, table, names)
            self.tables[side, "steps"].row(**self.common(0), phase="handshake", control_up_bytes=328, control_down_bytes=65)
        (self.folder / "config.yaml").write_text(f'run:\n  name: "test"\ntrain:\n  batch: 128\n  epochs: 2\ncodec: "{codec}"\n{config}')
        if total:
            (self.folder / "run.json").write_text(json.dumps({"run": name, "server": "", "steps": total, "epochs": 2}))
        for place in (self.folder, self.server):
            (place / "environment.json").write_text(json.dumps({"libtorch": "2.11.0", "cpu": {"cores": 2}, "started": STARTED}))
        self.flush()

    def common(self, seconds):
        return {"time": utc(seconds), "run": self.name, "session": 1, "generation": self.generation}

    def seconds(self):
        return 0.1 + self.lost + self.steps * self.step_seconds

    def loss(self, step):
        return 2.5 * math.exp(-step / 80) + 0.1 + 0.02 * math.sin(step)

    def wire(self):
        return RAW if self.codec == "none" else RAW // 4

    def step(self):
        self.steps += 1
        step, end = self.steps, self.seconds()
        bytes_ = 2 * (self.wire() + HEAD)
        shared = dict(phase="train", step=step, epoch=1, samples=128, micro_batches=1, seconds=self.step_seconds,
                      body_forward_seconds=0.010, body_backward_seconds=0.012, encode_seconds=0.001, decode_seconds=0.002,
                      update_seconds=0.001, raw_up_bytes=2 * RAW, raw_down_bytes=2 * RAW, wire_up_bytes=bytes_,
                      wire_down_bytes=bytes_, control_up_bytes=600, control_down_bytes=700)  # fmt: skip
        self.tables["client", "steps"].row(
            **self.common(end), **shared, head_forward_seconds=0.004, tail_step_seconds=0.002, head_backward_seconds=0.003,
            rate_up=self.rate, rate_down=2 * self.rate, latency_seconds=0.005, bound_seconds=self.step_seconds / 1.25,
            over_bound=1.25, bottleneck="uplink", learning_rate=0.1 / step, gradient_norm=2 + 1 / step,
            loss=f"{self.loss(step):.9g}", top1=1 - self.loss(step) / 3, top5=1)  # fmt: skip
        self.tables["server", "steps"].row(**self.common(end), **shared)
        for i, (flow, up) in enumerate(FLOWS):
            seconds = (self.wire() + HEAD) / self.rate / (1 if up else 2)
            for side in ("client", "server"):
                sends = up == (side == "client")
                self.tables[side, "transfers"].row(
                    **self.common(end - 0.004 * (4 - i)), role="send" if sends else "recv", phase="train", step=step,
                    micro_batch=0, flow=flow, codec=self.codec, shape="128x8x14x14", raw_bytes=RAW,
                    wire_bytes=self.wire() + HEAD, encode_seconds=0.0005, queue_seconds=0.0001,
                    wire_seconds=f"{seconds:.9g}", decode_seconds=0.0005, snr_db=30 + i if sends and step % 10 == 1 else "",
                    delivery_rate=1e8 if side == "client" else 2e8, round_trip_seconds=0.011, retransmits=step // 20)  # fmt: skip

    def flush(self):
        for table in self.tables.values():
            table.flush()

    def close(self):
        for table in self.tables.values():
            table.file.close()

    def train(self, steps):
        for _ in range(steps):
            self.step()
        self.flush()

    def reconnect(self):
        self.generation += 1

    def resume(self, step):
        """Continues from the checkpoint of `step`, a second after the last step."""
        self.generation += 1
        now = self.seconds() + 1
        for side in ("client", "server"):
            self.tables[side, "steps"].row(**self.common(now), phase="handshake", control_up_bytes=328, control_down_bytes=65)
            self.tables[side, "steps"].row(**self.common(now), phase="resume", step=step)
        self.steps = step
        self.lost += now - self.seconds()
        self.flush()

    def evaluate(self, loss, top1):
        end = self.seconds() + 0.1
        row = dict(epoch=1, steps=self.steps, samples=128 * self.steps, train_seconds=self.steps * self.step_seconds)
        self.tables["client", "epochs"].row(**self.common(end), **row, eval_seconds=0.1, train_loss=1, eval_loss=loss, eval_top1=top1)
        self.tables["server", "epochs"].row(**self.common(end), **row)
        self.flush()

    def end(self):
        for side in ("client", "server"):
            self.tables[side, "steps"].row(**self.common(self.seconds() + 0.2), phase="bye",
                                           control_up_bytes=148, control_down_bytes=38)  # fmt: skip
        self.flush()
        (self.folder / "summary.json").write_text(json.dumps({"bound": {"advice": {"sentence": ADVICE}}}))

    def whole(self, steps=200, top1=0.9):
        self.train(steps)
        self.evaluate(0.4, top1)
        self.end()
        return self
