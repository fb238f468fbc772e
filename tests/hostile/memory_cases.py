"""Attacks on a server's memory by admitted clients. Each attack is aimed at one part of a session's memory. The table of cases has the same
form as in cases.py. The server must stay within the memory bound that it prints at startup."""
import time

import wire as w
from cases import Case, adds_to

CASES = []
case = adds_to(CASES)
SAMPLES, WIDTH = 512, 512  # per micro-batch
TENSOR_BYTES = SAMPLES * WIDTH * 4


def spec(codec="none", micro_batches=4, in_flight=4, samples=SAMPLES, width=WIDTH, **more):
    """The spec of a run whose tensors have one MiB each."""
    return w.run_spec(codec, **{
        "parameters": {"width": str(width), "depth": "2"},
        "max_batch": micro_batches * samples, "train_batch": micro_batches * samples, "micro_batches": micro_batches, "in_flight": in_flight, **more})  # fmt: skip


def tensor(payload=None, codec="none", micro_batches=4, **more):
    """Frames of a tensor of such a run; without a payload, it has raw zeros."""
    return w.tensor(bytes(TENSOR_BYTES) if payload is None else payload, codec=codec, shape=(SAMPLES, WIDTH), micro_batches=micro_batches,
                    samples=micro_batches * SAMPLES, **more)  # fmt: skip


def send_while_open(peer, frames, seconds=5):
    start = time.monotonic()
    for data in frames:
        if not peer.send(data) or peer.has_ended() or time.monotonic() - start > seconds:
            break


TOPK = "topk:ratio=0.001"
KEPT = -(-SAMPLES * WIDTH // 1000)


def topk_payload():
    """A small payload of topk for a large tensor: the first elements are kept."""
    return b"\2" + bytes(4 * KEPT) + bytes(KEPT)


def resolved(world, codec):
    """The codec's spec in the form that the server prints."""
    if codec not in world.learned:
        peer = world.run(spec(codec))
        peer.send(tensor(b"", codec="?"))
        peer.wait_for_close()
        world.refused.append(peer)
        world.learned[codec] = peer.sentence.split("than the agreed ")[1]
    return world.learned[codec]


def coded(world, codec, payload, count, **more):
    """`count` copies of the first activation."""
    name = resolved(world, codec)
    return (tensor(payload, codec=name, stream=2 + i, **more) for i in range(count))


@case("repeated activations of an old step, each leaving a context at its cut", "bad-key")
def _(world):
    name = resolved(world, TOPK)
    peer = world.run(spec(TOPK))
    peer.send(tensor(topk_payload(), codec=name))
    peer.wait_for(w.RECEIVED)
    send_while_open(peer, coded(world, TOPK, topk_payload(), 100000, step=1))
    return peer


@case("tensors sent again while the server encodes slowly", "bad-key", deadline=20)
def _(world):
    codec = "zstd:level=19(none)"
    frame = zstd_frame(TENSOR_BYTES)
    peer = world.run(spec(codec))
    send_while_open(peer, coded(world, codec, b"\2" + frame, 100000))
    return peer


@case("small payloads that decode to large tensors, repeatedly", "bad-key", deadline=5)
def _(world):
    codec = "zstd:level=1(none)"
    peer = world.run(spec(codec))
    send_while_open(peer, coded(world, codec, b"\2" + zstd_frame(TENSOR_BYTES), 1000))
    return peer


for micro_batches, in_flight, code in ((2**16 + 1, 1, "bad-run-spec"), (2**16, 2**16, "not-enough-memory"), (2**16, 2**15, "not-enough-memory")):

    def act(world, micro_batches=micro_batches, in_flight=in_flight):
        peer = world.connect()
        peer.send(w.hello(world.run_id(), spec(micro_batches=micro_batches, in_flight=in_flight, samples=1, width=1)))
        return peer

    CASES.append(Case(f"{micro_batches} micro-batches, {in_flight} in flight, of one value each", act, code))


# A peer that does not read may miss why it was refused, and how much the server has sent when an acknowledgement arrives depends on timing.
UNREAD = {"too-many-in-flight", "bad-key"}


@case("replies that are not read, one micro-batch in flight", {"", *UNREAD}, deadline=20, untold=UNREAD)
def _(world):
    peer = world.connect(receive_buffer=4096)
    peer.open(world.run_id(), spec(in_flight=1))
    for i in range(4):  # acknowledged, but the acknowledgements are not read
        if not peer.send(tensor(stream=1 + i, micro_batch=i)):
            break
        time.sleep(0.3)
        if not peer.send(w.received(micro_batch=i, flow="activation/1")):
            break
    return peer


@case("evaluation's replies that are acknowledged but not read", {"", *UNREAD}, deadline=20, untold=UNREAD)
def _(world):
    peer = world.connect(receive_buffer=4096)
    peer.open(world.run_id(), spec(in_flight=1))
    for i in range(4):
        if not peer.send(tensor(stream=1 + i, micro_batch=i, phase="eval")):
            break
        time.sleep(0.3)
        if not peer.send(w.received(micro_batch=i, flow="activation/1", phase="eval")):
            break
    return peer


@case("weights that are fetched repeatedly, and acknowledged but not read", {"", *UNREAD}, deadline=20, untold=UNREAD)
def _(world):
    peer = world.connect(receive_buffer=4096)
    peer.open(world.run_id(), spec())
    for _ in range(200):
        if not peer.send(w.fetch("weights/body")):
            break
        time.sleep(0.05)
        if not peer.send(w.received(phase="train", step=0, flow="weights/body")):
            break
    return peer


@case("a tensor that is not finished", "peer-silent", deadline=10)
def _(world):
    peer = world.run(spec())
    peer.send(tensor(stream=1, micro_batch=0, first=4096))
    return peer


@case("every tensor that may be in flight, none of which is finished", "bad-segment")
def _(world):
    peer = world.run(spec())
    for i in range(4):
        peer.send(tensor(stream=1 + i, micro_batch=i, first=4096))
    return peer


@case("everything that credits allow, none of it read", {"", "peer-silent", "bad-key"}, deadline=20, untold={"peer-silent", "bad-key"})
def _(world):
    peer = world.connect(receive_buffer=4096)
    peer.open(world.run_id(), spec())
    for i in range(4):
        peer.send(tensor(stream=1 + i, micro_batch=i))
    time.sleep(0.5)
    for i in range(4):
        peer.send(tensor(stream=5 + i, micro_batch=i, flow="gradient/1"))
    return peer


def zstd_frame(size):
    """A Zstandard frame of `size` zeros: blocks of a repeated byte (RFC 8878, 3.1.1)."""
    header = bytes.fromhex("28b52ffd") + b"\xa0" + size.to_bytes(4, "little")  # frame header: single segment, 4-byte size
    blocks = b""
    while size > 0:
        now = min(size, 128 << 10)
        size -= now
        blocks += ((now << 3) | (1 << 1) | (size == 0)).to_bytes(3, "little") + b"\0"  # RLE
    return header + blocks
