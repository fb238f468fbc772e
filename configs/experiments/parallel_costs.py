"""The arithmetic of parallelism.py: the time of a data-parallel step, bytes and memory of data parallelism and of pipelines, and PipeDream's
partitions."""

import collections
import functools
import math
import re

BUCKET = 25 << 20  # bytes of the buckets in which DistributedDataParallel sums gradients


def ring_bytes(gradient_bytes, devices):
    """What each device sends in a ring all-reduce."""
    return 2 * (devices - 1) / devices * gradient_bytes


def data_parallel_seconds(alone, devices, batch, rate, latency, overlaps):
    """Seconds of a step: see parallelism.py. `alone`: the figures of one process, which trains alone["batch"] samples."""
    scale = batch / devices / alone["batch"]
    forward, backward = scale * alone["forward"], scale * alone["backward"]
    buckets = math.ceil(alone["gradient_bytes"] / BUCKET)
    sending = ring_bytes(alone["gradient_bytes"], devices) / rate + buckets * 2 * (devices - 1) * latency
    return forward + (max(backward, sending) if overlaps else backward + sending) + alone["update"]


# ---- Profiles of cleave-client profile ----

def scaled(value, factor, key=""):
    """A copy of JSON in which all seconds are multiplied by the factor."""
    if isinstance(value, dict):
        return {name: scaled(each, factor, name) for name, each in value.items()}
    if isinstance(value, list):
        return [scaled(each, factor, key) for each in value]
    return value * factor if key in ("forward", "backward", "update") or "seconds" in key else value


def at_size(sizes, samples, value):
    """A time for a micro-batch of this size: interpolated between measured sizes, and proportional to the samples beyond them."""
    sizes = sorted(sizes, key=lambda each: each["samples"])
    if samples <= sizes[0]["samples"] or samples >= sizes[-1]["samples"]:
        nearest = sizes[0] if samples <= sizes[0]["samples"] else sizes[-1]
        return value(nearest) * samples / nearest["samples"]
    above = next(n for n, each in enumerate(sizes) if each["samples"] >= samples)
    low, high = sizes[above - 1], sizes[above]
    share = (samples - low["samples"]) / (high["samples"] - low["samples"])
    return (1 - share) * value(low) + share * value(high)


def part_of(profile, first, last, samples):
    """The costs of the blocks from `first` to `last` - 1, with seconds of a micro-batch of this size and bytes of a micro-batch or, where
    the name says so, of a sample. The backward of the model's last part includes the loss."""
    blocks = profile["blocks"][first:last]

    def seconds(key):
        return at_size(profile["sizes"], samples, lambda size: sum(size[key][first:last]))

    is_tail = last == len(profile["blocks"])
    loss = at_size(profile["sizes"], samples, lambda size: size["loss_seconds"]) if is_tail else 0
    return {"forward_seconds": seconds("forward_seconds"), "backward_seconds": seconds("backward_seconds") + loss,
            "update_seconds": sum(block["update_seconds"] for block in blocks),
            "output_bytes": blocks[-1]["output_bytes_per_sample"] * samples,
            "saved_bytes_per_sample": sum(block["saved_bytes_per_sample"] for block in blocks),
            "output_bytes_per_sample": blocks[-1]["output_bytes_per_sample"],
            "parameter_bytes": sum(block["parameter_bytes"] for block in blocks)}  # fmt: skip


# ---- Memory ----

def largest_part(batch, parts):
    """Samples of the largest of `parts` parts of a batch."""
    return -(-batch // parts)


def state_bytes(part, slots):
    """Bytes of weights, gradients, and the optimizer's `slots` values per parameter."""
    return part["parameter_bytes"] * (2 + slots)


def data_parallel_memory(parts, slots, samples):
    """Bytes of a device that trains the whole model with this many samples. The buckets are a second copy of the gradients."""
    return sum(state_bytes(part, slots) + part["parameter_bytes"] + part["saved_bytes_per_sample"] * samples for part in parts)


def pipeline_memory(parts, slots, samples, in_flight, recompute):
    """Bytes of the client and of each server, with micro-batches of this size. With recompute, only the input of a body is kept for all
    micro-batches in flight; that of the head is part of the data. The tail keeps one micro-batch."""
    head, *bodies, tail = parts

    def kept(part, input_bytes):
        if not recompute:
            return part["saved_bytes_per_sample"] * samples * in_flight
        return (input_bytes * in_flight + part["saved_bytes_per_sample"]) * samples

    client = state_bytes(head, slots) + kept(head, 0) + state_bytes(tail, slots) + tail["saved_bytes_per_sample"] * samples
    inputs = [part["output_bytes_per_sample"] for part in parts]
    return [client, *(state_bytes(body, slots) + kept(body, inputs[n]) for n, body in enumerate(bodies))]


# ---- Published profiles ----

Layer = collections.namedtuple("Layer", "seconds output_bytes parameter_bytes")


def read_profile(path):
    """The layers of a published profile as a chain.

    A profile is a graph: a line per node, then a line per edge. After each node, the outputs that a later node needs are sent. Nodes that
    take no time are merged into the node before them. tests/common/predict/partition_test.cpp reads the same files in the same way.
    """
    def total(line, key):
        return sum(float(value) for value in re.search(key + r"=\[?([0-9.; ]+)", line)[1].split(";"))

    nodes, inputs = {}, collections.defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for line in file.read().splitlines():
            first, second = line.strip().split(" -- ")[:2]
            if line.startswith("\t"):
                inputs[second].append(first)
            else:
                seconds = 1e-3 * (total(line, "forward_compute_time") + total(line, "backward_compute_time"))
                nodes[first] = Layer(seconds, total(line, "activation_size"), total(line, "parameter_size"))
    order = []
    while len(order) < len(nodes):
        order.append(next(name for name in nodes if name not in order and all(each in order for each in inputs[name])))
    layers = []
    for n, name in enumerate(order):
        needed = {each for later in order[n + 1:] for each in inputs[later]}
        sent = sum(nodes[each].output_bytes for each in order[:n + 1] if each in needed)
        if not layers or (nodes[name].seconds > 0 and layers[-1].seconds > 0):
            layers.append(Layer(0, 0, 0))
        layers[-1] = Layer(layers[-1].seconds + nodes[name].seconds, sent, layers[-1].parameter_bytes + nodes[name].parameter_bytes)
    return layers


def best_partition(layers, workers, bandwidth, tolerance=0.05):
    """PipeDream's partition, by the formulas of common/predict/partition.h: ([(first, last, replicas)], bytes per batch).

    Of the partitions within the tolerance of the fastest one, those with the fewest stages, and of these one with the fewest bytes.
    """
    seconds, parameters = [0.0], [0.0]
    for layer in layers:
        seconds.append(seconds[-1] + layer.seconds)
        parameters.append(parameters[-1] + layer.parameter_bytes)

    def stage(first, last, replicas):
        sync = ring_bytes(parameters[last] - parameters[first], replicas)
        moved = 2 * layers[first - 1].output_bytes if first else 0
        return max((seconds[last] - seconds[first] + sync / bandwidth) / replicas, moved / bandwidth), moved + sync

    def choices(first, left):
        return ((last, replicas) for last in range(first + 1, len(layers) + 1) for replicas in range(1, left + 1))

    @functools.cache
    def fastest(first, left):
        if first == len(layers) or left == 0:
            return 0 if first == len(layers) and left == 0 else math.inf
        return min(max(stage(first, last, replicas)[0], fastest(last, left - replicas)) for last, replicas in choices(first, left))

    limit = fastest(0, workers) * (1 + tolerance)

    @functools.cache
    def smallest(first, left):
        if first == len(layers) or left == 0:
            return (0, 0, ()) if first == len(layers) and left == 0 else (math.inf, math.inf, ())
        best = (math.inf, math.inf, ())
        for last, replicas in choices(first, left):
            took, moved = stage(first, last, replicas)
            if took > limit:
                continue
            stages, bytes_, rest = smallest(last, left - replicas)
            best = min(best, (stages + 1, bytes_ + moved, ((first, last, replicas), *rest)))
        return best

    _, bytes_, stages = smallest(0, workers)
    return list(stages), bytes_
