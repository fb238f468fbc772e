"""The arithmetic of parallelism.py: the time of a data-parallel step, and bytes and memory of data parallelism and of pipelines."""

import math

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
