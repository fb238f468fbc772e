"""Attacks on replica 0 of 2, by clients and by strangers at the ports of its group. Honest runs use both replicas at the same time. The
table of cases has the same form as in cases.py."""
import hashlib
import os
import socket
import struct
import time

import wire as w
from cases import REFUSALS, Case, adds_to

CASES = []
case = adds_to(CASES)
TIMEOUT = 2  # replicas.timeout_seconds of both servers
REPLICAS = 2
SHARE = w.MICRO_BATCHES // REPLICAS  # micro-batches of each replica: r, r + 2, …
GROUP_CONNECTIONS = 8  # connections that allow for the memory of a group
LOST = {"replica-lost", "replica-unreachable"}


def spec(rank=0, replicas=REPLICAS, **more):
    return w.run_spec(replicas=replicas, replica=rank, **more)


def hello(world, rank=0, attempt=None, run_spec=None, **more):
    attempt = os.urandom(16) if attempt is None else attempt
    return w.hello(world.run_id(), spec(rank) if run_spec is None else run_spec, **{"f60": attempt, **more})


def open_replica(world, rank=0, attempt=None, run_spec=None):
    """A run of a replica. Both servers accept it, although the other one may have no such run."""
    peer = world.connect(rank=rank)
    peer.send(hello(world, rank, attempt, run_spec))
    peer.wait_for(w.HELLO_OK)
    peer.share = range(rank, w.MICRO_BATCHES, REPLICAS)
    return peer


def tensor(i=0, stream=1, flow="activation/0", step=1, **more):
    return w.tensor(stream=stream, micro_batch=i, flow=flow, step=step, weight_version=step - 1, **more)


def compute(peer, step=1, value=0.0):
    """Performs the share of a step until the replica waits for the other one. `value`: of all elements of all tensors."""
    payload = struct.pack("<f", value) * (w.RAW_BYTES // 4)
    for flow, answer, first in (("activation/0", "activation/1", 1), ("gradient/1", "gradient/0", 1 + w.MICRO_BATCHES)):
        for i in peer.share:
            peer.send(tensor(i, 100 * step + first + i, flow, step, payload=payload))
        for i in peer.share:
            peer.wait_for(w.TENSOR)
            peer.send(w.received(micro_batch=i, flow=answer, step=step))


def train_step(peers, step=1):
    """Performs a step with all replicas. Returns the square sum of the gradients, and the digest of the weights."""
    for rank, peer in enumerate(peers):
        compute(peer, step, 0.01 * (1 + rank))
    sums = {peer.wait_for(w.BODY_DONE)[1][2] for peer in peers}
    for peer in peers:
        peer.send(w.step(step))
    digests = {struct.pack("<d", peer.wait_for(w.STEP_OK)[1][60]) for peer in peers}
    assert len(sums) == len(digests) == 1, f"the replicas differ: {sums}, {digests}"
    return sums.pop(), digests.pop()


# ---- Hellos ----


def hellos(what, codes, **fields):
    def act(world):
        peer = world.connect()
        peer.send(hello(world, **fields))
        return peer

    CASES.append(Case(f"Hello: {what}", act, codes))


for rank, replicas in ((1, 2), (0, 3), (2, 3), (0, 16)):
    hellos(f"replica {rank} of {replicas}", "wrong-replica", run_spec=spec(rank, replicas, micro_batches=16, in_flight=16))
for rank, replicas in ((2, 2), (0, 17), (2**32 - 2, 2**32 - 1)):
    hellos(f"replica {rank} of {replicas}", "bad-run-spec", run_spec=spec(rank, replicas, micro_batches=32, in_flight=32))
hellos("fewer micro-batches than replicas", REFUSALS | {"bad-replicas"}, run_spec=spec(micro_batches=1, in_flight=1))
hellos("replicas with a staleness and a strict schedule", "bad-staleness", run_spec=spec(schedule="1f1b", staleness=1))
for size in (0, 15, 17, 60000):
    hellos(f"an attempt of {size} bytes", "bad-metadata", attempt=bytes(size))
hellos("a trial of a replica", "bad-metadata", f1=w.TRIAL)

# ---- In a run ----

for name, codes, data in (
    ("a micro-batch of the other replica", "bad-key", tensor(1)),
    ("the micro-batches of its share as the whole batch", "bad-key", tensor(micro_batches=SHARE, samples=SHARE * w.OF_MICRO_BATCH)),
    ("the samples of its share", "bad-tensor", tensor(samples=SHARE * w.OF_MICRO_BATCH)),
    ("a Step before its reduction", "unexpected-message", w.step()),
):  # fmt: skip

    def in_run(world, data=data):
        peer = open_replica(world)
        peer.send(data)
        return peer

    CASES.append(Case(f"in a run: {name}", in_run, codes, connections=GROUP_CONNECTIONS))


@case("three correct steps", "", connections=GROUP_CONNECTIONS, uncounted=True)
def _(world):
    attempt = os.urandom(16)
    peers = [open_replica(world, rank, attempt) for rank in range(REPLICAS)]
    results = [train_step(peers, step) for step in (1, 2, 3)]
    assert results[0][0] > 0 and len({digest for _, digest in results}) == 3
    for peer in peers:
        world.leave(peer)


@case("a client that leaves while its replica waits for the other one", "", connections=GROUP_CONNECTIONS, uncounted=True)
def _(world):
    peer = open_replica(world)
    compute(peer)
    world.leave(peer)


@case("a Step while the replica waits for the other one", "unexpected-message", connections=GROUP_CONNECTIONS)
def _(world):
    peer = open_replica(world)
    compute(peer)
    peer.send(w.step())
    return peer


@case("a client that leaves one replica in a step of both", "replica-lost", connections=GROUP_CONNECTIONS, uncounted=True)
def _(world):
    attempt = os.urandom(16)
    first, second = peers = [open_replica(world, rank, attempt) for rank in range(REPLICAS)]
    train_step(peers)
    compute(first, 2)
    world.leave(second)
    return first


@case("replicas with bodies of other sizes", "replica-differs", connections=GROUP_CONNECTIONS, uncounted=True)
def _(world):
    attempt = os.urandom(16)
    other = spec(1, parameters={"width": str(w.WIDTH), "depth": "3"}, cut1=7)
    first, second = open_replica(world, 0, attempt), open_replica(world, 1, attempt, other)
    compute(first)
    compute(second)
    second.wait_for_close()
    assert second.code == "replica-differs", second.code
    second.close()
    return first


# ---- Groups that are never complete ----


ALIVE, ACCEPTED, TAKEN, DIFFERS, MISSING, VALUE, MEMBER_LOST = range(7)  # kinds of messages between the hub of a group and its members


def group_message(kind, key=b"", value=b"", size=None):
    return struct.pack("<IBB", 2 + len(key) + len(value) if size is None else size, kind, len(key)) + key + value


def join(world, attempt, expected, rank=1, replicas=REPLICAS):
    """Joins the group of a client's own run at the group port of replica 0. Checks that the answer is `expected`, and returns the socket."""
    digest = hashlib.sha256(b"member\n" + world.identity + b"/" + attempt.hex().encode()).digest()
    for _ in range(100):  # the group may not exist yet
        stranger = socket.create_connection(("127.0.0.1", world.group_port))
        stranger.settimeout(TIMEOUT)
        stranger.sendall(b"cleave-replica 1\n" + digest + bytes((rank, replicas)))
        while head := stranger.recv(5, socket.MSG_WAITALL):
            stranger.recv(struct.unpack_from("<I", head)[0] - 1, socket.MSG_WAITALL)
            if head[4] == expected:
                return stranger
            if (head[4], expected) == (ACCEPTED, TAKEN):  # this stranger came before the server's own replica 0
                break
            assert head[4] == ALIVE, f"rank {rank} of {replicas}: answered with {head[4]}"
        stranger.close()
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} of {replicas}: the group port never answered with {expected}")


def send_all(stranger, data):
    try:
        stranger.sendall(data)
    except OSError:  # closed, or not read
        pass


# Strangers in place of replica 1: the answer to the hello, and what they send then.
IMPOSTORS = {
    "silence": (ACCEPTED, b""), "an unknown kind": (ACCEPTED, group_message(99)), "an empty message": (ACCEPTED, group_message(0, size=0)),
    "a message of 4 GiB": (ACCEPTED, group_message(VALUE, size=2**32 - 1)),
    "a key longer than its message": (ACCEPTED, struct.pack("<IBB", 3, VALUE, 255) + b"x"),
    "16 MiB of values": (ACCEPTED, b"".join(group_message(VALUE, b"%d" % number, bytes(16000)) for number in range(1000))),
    "the hub's messages": (ACCEPTED, group_message(MEMBER_LOST, b"\1", b"x") + group_message(MISSING) + group_message(ACCEPTED, bytes(32))),
    "another number of replicas": (DIFFERS, b""), "the rank of replica 0": (TAKEN, b""), "nobody": (None, b""),
}  # fmt: skip


@case("groups with impostors, or without a second replica", LOST, connections=GROUP_CONNECTIONS * len(IMPOSTORS), uncounted=True)
def _(world):
    peers, strangers = [], []
    for name, (expected, data) in IMPOSTORS.items():
        attempt = os.urandom(16)
        peers.append(open_replica(world, 0, attempt))
        compute(peers[-1])
        if expected is None:
            continue
        stranger = join(world, attempt, expected, rank=0 if expected == TAKEN else 1, replicas=3 if expected == DIFFERS else REPLICAS)
        send_all(stranger, data)
        strangers.append(stranger)
    start = time.monotonic()
    for name, peer in zip(IMPOSTORS, peers):
        peer.wait_for_close()
        assert peer.code in LOST, f"{name}: {peer.code}"
    assert time.monotonic() - start < 2 * TIMEOUT + 2, "the runs ended too late"
    for one in (*strangers, *peers[1:]):
        one.close()
    return peers[0]


@case("the same rank twice", "", connections=2 * GROUP_CONNECTIONS, uncounted=True)
def _(world):
    attempt = os.urandom(16)
    twins, other = [open_replica(world, 0, attempt) for _ in range(2)], open_replica(world, 1, attempt)
    for peer in (*twins, other):
        compute(peer)
    other.wait_for(w.BODY_DONE)
    served = []
    for peer in twins:
        while (got := peer.read_frame()) and got[0] != w.BODY_DONE:
            pass
        served += [peer] if got else []
    assert len(served) == 1, f"{len(served)} of two equal replicas were served"
    for peer in (*served, other):
        world.leave(peer)
    (refused,) = (peer for peer in twins if peer not in served)
    assert refused.code in LOST | {"replica-differs"}, refused.code
    refused.close()


# ---- Strangers ----

GARBAGE = (b"", b"GET / HTTP/1.1\r\nHost: replica\r\n\r\n", bytes(8), b"\1" * 8, bytes(51), b"\xff" * 51, bytes(1000), b"\xff" * 100000,
           b"cleave-replica 1\n" + bytes(32) + b"\1\2", b"cleave-replica 1\n" + bytes(33))  # fmt: skip


@case("garbage at all ports of the group, and 200 connections without a word", "", uncounted=True)
def _(world):
    strangers = []
    ports = [each for server in world.servers for each in server.listening_ports() if each != server.port]
    assert world.group_port in ports
    for port in ports:
        try:
            strangers += [socket.create_connection(("127.0.0.1", port)) for _ in GARBAGE]
        except ConnectionRefusedError:  # of a group that has ended
            continue
    for number, stranger in enumerate(strangers):
        send_all(stranger, GARBAGE[number % len(GARBAGE)])
    strangers += [socket.create_connection(("127.0.0.1", world.group_port)) for _ in range(200)]
    time.sleep(1)  # an honest run continues
    for stranger in strangers:
        stranger.close()
