"""Graphs as attacks on the server that runs them: each is sent by legal frames and would read, write or occupy what is not its own, if the
server computed it without limits. The table of cases has the same form as in cases.py. Whatever the graph does, only its own run may end."""
import time

import wire as w
from cases import Case, adds_to
from graphs import Graph

CASES = []
case = adds_to(CASES)
ACTION_SECONDS = 5  # limits.action_seconds
INT64_MIN = -(2**63)
REFUSED = {"bad-graph"}


def spec_of(packed):
    return w.run_spec(model="graph", parameters={}, cut0=1, cut1=2, graph=packed)


def adds_graph(name, codes):
    """A decorator for a function that returns a packed graph. Adds the case that computes it for one micro-batch."""

    def add(make):
        def act(world):
            peer = world.run(spec_of(make(Graph())))
            peer.send(w.tensor(bytes(w.OF_MICRO_BATCH * 16), shape=(w.OF_MICRO_BATCH, 4)))
            answer_pings(peer)
            return peer

        CASES.append(Case(name, act, codes, uncounted=True))
        return make

    return add


def answer_pings(peer, seconds=60):
    """Reads frames until the other side ends the session. An action may take longer than a peer may be silent."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        got = peer.read_frame()
        if got is None or peer.code:
            return
        if got[0] == w.PING:
            peer.send(w.frame(w.PONG, w.message((1, got[1].get(1, 0)))))
        assert got[0] != w.TENSOR, "the graph's result was returned"
    raise AssertionError(f"the session has not ended after {seconds} s")


# ---- Reads and writes outside of tensors ----


@adds_graph("a weight norm with fewer norms than rows", REFUSED)
def _(graph):
    return graph.used(graph.add("_weight_norm.default", v=graph.full((2**18, 4), 1.0), g=graph.full((4, 1), 1.0), dim=0))


@adds_graph("a weight norm of an empty tensor", REFUSED)
def _(graph):
    return graph.used(graph.add("_weight_norm.default", v=graph.full((0, 4), 1.0), g=graph.full((0, 1), 1.0), dim=0))


@adds_graph("an attention with fewer keys than values", REFUSED)
def _(graph):
    query, key, value = (graph.full((1, rows, 64), 1.0) for rows in (64, 16, 4096))
    return graph.used(graph.add("scaled_dot_product_attention.default", query=query, key=key, value=value))


@adds_graph("a max pool whose windows have no element", REFUSED)
def _(graph):
    columns = 2**15 - 1
    image = graph.add("reshape.default", self=graph.full((columns,), 1.0), shape=[1, 1, columns])
    return graph.used(graph.add("max_pool1d.default", self=image, kernel_size=[2], stride=[1], padding=[1], dilation=[columns + 1]))


@adds_graph("an lstm whose state is larger than its weights", REFUSED)
def _(graph):
    state = [graph.full((1, 8, 2048), 0.0) for _ in range(2)]
    parameters = [graph.full(shape, 0.1) for shape in ((16, 4), (16, 4), (16,), (16,))]
    x = graph.full((5, 8, 4), 1.0)
    return graph.used(graph.add("lstm.input", 3, input=x, hx=state, params=parameters, has_biases=True, num_layers=1,
                                dropout=0.0, train=True, bidirectional=False, batch_first=False))  # fmt: skip


@adds_graph("the smallest integer divided by -1", REFUSED)
def _(graph):
    a, b = (graph.full((8,), fill, "i64") for fill in (INT64_MIN, -1))
    return graph.used(graph.add("div.Tensor_mode", self=a, other=b, rounding_mode="trunc"))


# ---- Memory and time ----


@adds_graph("a gru over a million steps", {"memory-exceeded", "body-crashed", "action-too-long"})
def _(graph):
    flat = graph.add("reshape.default", self=graph.input, shape=[32])
    three = graph.add("slice.Tensor", self=flat, dim=0, start=0, end=3)
    column = graph.add("reshape.default", self=three, shape=[3, 1])
    x = graph.full((10**6, 1, 1), 1.0)
    state = graph.full((1, 1, 1), 0.0)
    return graph.used(graph.add("gru.input", 2, input=x, hx=state, params=[column, column, three, three], has_biases=True,
                                num_layers=1, dropout=0.0, train=True, bidirectional=False, batch_first=False))  # fmt: skip


@adds_graph("tensors that are larger than declared", {"memory-exceeded"})
def _(graph):
    return graph.output(graph.add("repeat.default", self=graph.input, repeats=[2**15, 2**15]))


def distances(graph, count):
    """Takes seconds for 2,000 points, but little memory."""
    points = graph.full((count, 1000), 1.0)
    return graph.add("cdist.default", x1=points, x2=points, p=2.5)


@adds_graph("many operators that take long together", {"action-too-long"})
def _(graph):
    return graph.used([distances(graph, 500) for _ in range(100)][-1])


@adds_graph("a single operator that takes long", {"action-too-long"})
def _(graph):
    return graph.used(distances(graph, 3000))


# ---- Other results than declared ----


@case("a graph that changes a weight in the forward pass through a view", REFUSED)
def _(world):
    graph = Graph()
    view = graph.add("einsum.default", equation="ij->ij", tensors=[graph.parameter("w", (4, 4))])
    halved = graph.add("mul_.Tensor", self=view, other=0.5)
    peer = world.connect()
    peer.send(w.hello(world.run_id(), spec_of(graph.output(graph.add("mm.default", self=graph.input, mat2=halved)))))
    return peer


for what, op, arguments in (
    ("twice the values", "repeat.default", {"repeats": [2, 4]}), ("a sum", "sum.default", {}), ("bools", "isnan.default", {}),
    ("no rows", "slice.Tensor", {"dim": 0, "start": 0, "end": 0}),
):  # fmt: skip

    @adds_graph(f"{what} instead of what it declares", REFUSED)
    def _(graph, op=op, arguments=arguments):
        return graph.output(graph.add(op, self=graph.input, **arguments))
