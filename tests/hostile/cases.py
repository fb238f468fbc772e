"""Actions of hostile peers as a table of cases. Each case has a name, a function that performs the action, and the error codes with which
the server may end it."""
import hashlib
import math
import random
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Callable

import wire as w
from graphs import RELU, SAMPLES_OF_4, graph_of, node, tensor_argument, zstd

NAN, INF = math.nan, math.inf
HUGE32 = (2**31, 2**32 - 1)
HUGE = (2**31, 2**32, 2**62, 2**63, 2**64 - 1)


@dataclass
class Case:
    name: str
    act: Callable  # takes a World; returns the Peer that hostile.py must close, or None if act() has closed it
    codes: set = field(default_factory=set)  # or one text; acceptable error codes; "": the connection may be closed without a message
    deadline: float = 1.0  # seconds
    connections: int = 1  # number of connections for which the server may allocate memory
    uncounted: bool = False  # ended by the peer, or a run that failed: the server counts no refusal
    untold: set = field(default_factory=lambda: {"not-cleave"})  # or one; reasons that the server may count if the peer gets no message

    def __post_init__(self):
        self.codes = {self.codes} if isinstance(self.codes, str) else set(self.codes)
        self.untold = {self.untold} if isinstance(self.untold, str) else set(self.untold)


CASES = []


def adds_to(table):
    """A decorator with the arguments of a Case, which adds the function to the table."""

    def case(name, codes, **more):
        def add(act):
            table.append(Case(name, act, codes, **more))
            return act

        return add

    return case


case = adds_to(CASES)


def sends(name, codes, data, run=True, spec=None, **more):
    """Adds a case that sends these bytes, either in a run or before a Hello."""

    def act(world):
        peer = world.run(spec) if run else world.connect()
        peer.send(data)
        return peer

    CASES.append(Case(name, act, codes, **more))


# ---- Before a Hello ----

for kind in (0, *w.KINDS, 20, 128, 255):
    code = "bad-metadata" if kind == w.HELLO else "unexpected-frame" if kind in w.KINDS else "unknown-frame"
    sends(f"kind {kind} instead of a Hello", code, w.frame(kind), run=False)
for size in (65505, 65536, *HUGE32):
    sends(f"Hello with {size} bytes of metadata", "frame-too-large", w.header(w.HELLO, size), run=False)
sends("Hello of 65504 zeros", "bad-metadata", w.frame(w.HELLO, bytes(65504)), run=False)
for size in (1, 1 << 20, *HUGE32):
    sends(f"Hello with {size} bytes of payload", "frame-too-large", w.header(w.HELLO, 0, size), run=False)
for stream in (1, 2**31, 2**63, 2**64 - 1):
    sends(f"Hello of stream {stream}", "bad-frame", w.header(w.HELLO, stream=stream), run=False)
for flags in (2, 3, 0x8000, 0xFFFF):
    sends(f"flags {flags:#x}", "bad-frame", w.header(w.HELLO, flags=flags), run=False)
sends("checksum without its flag", "bad-frame", w.header(w.HELLO, checksum=1), run=False)
sends("wrong checksum", "bad-checksum", w.header(w.HELLO, flags=1, checksum=2**64 - 1), run=False)
for version in (0, w.VERSION - 1, w.VERSION + 1, 255):
    sends(f"frames of version {version}", "version-mismatch", w.header(w.HELLO, version=version), run=False)
for name, data in {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n", "TLS": bytes.fromhex("160301020001"), "SSH": b"SSH-2.0-x\r\n", "zeros": bytes(4096),
    "a magic that ends wrongly": b"CLVF" + bytes(28), "control characters": b"\x1b[2J\n\nfake log line\n",
}.items():  # fmt: skip
    sends(f"not Cleave: {name}", "not-tls" if name == "TLS" else "", data, run=False)


@case("nothing", "hello-timeout", deadline=2.5)
def _(world):
    return world.connect()


@case("half a header", "hello-timeout", deadline=2.5)
def _(world):
    peer = world.connect()
    peer.send(w.header(w.HELLO)[:16])
    return peer


@case("a Hello, byte by byte", "hello-timeout", deadline=2.5)
def _(world):
    peer = world.connect()
    for byte in w.hello("slow"):
        if not peer.send(bytes([byte])):
            break
        time.sleep(0.05)
    return peer


# ---- A Hello with impossible requests ----

REFUSALS = {
    "bad-run-spec", "unknown-model", "model-not-allowed", "unknown-codec", "bad-codec-spec", "unknown-schedule",
    "unknown-optimizer", "not-enough-memory", "bad-run-id", "bad-model-parameter", "bad-sample-shape", "bad-classes",
    "bad-cuts", "bad-optimizer-parameter", "bad-in-flight", "bad-metadata", "bad-precision",
}  # fmt: skip


def hellos(what, codes=REFUSALS, spec=None, **fields):
    def act(world):
        peer = world.connect()
        peer.send(w.hello(**{"run_id": world.run_id(), "spec": spec, **fields}))
        return peer

    CASES.append(Case(f"Hello: {what}", act, codes))


for kind in (4, 255, 2**31, 2**64 - 1):
    hellos(f"the kind {kind}", "bad-metadata", f1=kind)
hellos("a probe and a run", "bad-run-spec", f1=w.PROBE)
for run_id in ("", "../../etc/x", "a/b", "x" * 65, "A", "a\nb", "a\0b", ".", "-", "-rf", "--help"):
    hellos(f"run id {run_id!r}", "bad-run-id", run_id=run_id)
hellos("no run spec", spec=b"")
hellos("bytes that are not a message", "bad-metadata", spec=b"\x0a\xff\xff\xff\xff\x0f")
for what, fields in (("no JSON", b"{"), ("a list", b"[]"), ("JSON nested 20,000 deep", b"[" * 20_000), ("JSON that is not UTF-8", b'{"\xff\xfe": 1}'),
                     ("5,000 unknown fields", b"{" + b",".join(b'"%d":1' % i for i in range(5_000)) + b"}"), ("no fields", b"{}"),
                     ("a number that does not fit", b'{"cut0": 1e999}')):  # fmt: skip
    hellos(f"a run spec: {what}", "bad-run-spec", spec=w.message((1, fields)))
hellos("a run spec without a field", "bad-run-spec", spec=w.run_spec(seed=None))
hellos("a run spec with an unknown field", "bad-run-spec", spec=w.run_spec(more=1))
hellos("a run spec with a field of another type", "bad-run-spec", spec=w.run_spec(staleness="1"))
hellos("a text that is not UTF-8", "bad-metadata", run_id=b"\xff\xfe")
for name, field, values in (
    ("cut0", "cut0", (0, 5, 6, *HUGE32)), ("cut1", "cut1", (0, 2, 7, *HUGE32)), ("classes", "classes", (0, *HUGE)), ("batch", "max_batch", (0, *HUGE)), ("batch in training", "train_batch", (0, *HUGE)),
    ("micro-batches", "micro_batches", (0, 33, *HUGE32)),
):  # fmt: skip
    for value in values:
        hellos(f"{name} {value}", spec=w.run_spec(**{field: value}))
for shape in ([], [0], [2**31], [2**63], [2**64 - 1], [2**32, 2**32], [2**62, 2, 2], [1] * 9, [1] * 1500, [1, 2**20, 2**20]):
    hellos(f"samples of {str(shape)[:40]}", spec=w.run_spec(sample_shape=shape))
for value in ("-1", "0", "99999999999999999999", "1e9", "nan", "", "65536"):
    hellos(f"width '{value}'", spec=w.run_spec(parameters={"width": value}, sample_shape=[4096, 64, 64]))
hellos("an unknown parameter", spec=w.run_spec(parameters={"x" * 200: "\n"}))
for value in (NAN, INF, -INF, -1.0, 1e308):
    hellos(f"momentum {value}", spec=w.run_spec(optimizer=w.optimizer(momentum=value)))
    hellos(f"a time of {value}", spec=w.run_spec(model="sleep", parameters={"F2": str(value)}, cut0=1, cut1=2))

# ---- Graphs ----


for what, packed in {
    "no bytes": b"", "bytes that are not zstd": bytes(100), "a truncated frame": zstd(graph_of(RELU))[:-3],
    "a frame that claims 4 GiB": zstd(graph_of(RELU), 2**32 - 1), "a frame that claims too little": zstd(graph_of(RELU), 7),
    "more than 48 KiB": zstd(bytes(50_000)), "bytes that are not a message": zstd(b"\x0a\xff\xff\xff\xff\x0f"),
    "no nodes and no outputs": zstd(b"\x0a\x00"),
    "an operator that reads a file": zstd(graph_of(node("aten.from_file.default", w.message((1, "filename"), (6, "/etc/passwd"))))),
    "an operator with raw memory": zstd(graph_of(node("aten.as_strided.default", tensor_argument("self", 0)))),
    "an operator of another library": zstd(graph_of(node("evil.run.default", tensor_argument("self", 0)))),
    "an operator without its arguments": zstd(graph_of(node("aten.linear.default", tensor_argument("input", 0)))),
    "a value that is not there": zstd(graph_of(node("aten.relu.default", tensor_argument("self", 2**32 - 1)))),
    "a value that uses itself": zstd(graph_of(node("aten.relu.default", tensor_argument("self", 1)))),
    "a huge dimension": zstd(graph_of(RELU, values=(SAMPLES_OF_4, w.message((3, "f32"), (4, 2**64 - 1), (4, 2**39), (4, 2**39))))),
    "an input without samples": zstd(graph_of(RELU, values=(w.message((3, "f32"), (4, 4)), SAMPLES_OF_4))),
}.items():  # fmt: skip
    hellos(f"a graph: {what}", REFUSALS | {"bad-graph"}, spec=w.run_spec(model="graph", parameters={}, cut0=1, cut1=2, graph=packed, initial_weights=True))
hellos("a graph for another model", spec=w.run_spec(graph=zstd(graph_of(RELU))))

for name, ids in {"no connections": None, "a connection with the id 0": (7, 0), "1,025 connections": range(1, 1026)}.items():
    hellos(name, "bad-metadata", f14=None if ids is None else w.fixed64s(*ids))
for generation in (0, 2**63, 2**64 - 1):
    hellos(f"generation {generation}", "bad-metadata", f6=generation)
hellos("a token and take_over", "bad-metadata", f9=5, f13=True)

hellos("a model that sleeps", "model-not-allowed", spec=w.run_spec(model="sleep", parameters={"F2": "60000"}, cut0=1, cut1=2))
for codec in ("", "x", "none:", "block:bits=0", "block:bits=99999999999", "zstd(" * 100 + "none" + ")" * 100, "topk:ratio=nan",
              "topk:ratio=-1", "kmeans:bits=64", "svd:rank=4294967295", "power:rank=0"):  # fmt: skip
    hellos(f"codec '{codec[:24]}'", spec=w.run_spec(codec))
for name in ("model", "schedule", "precision"):
    hellos(f"{name} with control characters", spec=w.run_spec(**{name: "x\n\x1b[2J"}))
hellos("a precision that does not exist", "bad-precision", spec=w.run_spec(precision="f32"))
hellos("65 patterns of frozen parameters", "bad-run-spec", spec=w.run_spec(freeze=["*"] * 65))
hellos("a pattern of 257 characters", "bad-run-spec", spec=w.run_spec(freeze=["*" * 257]))
group = {"match": "*", "weight_decay": None}
hellos("65 parameter groups", "bad-run-spec", spec=w.run_spec(optimizer=w.optimizer([group] * 65)))
hellos("a group without a pattern", "bad-optimizer-parameter", spec=w.run_spec(optimizer=w.optimizer([{"match": "", "weight_decay": 0.5}])))
hellos("a group's weight decay is negative", "bad-run-spec",
       spec=w.run_spec(optimizer=w.optimizer([{"match": "*", "weight_decay": -0.5}])))


def insert_with(kind, cut=0, **parameters):
    """An insert of a run spec."""
    return {"cut": cut, "kind": kind, "parameters": parameters}


for what, inserts in (
    ("of an unknown kind", [insert_with("x" * 300, rank=2)]), ("at cut 4 billion", [insert_with("linear", 2**32 - 1, rank=2)]),
    ("without a rank", [insert_with("linear")]), ("of rank 2^64 - 1", [insert_with("linear", rank=2**64 - 1)]),
    ("of rank 2.5", [insert_with("linear", rank=2.5)]), ("of rank NaN", [insert_with("linear", rank=NAN)]),
    ("of rank 1e300", [insert_with("linear", rank=1e300)]),
    ("three times at a cut", [insert_with("linear", rank=2)] * 3),
    ("around one that tracks its basis", [insert_with("pca", channels=2), insert_with("linear", rank=1)]),
    ("whose basis has 2^32 values", [insert_with("pca", channels=2**16)]),
    ("that tracks a basis every 0 steps", [insert_with("pca", channels=2, every_steps=0)]),
    ("that decays every 0 steps", [insert_with("decaying", rank=2, every_steps=0)]),
    ("that decays every 2^64 - 1 steps", [insert_with("decaying", rank=2, every_steps=2**64 - 1)]),
    ("that decays to more than its rank", [insert_with("decaying", rank=2, every_steps=1, min_rank=3)]),
    *((f"that decays by {value}", [insert_with("decaying", decay=value, rank=2, every_steps=1)]) for value in (NAN, INF, -0.5, 1.5)),
    *((f"with an L1 penalty of {value}", [insert_with("decaying", l1=value, rank=2, every_steps=1)]) for value in (NAN, INF, -0.5, 1e300)),
):  # fmt: skip
    hellos(f"an insert {what}", {"bad-insert", "bad-run-spec"}, spec=w.run_spec(insert=inserts))
hellos("an insert that decays, but is frozen", "bad-insert",
       spec=w.run_spec(insert=[insert_with("decaying", rank=2, every_steps=1)], freeze=["insert.*"]))  # fmt: skip
hellos("1000 inserts", "bad-run-spec", spec=w.run_spec(insert=[insert_with("linear", rank=2)] * 1000))
hellos("fields repeated as often as fit", spec=w.run_spec(codecs={"f%d" % i: "" for i in range(400)}))
hellos("messages nested 900 deep", "bad-metadata", spec=b"\xa3\x06" * 900 + b"\xa4\x06" * 900)
hellos("messages nested 900 deep, not ended", "bad-metadata", spec=b"\xa3\x06" * 900)


@case("the same run twice", "run-in-use", connections=2)
def _(world):
    first = world.run()
    second = world.connect()
    second.send(w.hello(world.last_run_id))
    second.wait_for_close()
    world.leave(first)
    return second


@case("a higher generation, but another client's connections", "stale-generation", connections=2)
def _(world):
    first = world.run(f6=5)
    second = world.connect()
    second.send(w.hello(world.last_run_id, f6=6, f14=w.fixed64s(8, 9)))
    second.wait_for_close()
    world.leave(first)
    return second


# ---- Unexpected frames, and wrong lengths ----

for kind, code in ((w.HELLO, "unexpected-frame"), (w.HELLO_OK, "unexpected-frame"), (w.REFUSED, "unexpected-frame"),
                   (w.TENSOR, "bad-key"), (w.SEGMENT, "unknown-stream"), (w.RECEIVED, "bad-key"),
                   (w.BODY_DONE, "unexpected-message"), (w.STEP, "bad-metadata"), (w.STEP_OK, "unexpected-message"),
                   (w.FETCH, "bad-metadata"), (w.RESUME, "bad-metadata"), (w.SAVED, "unexpected-message"), (w.DRAIN, "unexpected-message"),
                   (w.NUMBERS, "bad-metadata"), (0, "unknown-frame"), (w.ROSTER, "unexpected-message"), (20, "unknown-frame"), (255, "unknown-frame")):  # fmt: skip
    sends(f"kind {kind}, empty, in a run", code, w.frame(kind))
for kind in range(w.FAILURE, w.FETCH + 1):
    cap = 4096 if kind in w.TENSOR_DATA else 65536
    stream = 1 if kind in w.TENSOR_DATA else 0
    for size in (cap + 1, *HUGE32):
        sends(f"kind {kind} with {size} bytes of metadata", "frame-too-large", w.header(kind, size, 0, stream))
    for size in ((1 << 20) + 1 if stream else 1, *HUGE32):
        sends(f"kind {kind} with {size} bytes of payload", "frame-too-large", w.header(kind, 0, size, stream))
    if kind != w.FAILURE:
        sends(f"kind {kind} with {cap} zeros for metadata", {"bad-metadata", "unexpected-message"}, w.frame(kind, bytes(cap)))
    for number in ((0,) if stream else (1, 2**63, 2**64 - 1)):
        sends(f"kind {kind} of stream {number}", "bad-frame", w.header(kind, stream=number))
sends("metadata nested 20,000 deep", "bad-metadata", w.frame(w.STEP, b"\xa3\x06" * 20000 + b"\xa4\x06" * 10000))
sends("a key repeated 30,000 times", "bad-key", w.frame(w.RECEIVED, b"\x0a\x00" * 30000))
for scale in (0.0, -1.0, float("nan"), float("inf")):
    sends(f"a loss scale of {scale}", "bad-metadata", w.step(scale=scale))
sends("8,000 learning rates", "bad-metadata", w.step(rates=[0.1] * 7000))
sends("two bases of inserts", "bad-metadata", w.step(bases=[(0, b"ab"), (0, b"ab")]))
sends("a basis of 60,000 bytes", "bad-metadata", w.step(bases=[(0, bytes(60000))]))
sends("a Failure with control characters", "", w.frame(w.FAILURE, w.message((1, "x\n"), (2, "\x1b[2J" * 1000))), uncounted=True)
sends("a Failure that is not a message", "", w.frame(w.FAILURE, b"\xff" * 100), uncounted=True)


# Escape sequences, line breaks, C1 control characters, a direction override.
ESCAPES = "x\x1b[2J\x1b]0;title\x07\r\nfake line\x9b31m\u202e"


@case("escape sequences in the texts of a run", "", uncounted=True)
def _(world):
    peer = world.run(f8=ESCAPES)
    peer.send(w.frame(w.BYE, w.message((1, ESCAPES))))
    return peer


@case("escape sequences in a Failure", "", uncounted=True)
def _(world):
    peer = world.run(f8=ESCAPES)
    peer.send(w.frame(w.FAILURE, w.message((1, ESCAPES), (2, ESCAPES), (3, ESCAPES))))
    return peer


for name in ("model", "schedule", "precision"):
    hellos(f"{name} with escape sequences", spec=w.run_spec(**{name: ESCAPES}))
hellos("optimizer with escape sequences", spec=w.run_spec(optimizer={"name": ESCAPES, "parameters": {ESCAPES: 0.5}, "groups": []}))
hellos("parameter with escape sequences", spec=w.run_spec(parameters={ESCAPES: ESCAPES}))
hellos("codec with escape sequences", spec=w.run_spec(ESCAPES))
hellos("flow with escape sequences", spec=w.run_spec(codecs={ESCAPES: "none"}))
hellos("run id with escape sequences", "bad-run-id", run_id=ESCAPES)


@case("the end of the stream in a frame", "", uncounted=True)
def _(world):
    peer = world.run()
    peer.send(w.header(w.STEP, 100))
    peer.socket.shutdown(socket.SHUT_WR)
    return peer


sends("a Bye that is not a message", "bad-metadata", w.frame(w.BYE, b"\xff"))

# ---- Tensors ----

TENSOR_CODES = {"bad-tensor", "bad-key", "bad-metadata", "step-gap", "bad-segment", "unexpected-message"}
for name, values, fields in (
    ("dims", [(2**63, 2), (2**32, 2**32), (2**64 - 1,), (0, 0), (), (8, 32, 1), (1,) * 9, (1,) * 1000, (256,), (32, 8)], "shape"),
    ("dtype", ["", "f64", "f16", "x" * 500], "dtype"), ("order", ["", "channels_last", "\n"], "order"),
    ("codec", ["", "block:bits=8", "x" * 1000], "codec"),
    ("encoded bytes", [0, w.RAW_BYTES - 1, w.RAW_BYTES + 1, *HUGE], "encoded_bytes"),
    ("micro-batch", [4, *HUGE32], "micro_batch"), ("micro-batches", [0, 3, 5, *HUGE32], "micro_batches"),
    ("samples", [0, 3, 33, *HUGE32], "samples"), ("weight version", [1, *HUGE], "weight_version"),
    ("step", [2, *HUGE], "step"), ("phase", ["", "probe", "infer", "x" * 500], "phase"),
    ("flow", ["", "activation/1", "gradient/0", "gradient/1", "weights/body", "grads/body", "probe", "x"], "flow"),
    ("seconds", [NAN, INF, -1.0], "seconds"), ("SNR", [NAN, INF, -INF], "snr_db"), ("codec level", [1, 2, 3, *HUGE32], "codec_level"),
):  # fmt: skip
    for value in values:
        sends(f"tensor with {name} {str(value)[:30]!r}", TENSOR_CODES, w.tensor(**{fields: value}))
sends("tensor without a spec", "bad-tensor", w.tensor(spec=b""))
sends("payload longer than the tensor", "bad-tensor", w.tensor(bytes(w.RAW_BYTES + 4)))
sends("gradient/1 before its activation/1", "bad-key", w.tensor(flow="gradient/1"))
sends("micro-batches in the wrong batch", "bad-key", w.tensor() + w.tensor(stream=2, micro_batch=1, samples=30))
sends("a batch within a batch", "unexpected-message",
      w.tensor() + w.tensor(stream=2, phase="eval", step=1))  # fmt: skip
sends("one more in flight than agreed", "too-many-in-flight",
      b"".join(w.tensor(stream=1 + i, step=1 + i // 4, micro_batch=i % 4) for i in range(5)))  # fmt: skip
sends("the same tensor opened again and again", "bad-key", b"".join(w.tensor(stream=1 + i, first=0) for i in range(19)))
sends("micro-batches out of order", "bad-key", w.tensor(micro_batch=1) + w.tensor(stream=2))

# ---- Segments ----

OPEN = w.tensor(first=512)
for name, code, data in (
    ("again", "bad-segment", w.segment(0, bytes(512))), ("overlapping", "bad-segment", w.segment(511, bytes(513))),
    ("with a gap", "bad-segment", w.segment(513, bytes(511))), ("too long", "bad-segment", w.segment(512, bytes(513))),
    ("empty", "bad-segment", w.segment(512, b"")), ("at 2^63", "bad-segment", w.segment(2**63, bytes(1))),
    ("at 2^64-1", "bad-segment", w.segment(2**64 - 1, bytes(1))),
    ("with a digest", "bad-segment", w.segment(512, bytes(512), sha256=bytes(32))),
    ("of another stream", "unknown-stream", w.segment(512, bytes(512), stream=2)),
    ("of stream 2^64-1", "unknown-stream", w.segment(512, bytes(512), stream=2**64 - 1)),
    ("after the last", "unknown-stream", w.segment(512, bytes(512)) + w.segment(1024, bytes(1))),
    ("while its stream opens again", "bad-segment", w.tensor(micro_batch=1)),
):  # fmt: skip
    sends(f"a segment {name}", code, OPEN + data)
sends("a stream after the one with the maximum number", "bad-segment", w.tensor(stream=2**64 - 1) + w.tensor(stream=1, micro_batch=1))

# ---- Trials, which leave no records ----


@case("more batches than a trial may have", "trial-too-long", deadline=5)
def _(world):
    peer = world.run(f1=w.TRIAL)
    for number in range(1, 102):
        one = bytes(w.WIDTH * 4)
        if not peer.send(w.tensor(one, stream=number, phase="eval", step=number, micro_batches=1, samples=1, shape=(1, w.WIDTH))):
            break
        while (got := peer.read_frame()) and got[0] != w.TENSOR:
            pass
        peer.send(w.received(phase="eval", step=number, flow="activation/1"))
    return peer


@case("the weights of a trial", "fetch-not-allowed")
def _(world):
    peer = world.run(f1=w.TRIAL)
    peer.send(w.fetch("weights/body"))
    return peer


# ---- Initial weights ----


for size in (1, 31, 33, 60000):
    hellos(f"a digest of {size} bytes", "bad-metadata", spec=w.run_spec(initial_weights=True), f12=bytes(size))


def weights(payload):
    """Frames that send weights/body with a digest."""
    opening = w.tensor(payload, spec=b"", step=0, flow="weights/body", micro_batches=0, samples=0)
    return opening + w.segment(len(payload), b"", sha256=hashlib.sha256(payload).digest())


# A safetensors file without tensors, which leaves all weights of the body unchanged.
NO_WEIGHTS = struct.pack("<Q", 2) + b"{}"
NO_WEIGHTS_SHA256 = hashlib.sha256(NO_WEIGHTS).digest()


def names_weights(world, sha256):
    """Returns a peer whose Hello names these weights, and whether the server has stored them."""
    peer = world.connect()
    peer.send(w.hello(world.run_id(), w.run_spec(initial_weights=True), f12=sha256))
    return peer, bool(peer.wait_for(w.HELLO_OK)[1].get(16))


@case("weights other than those that the Hello named", "bad-digest")
def _(world):
    peer, stored = names_weights(world, bytes(32))
    assert not stored
    peer.send(weights(NO_WEIGHTS))
    return peer


@case("weights that the server has stored", "unexpected-message", connections=8, deadline=5)
def _(world):
    for _ in range(100):  # the server stores the weights while the first run continues
        peer, stored = names_weights(world, NO_WEIGHTS_SHA256)
        if stored:
            peer.send(weights(NO_WEIGHTS))
            return peer
        peer.send(weights(NO_WEIGHTS))
        peer.wait_for(w.STEP_OK)
        world.leave(peer)
        time.sleep(0.05)
    raise AssertionError("the server does not store the weights")


# ---- Input of codecs: sizes, scales, indices ----

SPECS = ("block:bits=8", "block:bits=4,header=fp16", "uniform:bits=8", "uniform:bits=1", "sort:q=6,s=2", "fast:q=6,s=2", "kmeans:bits=4",
         "topk:ratio=0.1", "randtopk:ratio=0.1,alpha=0.1", "power:rank=2", "svd:rank=2", "fp8:format=e4m3", "fp16", "bf16",
         "zstd:level=1(block:bits=4)", "zstd:level=1(none)", "zstd:level=1(topk:ratio=0.1)", "rans(block:bits=4)", "rans(none)",
         "adaptive:bits=4", "channels(block:bits=4)",
         "channels(none)")  # fmt: skip
NOT_FINITE = struct.pack("<fff", NAN, INF, -INF)


def learn(world, spec, pattern, **tensor):
    peer = world.run(spec)
    peer.send(w.tensor(b"", **tensor))
    peer.wait_for_close()
    world.refused.append(peer)
    return re.search(pattern, peer.sentence)[1]


def payload_case(codec, what, contents, codes=("bad-payload", "unexpected-message", "non-finite")):
    """Adds a case that sends `contents(most)` as a tensor whose codec allows at most `most` bytes. If the contents are valid, the tensor is
    acknowledged, and a premature Step ends the run."""

    def act(world):
        spec = w.run_spec(codec)
        if codec not in world.learned:  # the refusals state the values that the server expects
            resolved = learn(world, spec, r"than the agreed (.+)", codec="?")
            world.learned[codec] = resolved, int(learn(world, spec, r"at most (\d+)", codec=resolved, encoded_bytes=2**40))
        resolved, most = world.learned[codec]
        peer = world.run(spec)
        peer.send(w.tensor(contents(most), codec=resolved))
        while (got := peer.read_frame()) and got[0] != w.RECEIVED:
            pass
        peer.send(w.step())
        return peer

    CASES.append(Case(f"{codec}: {what}", act, set(codes), connections=2))


def filled(start, pattern):
    return lambda most: (start + pattern * most)[:most]


for spec in SPECS:
    payload_case(spec, "nothing", lambda most: b"", {"bad-payload"})
    payload_case(spec, "one byte", lambda most: b"\1", {"bad-payload"})
    payload_case(spec, "one byte too few", lambda most: b"\1" + bytes(most - 2))
    payload_case(spec, "zeros", filled(b"", b"\0"))
    for form in range(5):
        payload_case(spec, f"form {form}, all bits set", filled(bytes([form]), b"\xff"))
        payload_case(spec, f"form {form}, not finite", filled(bytes([form]), NOT_FINITE))
        payload_case(spec, f"form {form}, random", filled(bytes([form]), random.Random(form).randbytes(300)))
for spec in ("block:bits=8", "block:bits=4,header=fp16", "uniform:bits=8", "sort:q=6,s=2", "fast:q=6,s=2", "kmeans:bits=4"):
    payload_case(spec, "scales that are not finite", filled(b"\1", b"\xff\x7f" * 2), {"bad-payload"})
VALUES = bytes(4 * 26)  # for topk: a tenth of the 256 elements, rounded up
payload_case("topk:ratio=0.1", "an index past the end", lambda most: b"\2" + VALUES + b"\x0a" * 25 + b"\x7f", {"bad-payload"})
payload_case("topk:ratio=0.1", "a distance of 2^64", lambda most: b"\2" + VALUES + b"\xff" * 9 + b"\x7f" + bytes(16), {"bad-payload"})
payload_case("topk:ratio=0.1", "more positions than values", lambda most: b"\1" + VALUES + b"\xff" * 32, {"bad-payload"})
payload_case("topk:ratio=0.1", "no positions", lambda most: b"\1" + VALUES + bytes(32), {"bad-payload"})
payload_case("zstd:level=1(none)", "a frame of 2^62 bytes",
             lambda most: bytes.fromhex("28b52ffde0") + struct.pack("<Q", 2**62) + bytes(8), {"bad-payload"})  # fmt: skip
payload_case("rans(none)", "a payload of 2^62 bytes", lambda most: b"\2" + struct.pack("<QI", 2**62, 0), {"bad-payload"})

# ---- Steps, and late messages ----

for number, code in ((0, "bad-metadata"), (1, "unexpected-message"), (2, "step-gap"), (2**63, "step-gap"), (2**64 - 1, "step-gap")):
    sends(f"Step {number} before anything", code, w.step(number))
for what, data in (("no rate", w.step(rates=())), ("a rate of NaN", w.step(rates=(NAN,))), ("a clip factor of infinity", w.step(clip=INF)),
                   ("a loss scale of 0", w.step(scale=0.0)), ("a loss scale of NaN", w.step(scale=NAN))):  # fmt: skip
    sends(f"Step with {what}", "bad-metadata", data)

# ---- Numbers of samples, for codecs that keep samples ----

KEPT = 64  # samples of the training data


def keeping(samples=KEPT):
    codecs = {flow: "delta(block:bits=8)" if flow == "activation/0" else "none" for flow in w.CODECS}
    return w.run_spec(codecs=codecs, train_samples=samples)


hellos("a codec that keeps samples, and no number of samples", spec=keeping(0))
hellos("2^32 - 1 samples to keep", "not-enough-memory", spec=keeping(2**32 - 1))
sends("numbers of samples that no codec keeps", "unexpected-message", w.samples([1]))
batch = range(w.SAMPLES)
for what, code, data in (
    ("a number beyond the data", "bad-metadata", w.samples([0, KEPT])), ("the number 2^32 - 1", "bad-metadata", w.samples([2**32 - 1])),
    ("no numbers", "bad-metadata", w.samples([])), ("the second number first", "bad-metadata", w.samples([1], first=1)),
    ("position 2^32 - 1", "bad-metadata", w.samples([1], first=2**32 - 1)), ("a batch twice", "bad-metadata", w.samples(batch) * 2),
    ("one number too many", "bad-metadata", w.samples([*batch, 0])), ("60,000 numbers", "bad-metadata", w.samples([1] * 60000)),
    ("two batches at once", "step-gap", w.samples(batch) + w.samples(batch, step=2)),
):  # fmt: skip
    sends(f"samples: {what}", code, data, spec=keeping())
for what, data in (("before the numbers of its samples", b""), ("after numbers for step 2^63", w.samples(batch, step=2**63))):
    tensor = w.tensor(bytes(200), codec="delta:first_bits=8,skip=0(block:bits=8)")
    sends(f"a tensor {what}", "bad-key", data + tensor, spec=keeping())

sends("two Fetches at once", "too-many-in-flight", w.fetch("weights/body") * 2)
sends("Fetch of grads/body between batches", "unexpected-message", w.fetch("grads/body"))
for flow in ("", "activation/0", "probe", "x" * 1000):
    sends(f"Fetch of '{flow[:12]}'", "bad-metadata", w.fetch(flow))


def train_step(peer, number=1):
    """Performs a complete, correct step. Returns the client's frames."""
    sent = []

    def send(data):
        sent.append(data)
        peer.send(data)

    stream = 1000 * number
    for i in range(4):
        send(w.tensor(stream=stream + 1 + i, step=number, micro_batch=i, weight_version=number - 1))
    for i in range(4):
        peer.wait_for(w.TENSOR)
        peer.send(w.received(step=number, micro_batch=i, flow="activation/1"))
    for i in range(4):
        send(w.tensor(stream=stream + 5 + i, step=number, micro_batch=i, weight_version=number - 1, flow="gradient/1"))
    gradients, body_done = 0, False
    while gradients < 4 or not body_done:  # these arrive in any order
        kind = peer.wait_for(w.TENSOR, w.BODY_DONE)[0]
        if kind == w.TENSOR:
            peer.send(w.received(step=number, micro_batch=gradients, flow="gradient/0"))
            gradients += 1
        else:
            body_done = True
    return sent


def finish_step(peer, number=1):
    peer.send(w.step(number))
    peer.wait_for(w.STEP_OK)


# ---- Bases of inserts ----


def halves(*rows):
    """A basis of these rows, as fp16."""
    return b"".join(struct.pack(f"<{w.WIDTH}e", *row) for row in rows)


def unit(position, value=1.0):
    return [value if n == position else 0.0 for n in range(w.WIDTH)]


IDENTITY = halves(*map(unit, range(w.WIDTH)))
ROW = 2 * w.WIDTH  # bytes
EVERY_STEP = w.run_spec(insert=[insert_with("pca", channels=w.WIDTH, every_steps=1)])
for what, spec, bases in (
    ("is missing", EVERY_STEP, ()), ("is empty", EVERY_STEP, [(0, b"")]), ("lacks a row", EVERY_STEP, [(0, IDENTITY[:-ROW])]),
    ("has 1 byte more", EVERY_STEP, [(0, IDENTITY + b"x")]), ("has 48 KiB", EVERY_STEP, [(0, bytes(48 << 10))]),
    ("has a NaN", EVERY_STEP, [(0, halves(unit(0, NAN)) + IDENTITY[ROW:])]), ("is infinite", EVERY_STEP, [(0, halves(unit(0, INF)) + IDENTITY[ROW:])]),
    ("has a value of 65,504", EVERY_STEP, [(0, halves(unit(0, 65504.0)) + IDENTITY[ROW:])]),
    ("is zero", EVERY_STEP, [(0, bytes(len(IDENTITY)))]), ("has a row twice", EVERY_STEP, [(0, IDENTITY[ROW : 2 * ROW] + IDENTITY[ROW:])]),
    ("has a row of length 0.9", EVERY_STEP, [(0, halves(unit(0, 0.9)) + IDENTITY[ROW:])]),
    ("is of another cut", EVERY_STEP, [(1, IDENTITY)]), ("is of cut 4 billion", EVERY_STEP, [(2**32 - 1, IDENTITY)]),
    ("comes too early", w.run_spec(insert=[insert_with("pca", channels=w.WIDTH, every_steps=2)]), [(0, IDENTITY)]),
    ("is of the body's encoder", w.run_spec(insert=[insert_with("pca", 1, channels=w.WIDTH, every_steps=1)]), [(1, IDENTITY)]),
    ("is of an insert that is trained", w.run_spec(insert=[insert_with("linear", rank=w.WIDTH)]), [(0, IDENTITY)]),
    ("nobody asked for", None, [(0, IDENTITY)]),
):  # fmt: skip

    def act(world, spec=spec, bases=bases):
        peer = world.run(spec)
        train_step(peer)
        peer.send(w.step(bases=bases))
        return peer

    CASES.append(Case(f"a basis that {what}", act, {"bad-tensor"}, uncounted=True))  # found by the stage, whose run fails


@case("two correct steps with a basis", "", uncounted=True)
def _(world):
    peer = world.run(EVERY_STEP)
    for number in (1, 2):
        train_step(peer, number)
        peer.send(w.step(number, bases=[(0, IDENTITY)]))
        peer.wait_for(w.STEP_OK)
    world.leave(peer)
    return None


@case("three correct steps", "", uncounted=True)
def _(world):
    peer = world.run()
    for number in (1, 2, 3):
        train_step(peer, number)
        finish_step(peer, number)
    assert peer.is_alive()
    world.leave(peer)
    return None


for name, code, data in (
    ("activation/0 of an applied step", "bad-key", w.tensor(stream=5000)),
    ("gradient/1 of an applied step", "bad-key", w.tensor(stream=5000, flow="gradient/1")),
    ("Received again", "bad-key", w.received(flow="activation/1")), ("Step again", "step-gap", w.step(1)),
    ("Step again, with another decision", "step-gap", w.step(1, rates=(0.2,))), ("Step that skips a step", "step-gap", w.step(3)),
    ("a tensor two steps ahead", "step-gap", w.tensor(stream=5000, step=3, weight_version=1)),
    ("a tensor for older weights", "bad-key", w.tensor(stream=5000, step=2, weight_version=0)),
    ("the first stream number again", "bad-segment", w.tensor(stream=1, step=2, weight_version=1)),
):  # fmt: skip

    def act(world, data=data):
        peer = world.run()
        train_step(peer)
        finish_step(peer)
        peer.send(data)
        return peer

    CASES.append(Case(name, act, {code}))


# ---- Replicas ----

hellos("a replica, of a server without replicas", "no-replicas", spec=w.run_spec(replicas=2, replica=0))
hellos("replica 2 of 2", "bad-run-spec", spec=w.run_spec(replicas=2, replica=2))
hellos("a replica of 4 billion", "bad-run-spec", spec=w.run_spec(replicas=2**32 - 1, replica=2**32 - 2))

# ---- Codec levels ----

RAW = bytes(1 + w.RAW_BYTES)
for name, frames in (
    ("a codec level that no run has", [w.tensor(RAW, codec="block:bits=4", codec_level=3)]),
    ("eight bits, and another codec", [w.tensor(bytes(100), codec="block:bits=4", codec_level=1)]),
    ("a raw tensor with too many bytes", [w.tensor(RAW + bytes(1), codec="block:bits=4", codec_level=2)]),
    ("a raw tensor with a wrong format byte", [w.tensor(b"\x01" + RAW[1:], codec="block:bits=4", codec_level=2)]),
    ("two levels in one batch",
     [w.tensor(RAW, codec="block:bits=4", codec_level=2), w.tensor(bytes(1), stream=2, micro_batch=1, codec="block:bits=4")]),
):  # fmt: skip
    sends(name, {"bad-tensor", "bad-payload"}, b"".join(frames), spec=w.run_spec("block:bits=4", codec_levels=True))

hellos("a watch without codec levels", "bad-run-spec", spec=w.run_spec(watch_every=1))

# ---- Overlapping steps ----

hellos("a staleness of 17", "bad-run-spec", spec=w.run_spec(staleness=17))
hellos("a staleness of 4 billion", "bad-run-spec", spec=w.run_spec(staleness=2**32 - 1))
hellos("staleness with gpipe", "bad-staleness", spec=w.run_spec(staleness=1, schedule="gpipe"))
hellos("staleness with a codec that keeps state", "bad-staleness",
       spec=w.run_spec(staleness=1, train_samples=64, codecs={"activation/0": "delta(block:bits=4)"}))  # fmt: skip


def begin_steps(peer, *numbers):
    """Sends the activations of these steps, and waits for the answers."""
    for number in numbers:
        for i in range(4):
            peer.send(w.tensor(stream=1000 * number + 1 + i, step=number, micro_batch=i, weight_version=0))
    for number in numbers:
        for i in range(4):
            peer.wait_for(w.TENSOR)
            peer.send(w.received(step=number, micro_batch=i, flow="activation/1"))


for name, code, data in (
    ("a step more than may overlap", "too-many-in-flight", w.tensor(stream=9000, step=3, weight_version=1)),
    ("weights that are too new", {"bad-metadata", "bad-tensor", "bad-key"}, w.tensor(stream=9000, step=2, weight_version=1)),
    ("Step before its step is complete", "unexpected-message", w.step(1)), ("Step of the second step first", "step-gap", w.step(2)),
):  # fmt: skip

    def overlap(world, data=data, second="weights" not in name):
        peer = world.run(w.run_spec(staleness=1, in_flight=2 * w.MICRO_BATCHES))
        begin_steps(peer, 1, *((2,) if second else ()))
        peer.send(data)
        return peer

    CASES.append(Case(f"overlapping steps: {name}", overlap, code if isinstance(code, set) else {code}))


# ---- Cohorts ----

ALONE = {"id": "hostile-cohort", "members": ["hostile"], "mode": "joint", "batch": w.SAMPLES, "eval_batch": w.SAMPLES, "order": "by-member", "min_members": 0, "begin_members": 0, "wait_seconds": 60}


def member(name="hostile", train=64, evaluation=0, share=100):
    return w.message((1, name), (2, train), (3, evaluation), (4, share))


def of_cohort(announced, **fields):
    return {"spec": w.run_spec(cohort={**ALONE, **fields}), "f61": announced}


for count in HUGE32:
    hellos(f"a member with {count} training samples", "not-enough-memory", **of_cohort(member(train=count)))
    hellos(f"a member with {count} evaluation samples", "not-enough-memory", **of_cohort(member(evaluation=count)))
for count in (2**29, *HUGE):
    hellos(f"a member whose head and tail have {count} values", {"not-enough-memory", "bad-cohort"}, **of_cohort(member(share=count)))
hellos("a member without samples, alone", "bad-cohort", **of_cohort(member(train=0)))
for name in ("", "other", ESCAPES, "x" * 2000):
    hellos(f"a member '{name[:12]!r}' of a cohort of others", "not-a-member", **of_cohort(member(name)))
hellos("a cohort without an announcement", "not-a-member", spec=w.run_spec(cohort=ALONE))
for name, members in (("nobody", []), ("65 members", ["hostile", *map(str, range(64))]), ("a member twice", ["hostile", "hostile"]),
                      ("a member without a name", ["hostile", ""]), ("a path", ["../../../tmp", "hostile"])):  # fmt: skip
    hellos(f"a cohort of {name}", {"bad-cohort", "bad-run-spec"}, **of_cohort(member(), members=members))
hellos("members without a cohort", {"bad-cohort", "bad-run-spec"}, **of_cohort(member(), id=""))
for batch in (0, w.SAMPLES + 1, 2**32 - 1):
    hellos(f"a cohort with batches of {batch}", "bad-run-spec", **of_cohort(member(), batch=batch))
hellos("a cohort with a codec that keeps samples", "bad-cohort", f61=member(),
       spec=w.run_spec(cohort=ALONE, train_samples=64, codecs={"activation/0": "delta(block:bits=4)"}))  # fmt: skip


@case("a member who connects twice", "member-connected", connections=2)
def _(world):
    cohort = {"spec": w.run_spec(cohort={**ALONE, "id": "hostile-twice", "members": ["hostile", "absent"]}), "f61": member()}
    first = world.connect()
    first.send(w.hello(world.run_id(), **cohort))
    first.wait_for(w.ROSTER)
    second = world.connect()
    second.send(w.hello(world.run_id(), **cohort))
    second.wait_for_close()
    first.close()
    return second


hellos("a member with 9 checkpoints", "bad-metadata",
       **of_cohort(member() + b"".join(w.message((8, w.message((1, step)))) for step in range(1, 10))))  # fmt: skip
for name, code, plan in (
    ("without members", "bad-metadata", w.message((3, w.message((1, 1))))),
    ("of 2 members", "bad-metadata", w.message((1, bytes((1, 1))), (2, bytes((1, 1))))),
    ("with training samples only", "bad-metadata", w.message((1, bytes((1,))))),
    ("with 129 attendances", "bad-metadata", w.message((1, bytes((1,))), (2, bytes((1,))), *[(3, w.message((1, n), (3, bytes((0,))))) for n in range(1, 130)])),
    ("with a step of the far future", "bad-metadata", w.message((1, bytes((1,))), (2, bytes((1,))), (3, w.message((1, 2**63))))),
    ("with two present of one", "bad-metadata", w.message((1, bytes((1,))), (2, bytes((1,))), (3, w.message((1, 1), (3, bytes((0, 1))))))),
    ("with the same members twice", "bad-metadata", w.message((1, bytes((1,))), (2, bytes((1,))), *[(3, w.message((1, n), (3, bytes((0,))))) for n in (1, 2)])),
    ("with many samples of others", "not-enough-memory", w.message((1, b"\xff\xff\xff\xff\x0f"), (2, bytes((1,))))),
):
    hellos(f"a member with a plan {name}", code, **of_cohort(member() + w.message((7, plan)),
           id=f"hostile-plan-{name}"))  # fmt: skip
for field, value, code in (("min_members", 2, "bad-cohort"), ("min_members", 65, "bad-run-spec"), ("begin_members", 2, "bad-cohort"),
                           ("begin_members", 65, "bad-run-spec"), ("wait_seconds", 10**7, "bad-run-spec")):  # fmt: skip
    hellos(f"a cohort with {field} {value}", code, **of_cohort(member(), **{field: value}))

for field, value, code in (("mode", "turns", "bad-cohort"), ("mode", 1, "bad-run-spec")):
    hellos(f"a cohort with {field} {value}", code, **of_cohort(member(), **{field: value}))
for field in ("min_members", "begin_members"):
    hellos(f"a relay with {field}", "bad-cohort", **of_cohort(member(), mode="relay", **{field: 1}))
for name, plan in (
    ("with two present", w.message((1, bytes((1, 1))), (2, bytes((0, 0))), (3, w.message((1, 1), (3, bytes((0, 1))))))),
    ("with 1025 turns", w.message((1, bytes((1, 1))), (2, bytes((0, 0))), *[(3, w.message((1, n), (3, bytes((0,))))) for n in range(1, 1026)])),
):
    hellos(f"a member of a relay with a plan {name}", "bad-metadata",
           **of_cohort(member() + w.message((7, plan), (11, 3)), mode="relay", members=["hostile", "other"], id=f"hostile-relay-{name}"))  # fmt: skip
for rounds in (0, 513, 2**63, 2**64 - 1):
    hellos(f"a member of a relay with {rounds} turns", "bad-metadata",
           **of_cohort(member() + w.message((11, rounds)), mode="relay", members=["hostile", "other"], id="hostile-rounds"))  # fmt: skip
for name, code, rounds, message in (
    ("hands on without a checkpoint", "unexpected-message", 3,
     w.tensor(b"sealed", spec=b"", step=0, flow="state/client", micro_batches=0, samples=0) +
     w.segment(6, b"", sha256=hashlib.sha256(b"sealed").digest())),
    ("hands on more than it has announced", {"bad-tensor", "bad-key", "bad-metadata"}, 3, w.tensor(flow="state/client", step=0, micro_batches=0, samples=0, encoded_bytes=2**21)),
):

    @case(f"a member of a relay {name}", code)
    def _(world, rounds=rounds, message=message):
        client = world.connect()
        announced = member() + w.message((9, 2**20), (11, rounds))
        client.send(w.hello(world.run_id(), **of_cohort(announced, mode="relay", id=f"hostile-turn-{world.run_id()}")))
        client.wait_for(w.HELLO_OK)
        client.send(message)
        client.wait_for_close()
        return client


for name, code, saved in (
    ("that nobody has asked for", "unexpected-message", w.message((1, 1), (2, bytes(32)))),
    ("of step 0", "unexpected-message", w.message((2, bytes(32)))),
    ("of a step of the far future", "unexpected-message", w.message((1, 2**64 - 1), (5, "cannot-write"))),
    ("without digest and code", "bad-metadata", w.message((1, 1))),
    ("with a short digest", "bad-metadata", w.message((1, 1), (2, bytes(31)))),
):

    @case(f"a member sends a Saved {name}", code)
    def _(world, saved=saved):
        client = world.connect()
        client.send(w.hello(world.run_id(), **of_cohort(member(), id=f"hostile-saved-{world.run_id()}")))
        client.wait_for(w.HELLO_OK)
        client.send(w.frame(w.SAVED, saved))
        client.wait_for_close()
        return client

for name, code, message in (
    ("the state of a checkpoint that nobody needs", {"bad-key", "unexpected-message"}, w.tensor(flow="state/client", step=0, micro_batches=0, samples=0)),
    ("a Fetch of the state of another member", {"bad-metadata"}, w.fetch("state/client")),
    ("a Fetch of the parts of another member", {"bad-metadata"}, w.fetch("parts/client")),
    ("two Drains", {"unexpected-message"}, w.frame(w.DRAIN, w.message((2, "other"), (3, 1))) * 2),
):

    @case(f"a member sends {name}", code)
    def _(world, message=message):
        client = world.connect()
        announced = member() + w.message((9, 2**20))
        client.send(w.hello(world.run_id(), **of_cohort(announced, id=f"hostile-state-{world.run_id()}", min_members=1)))
        client.wait_for(w.HELLO_OK)
        client.send(message)
        client.wait_for_close()
        return client


# ---- Edges: direct links between servers ----

TOKEN = bytes(range(16))
OTHER_TOKEN = bytes(range(1, 17))
EDGE = {"f1": w.EDGE, "f4": None, "f6": None, "f7": None, "f14": None}
AFTER = ((2, "127.0.0.1:4800"), (3, "other"))

hellos("an edge of no run", "edge-not-here", **EDGE, f42=TOKEN)
for token in (b"", TOKEN[:15], TOKEN * 100):
    hellos(f"an edge with a token of {len(token)} bytes", "edge-not-here", **EDGE, f42=token)
hellos("an edge with a run spec", "bad-metadata", f1=w.EDGE, f42=TOKEN)
hellos("a run with an edge token of 15 bytes", "bad-metadata", f40=w.message((1, TOKEN[:15])))
hellos("a run whose server must connect elsewhere", "edge-not-allowed", f41=w.message((1, TOKEN), *AFTER))
for address in ("", "x", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ESCAPES, "x" * 2000):
    hellos(f"an edge to '{address[:12]!r}'", {"bad-metadata", "edge-not-allowed"}, f41=w.message((1, TOKEN), (2, address), (3, "other")))
hellos("an edge to a run '../x'", "bad-run-id", f41=w.message((1, TOKEN), (2, "127.0.0.1:4800"), (3, "../x")))


def run_with_edge(world):
    """A run that expects another server to send activation/0."""
    return world.run(f40=w.message((1, TOKEN)))


def edge(world, token=TOKEN):
    return world.connect().open(world.last_run_id, b"", **EDGE, f42=token)


def refused_edge(world, token):
    peer = world.connect()
    peer.send(w.hello(world.last_run_id, b"", **EDGE, f42=token))
    peer.wait_for_close()
    return peer


@case("an edge with the token of another edge", "edge-not-here", connections=2)
def _(world):
    run = run_with_edge(world)
    peer = refused_edge(world, OTHER_TOKEN)
    world.leave(run)
    return peer


@case("an edge of a run that has none", "edge-not-here", connections=2)
def _(world):
    run = world.run()
    peer = refused_edge(world, TOKEN)
    world.leave(run)
    return peer


@case("an edge of a run that has ended", "edge-not-here", connections=2)
def _(world):
    world.leave(run_with_edge(world))
    return refused_edge(world, TOKEN)


@case("a newer edge replaces an older one, and the run goes on", "", connections=3, uncounted=True)
def _(world):
    run = run_with_edge(world)
    first = edge(world)
    second = edge(world)
    first.wait_for_close()
    second.send(w.tensor())
    run.wait_for(w.TENSOR)  # activation/1
    assert second.is_alive()
    world.leave(run)
    second.wait_for_close(answer_bye=True)
    second.close()
    first.close()
    return None


@case("the end of an edge does not end the run", "", connections=3, uncounted=True)
def _(world):
    run = run_with_edge(world)
    edge(world).close()
    second = edge(world)
    second.send(w.tensor())
    run.wait_for(w.TENSOR)
    second.close()
    time.sleep(0.1)
    assert run.is_alive()
    world.leave(run)
    return None


@case("the flow of an edge over the client's connection", "bad-key")
def _(world):
    run = run_with_edge(world)
    run.send(w.tensor())
    return run


for name, code, data in (
    ("a Step", "unexpected-message", w.step()), ("a Fetch", "unexpected-message", w.fetch("weights/body")),
    ("numbers of samples", "unexpected-message", w.samples((0,))), ("a Resume", "unexpected-message", w.frame(w.RESUME, w.message((1, 1)))),
    ("a BodyDone", "unexpected-message", w.frame(w.BODY_DONE, w.message((1, 1)))),
    ("initial weights", "unexpected-message", w.tensor(flow="weights/body", step=0)),
    ("a flow of the client", "bad-key", w.tensor(flow="gradient/1")), ("its own flow", "unexpected-message", w.tensor(flow="gradient/0")),
    ("another cut's flow", "bad-key", w.tensor(flow="activation/2")), ("a tensor twice", "bad-key", w.tensor() + w.tensor(stream=2)),
    ("a step too far", "step-gap", w.tensor(step=2)), ("an evaluation too far", "step-gap", w.tensor(step=2, phase="eval")),
    ("a weight version", "bad-key", w.tensor(weight_version=9)), ("too much data", "bad-tensor", w.tensor(bytes(w.RAW_BYTES + 4))),
    ("more micro-batches than agreed", "bad-key", w.tensor(micro_batch=4)),
    ("a flood of Receiveds without a key", {"flood", "bad-arrived"}, w.frame(w.RECEIVED, w.message((4, 0))) * 20000),
    ("a Received that confirms too much", "bad-arrived", w.frame(w.RECEIVED, w.message((4, 9)))),
    ("a flood of Pings", "flood", w.frame(w.PING, w.message((1, 1))) * 20000),
):  # fmt: skip

    def on_edge(world, data=data):
        run = run_with_edge(world)
        peer = edge(world)
        peer.send(data)
        run.wait_for_close()
        peer.wait_for_close(answer_bye=True)
        assert peer.code in (run.code, None), f"the edge ended with {peer.code}"
        peer.close()
        return run

    CASES.append(Case(f"over an edge: {name}", on_edge, code if isinstance(code, set) else {code}, connections=2, deadline=2))


@case("200 Hellos of edges, with wrong tokens", {"edge-not-here", "too-many-from-address", "too-many-handshakes"}, connections=200, deadline=10)
def _(world):
    run = run_with_edge(world)
    peers = []
    for number in range(200):
        assert number % 5 or run.is_alive()  # not silent, however slow this machine is
        peers.append(world.connect())
    for peer in peers:
        peer.send(w.hello(world.last_run_id, b"", **EDGE, f42=OTHER_TOKEN))
    for number, peer in enumerate(peers):
        assert number % 5 or run.is_alive()
        peer.wait_for_close()
        world.refused.append(peer)
    assert any(peer.code == "edge-not-here" for peer in world.refused), "no token was compared"
    assert run.is_alive()
    world.leave(run)
    return world.refused.pop()


# ---- Floods, slow writers, slow readers ----


@case("a flood of Pings that are not read", "flood")
def _(world):
    peer = world.run()
    peer.send(w.frame(w.PING, w.message((1, 1))) * 20000)
    return peer


@case("a flood of Receiveds for tensors that were not sent", "bad-key")
def _(world):
    peer = world.run()
    peer.send(w.received() * 20000)
    return peer


@case("a flood of segments of one byte each", "flood")
def _(world):
    peer = world.run()
    peer.send(w.tensor(first=0) + b"".join(w.segment(i, b"x") for i in range(w.RAW_BYTES - 1)))
    return peer


@case("a flood of repeated Steps", {"flood", "step-gap", "too-many-in-flight"})
def _(world):
    peer = world.run()
    train_step(peer)
    finish_step(peer)
    peer.send(w.step(1) * 20000)
    return peer


@case("a flood of repeated tensors", "bad-key", deadline=5)
def _(world):
    peer = world.run()
    train_step(peer)
    finish_step(peer)
    for i in range(20000):
        if not peer.send(w.tensor(stream=2000 + i)):
            break
    return peer


@case("200 Hellos, each on its own connection", {"too-many-sessions", "too-many-from-address"}, connections=200, deadline=10)
def _(world):
    peers = [world.connect() for _ in range(200)]
    for peer in peers:
        peer.send(w.hello(world.run_id()))
    served = []
    for peer in peers:
        got = peer.read_frame()
        (served if got and got[0] == w.HELLO_OK else world.refused).append(peer)
    for peer in served:
        world.leave(peer)
    assert len(served) < 100, "limits.sessions is not enforced"
    return world.refused.pop()


@case("500 connections, opened and closed", "", connections=500, uncounted=True)
def _(world):
    for _ in range(500):
        world.connect().close()
        world.expected["connection-closed"] += 1


@case("a frame in a run, one byte at a time", "too-slow", deadline=4)
def _(world):
    peer = world.run()
    for byte in w.frame(w.STEP, bytes(60000)):
        if not peer.send(bytes([byte])) or peer.has_ended():
            break
        time.sleep(0.1)
    return peer


@case("silence in a run", "peer-silent", deadline=5)
def _(world):
    return world.run()


@case("a peer that reads nothing but keeps sending Pongs", "", untold="not-reading", deadline=9)
def _(world):
    peer = world.connect(receive_buffer=4096)
    peer.open("", b"", f1=w.PROBE, f4=None, f5=None)
    peer.send(w.fetch("probe", 10**9))
    start = time.monotonic()
    while time.monotonic() - start < 9 and peer.send(w.frame(w.PONG)):
        time.sleep(0.3)
    return peer


@case("as many sessions as allowed, which only send Pongs", "session-idle", connections=40, deadline=2)
def _(world):
    peers = []
    while True:
        peer = world.connect()
        if len(peers) % 2:
            peer.send(w.hello(world.run_id()))
        else:
            peer.send(w.hello("", b"", f1=w.PROBE, f4=None, f5=None))
        got = peer.read_frame()
        if not got or got[0] != w.HELLO_OK:
            break
        peers.append(peer)
        assert len(peers) < 100, "limits.sessions is not enforced"
    assert peer.code == "too-many-sessions", peer.code
    world.refused.append(peer)
    start, open_peers = time.monotonic(), list(peers)
    while open_peers and time.monotonic() - start < 30:
        for peer in list(open_peers):
            peer.send(w.frame(w.PONG))
            if peer.has_ended():
                open_peers.remove(peer)
        time.sleep(0.5)
    assert not open_peers, f"{len(open_peers)} of {len(peers)} idle sessions are still open after 30 s"
    for peer in peers[:-1]:
        assert peer.code == "session-idle", peer.code
        world.refused.append(peer)
    return peers[-1]
