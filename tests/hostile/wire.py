"""The wire protocol of proto/PROTOCOL.md, byte by byte, for a peer that violates its rules. It is written from the specification and
independent of Cleave's code, so that the two do not share bugs."""
import json
import select
import socket
import ssl
import struct
import time

HELLO, HELLO_OK, REFUSED, FAILURE, BYE, PING, PONG, TENSOR, SEGMENT, RECEIVED, BODY_DONE, STEP, STEP_OK, FETCH, RESUME, SAVED, DRAIN, NUMBERS, ROSTER = range(1, 20)
KINDS = range(1, 20)
TENSOR_DATA = (TENSOR, SEGMENT)


VERSION = 6  # of the frames


def header(kind, metadata_bytes=0, payload_bytes=0, stream=0, flags=0, checksum=0, magic=b"CLVE", version=VERSION):
    return struct.pack("<4sBBHIIQQ", magic, version, kind, flags, metadata_bytes, payload_bytes, stream, checksum)


def frame(kind, metadata=b"", payload=b"", stream=None, **fields):
    if stream is None:
        stream = 1 if kind in TENSOR_DATA else 0
    return header(kind, len(metadata), len(payload), stream, **fields) + metadata + payload


# ---- Protobuf: (field number, value) pairs in order ----


def varint(value):
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*fields):
    """int: a varint; float: a double; str, bytes: length-delimited; None: omitted."""
    out = b""
    for number, value in fields:
        if value is None:
            continue
        if isinstance(value, bool):
            value = int(value)
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def parse(data):
    """A message's fields by number. If a field is repeated, the last one counts, as in protobuf."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            fields[tag >> 3] = number()
        elif tag & 7 == 1:
            fields[tag >> 3] = struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            size = number()
            fields[tag >> 3] = data[at : at + size]
            at += size
    return fields


# ---- Correct messages; cases replace parts of them ----

TRIAL, PROBE, EDGE = 1, 2, 3  # kinds of Hello

CODECS = ("activation/0", "activation/1", "gradient/1", "gradient/0")
SAMPLES, MICRO_BATCHES, WIDTH = 32, 4, 32
OF_MICRO_BATCH = SAMPLES // MICRO_BATCHES
RAW_BYTES = OF_MICRO_BATCH * WIDTH * 4  # per tensor, with the codec none


# Fields of the run spec whose names are configuration keys.
KEYS = {
    "seed": "run.seed", "micro_batches": "train.micro_batches", "schedule": "train.schedule", "staleness": "train.staleness",
    "in_flight": "train.in_flight", "clip_value": "train.clip_value", "ema": "train.ema", "recompute": "train.recompute", "optimizer": "train.optimizer", "freeze": "train.freeze",
    "precision": "precision.server", "codecs": "codec", "threads": "threads.server",
}  # fmt: skip


def optimizer(groups=(), **parameters):
    return {"name": "sgd", "parameters": parameters, "groups": list(groups)}


def run_spec(codec="none", model="mlp", parameters=None, sample_shape=(1, 8, 8), classes=10, graph=b"", **more):
    """The spec of a run with a small mlp of 6 blocks; blocks 2, 3 and 4 form the body. `more`: other values of fields; None: without it."""
    fields = {
        "model": {"name": model, "parameters": {"width": str(WIDTH), "depth": "2"} if parameters is None else parameters,
                  "sample_shape": sample_shape, "classes": classes},
        "cut0": 2, "cut1": 5, "cut_number": 0, "bodies": 1, "max_batch": SAMPLES, "train_batch": SAMPLES, "micro_batches": MICRO_BATCHES, "in_flight": MICRO_BATCHES,
        "schedule": "priority", "codecs": {flow: codec for flow in CODECS}, "optimizer": optimizer(momentum=0.5), "seed": 1, "precision": "fp32",
        "threads": 1, "device_bits": "exact", "insert": [], "staleness": 0, "clip_value": 0, "ema": 0, "recompute": False, "freeze": [], "non_finite.raw": False, "replicas": 1,
        "replica": 0, "steps_per_epoch": 0, "train_samples": 0, "initial_weights": False, "head_is_frozen": False, "codec_levels": False,
        "watch_every": 0, "trace": {"first": 0, "steps": 0}, "cohort": {"id": "", "members": [], "mode": "joint", "batch": 0, "eval_batch": 0, "order": "by-member", "min_members": 0, "begin_members": 0, "wait_seconds": 60},
    }  # fmt: skip
    fields.update(more)
    values = {KEYS.get(name, name): value for name, value in fields.items() if value is not None}
    return message((1, json.dumps(values).encode()), (2, graph))


def fixed64s(*values):
    """A packed list of fixed64."""
    return struct.pack(f"<{len(values)}Q", *values)


def hello(run_id, spec=None, **more):
    fields = {"f4": run_spec() if spec is None else spec, "f5": run_id, "f6": 1, "f7": 1, "f8": "hostile", "f14": fixed64s(7)}
    fields.update(more)
    return frame(HELLO, message(*((int(name[1:]), value) for name, value in fields.items())))


def key(phase="train", step=1, micro_batch=0, flow="activation/0"):
    return message((1, phase), (2, step), (3, micro_batch), (4, flow))


def tensor(payload=bytes(RAW_BYTES), stream=1, codec="none", dtype="f32", shape=(OF_MICRO_BATCH, WIDTH), order="contiguous",
           micro_batches=MICRO_BATCHES, samples=SAMPLES, weight_version=0, encoded_bytes=None, spec=None, first=None,
           seconds=0.0, codec_level=None, snr_db=None, **names):  # fmt: skip
    """A Tensor frame with the whole payload, or with its first bytes."""
    if spec is None:
        spec = message((1, dtype), *((2, dim) for dim in shape), (3, order))
    metadata = message(
        (1, key(**names)), (2, spec), (3, codec), (4, len(payload) if encoded_bytes is None else encoded_bytes),
        (5, micro_batches), (6, samples), (7, weight_version), (8, seconds), (9, 0.0), (11, codec_level), (12, snr_db))  # fmt: skip
    return frame(TENSOR, metadata, payload if first is None else payload[:first], stream)


def segment(offset, payload, stream=1, sha256=None):
    return frame(SEGMENT, message((1, offset), (2, sha256)), payload, stream)


def received(seconds=0.0, **names):
    return frame(RECEIVED, message((1, key(**names)), (2, seconds), (3, seconds)))


def step(number=1, apply=True, rates=(0.1,), clip=1.0, scale=1.0, bases=()):
    bases = [(8, message((1, cut), (2, values))) for cut, values in bases]
    return frame(STEP, message((1, number), (2, apply), *((3, rate) for rate in rates), (4, clip), (5, scale), *bases))


def samples(numbers, step=1, first=0):
    return frame(NUMBERS, message((1, step), (2, first), (3, b"".join(varint(number) for number in numbers))))


def fetch(flow, size=None):
    return frame(FETCH, message((1, flow), (2, size)))


# ---- A connection ----


def tls_context(folder):
    """An SSL context for a client with the certificate in this folder, as `cleave-server certs
    client` creates it."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context


class Peer:
    def __init__(self, port, receive_buffer=None, tls=None):
        """`tls`: an ssl.SSLContext with a client's certificate."""
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.data = b""
        self.kept = []  # frames that wait_for() has passed over
        self.code = None  # the code of the received Refused or Failure
        self.sentence = ""

    def send(self, data):
        """Sends bytes. Returns False if the other side has already closed."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def close(self):
        self.socket.close()

    def read_frame(self):
        """Reads a frame. Returns (kind, fields, payload), or None if the connection is closed."""
        head = self._take(32)
        if head is None:
            return None
        _, _, kind, _, metadata_bytes, payload_bytes, _, _ = struct.unpack("<4sBBHIIQQ", head)
        body = self._take(metadata_bytes + payload_bytes)
        if body is None:
            return None
        fields = parse(body[:metadata_bytes])
        if kind in (REFUSED, FAILURE):
            self.code, self.sentence = fields.get(1, b"").decode(), fields.get(2, b"").decode()
        return kind, fields, body[metadata_bytes:]

    def _take(self, size):
        while len(self.data) < size:
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not more:
                return None
            self.data += more
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def has_ended(self):
        """Returns whether the other side has sent its final message, without waiting for it."""
        while self._has_bytes():
            got = self.read_frame()
            if got is None or got[0] in (REFUSED, FAILURE):
                return True
        return False

    def _has_bytes(self):
        decrypted = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0
        return decrypted or bool(select.select([self.socket], [], [], 0)[0])

    def wait_for(self, *kinds):
        """Returns the first frame of these kinds, and keeps the others for later calls: a BodyDone may overtake the last tensors."""
        for place, got in enumerate(self.kept):
            if got[0] in kinds:
                return self.kept.pop(place)
        while True:
            got = self.read_frame()
            if got is None:
                raise AssertionError(f"closed ({self.code}: {self.sentence}) before a frame of kind {kinds} arrived")
            if got[0] in kinds:
                return got
            self.kept.append(got)

    def wait_for_close(self, answer_bye=False):
        """Seconds until the other side has closed its direction."""
        start = time.monotonic()
        while True:
            got = self.read_frame()
            if got is None:
                return time.monotonic() - start
            if answer_bye and got[0] == BYE:
                self.send(frame(BYE, message((1, "done"))))

    def open(self, run_id, spec=None, **more):
        self.send(hello(run_id, spec, **more))
        self.wait_for(HELLO_OK)
        return self

    def is_alive(self):
        self.send(frame(PING, message((1, 1))))
        self.wait_for(PONG)
        return True
