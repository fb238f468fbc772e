"""Compares the plans of `cleave-client plan` with 20 settings chosen by hand, for three models on four emulated links.

Client and server wait instead of computing, for the times of the profile, so that only codecs, sockets and cleave-link use the processors.
The client's profile is measured on this machine with one thread; the server's is a copy, `--server-speed` times as fast. The grid has 5
pairs of cuts, 4 and 8 micro-batches, and the codecs none and block:bits=8, with the schedule priority; the planner may use the same
codecs. A setting of the grid is not measured if its bound exceeds the measured step of the plan, because then no run of it can be faster.
Prints a table and writes the figures as JSON. Called by scripts/bench.sh plan."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

from codec_step import Loopback, running_server
from machine import Others, conclude
from pipeline import held_bytes, run_steps, running_link

# Per model its configuration, the settings that differ from it, and the cuts of the grid.
MODELS = {
    "mobilenet_v2": {"name": "mobilenet_v2", "config": "tests/bench/mobilenet_v2.yaml", "settings": {"train.batch": "32", "data.shape": "[3, 96, 96]"},
                     "cuts": [[3, 21], [4, 20], [6, 21], [7, 18], [9, 22]]},
    "small_cnn": {"name": "small_cnn", "config": "tests/bench/small_cnn.yaml", "settings": {"model.width": "64"},
                  "cuts": [[2, 13], [4, 13], [4, 12], [8, 13], [8, 12]]},
    "mlp": {"name": "mlp", "config": "tests/bench/small_cnn.yaml", "settings": {"model": "{name: mlp, width: 2048, depth: 6}"},
            "cuts": [[1, 13], [1, 12], [3, 13], [3, 11], [5, 9]]},
}
LINKS = [(100, 1), (100, 20), (1000, 0.1), (1000, 20)]  # Mbit/s, ms one way
MICRO_BATCHES = [4, 8]
CODECS = ["none", "block:bits=8"]
CODEC_ARGUMENTS = [argument for codec in CODECS for argument in ("--codec", codec)]


def assignments(settings):
    return [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]


def client(options, command, model, *arguments):
    """The JSON that a command of cleave-client prints."""
    done = subprocess.run([f"{options.programs}/cleave-client", command, "--config", model["config"], "--json", "--log-level", "error",
                           *assignments(model["settings"]), *arguments], check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    return json.loads(done.stdout)


def profiles(options, name, folder):
    """The files of the client's and of the server's profile."""
    own, other = f"{folder}/{name}-client.json", f"{folder}/{name}-server.json"
    client(options, "profile", MODELS[name], "--set", "threads.client=1", "--output", own, *CODEC_ARGUMENTS)
    with open(own) as file:
        profile = json.load(file)
    for size in profile["sizes"]:
        for key in ("forward_seconds", "backward_seconds", "weights_seconds"):
            size[key] = [value / options.server_speed for value in size[key]]
    with open(other, "w") as file:
        json.dump(profile, file)
    return own, other


def costs(options, model, link, setting):
    """A setting's predicted costs of a step: those of `simulate`."""
    settings = {"model.cuts": json.dumps(setting["cuts"]), "train.micro_batches": setting["micro_batches"], "codec": json.dumps(setting["codec"])}
    return client(options, "simulate", model, *link, *assignments(settings))["cases"][0]


def measure(options, model, address, setting, costs):
    """The median of a setting's steps, in seconds."""
    names = {"F1": "head_forward", "T3": "tail_step", "B1": "head_backward", "F2": "body_forward", "B2": "body_backward"}
    waits = {key: 1e3 * costs[f"{name}_seconds"] for key, name in names.items()}
    if setting["schedule"] == "zb":  # W2 is a part of the whole backward
        waits["W2"] = 1e3 * costs["body_weights_seconds"]
        waits["B2"] -= waits["W2"]
    settings = {**model["settings"], "train.micro_batches": setting["micro_batches"],
                "train.in_flight": setting["in_flight"], "threads.client": 1, "threads.server": 1}  # fmt: skip
    variant = f"train.schedule={setting['schedule']}"
    steps, _ = run_steps(options, model, address, json.dumps(setting["codec"]), [variant], options.rounds, waits,
                         [f"{key}={value}" for key, value in settings.items()], setting["cuts"])  # fmt: skip
    return statistics.median(row["seconds"] for row in steps[variant])


def text_of(setting):
    codec = setting["codec"] if isinstance(setting["codec"], str) else "/".join(setting["codec"].values())
    return f"cuts {setting['cuts']}, {setting['micro_batches']} x {setting['schedule']}, {codec}"


def measure_link(options, name, files, server, rate, latency):
    model = MODELS[name]
    link = ["--rate", f"{rate:g}Mbit/s", "--latency", f"{latency:g}ms", "--queue", f"{held_bytes(options, rate):.0f}B", "--profile", files[0],
            "--server-profile", files[1]]  # fmt: skip
    best = client(options, "plan", model, *link, *CODEC_ARGUMENTS)["plans"][0]
    plan = {"cuts": best["cuts"], "micro_batches": best["micro_batches"], "in_flight": best["in_flight"], "schedule": best["schedule"],
            "codec": best["codecs"]}  # fmt: skip
    grid = [{"cuts": cuts, "micro_batches": count, "in_flight": 0, "schedule": "priority", "codec": codec}
            for cuts in model["cuts"] for count in MICRO_BATCHES for codec in CODECS]  # fmt: skip
    predicted = {id(setting): costs(options, model, link, setting) for setting in [plan, *grid]}
    with running_link(options, server, rate, latency) as address:

        def run(setting):
            return measure(options, model, address, setting, predicted[id(setting)])

        seconds = run(plan)
        for setting in grid:
            setting["bound"] = predicted[id(setting)]["bound_seconds"]
            setting["seconds"] = run(setting) if setting["bound"] < seconds else None
        fastest = min((setting for setting in grid if setting["seconds"]), key=lambda setting: setting["seconds"], default=None)
        if fastest and fastest["seconds"] < seconds:  # again, one right after the other
            fastest["seconds"], seconds = run(fastest), run(plan)
    measured = sum(setting["seconds"] is not None for setting in grid)
    print(f"{name:<14}{rate:>5g} Mbit/s {latency:>4g} ms{1e3 * best['seconds']:>10.1f}{1e3 * seconds:>9.1f}{best['seconds'] / seconds:>7.2f}"
          f"{1e3 * fastest['seconds'] if fastest else float('nan'):>10.1f}{seconds / fastest['seconds'] if fastest else float('nan'):>11.2f}"
          f"{measured:>6}  {text_of(plan)}{'; grid: ' + text_of(fastest) if fastest else ''}", flush=True)  # fmt: skip
    return {"model": name, "rate": rate, "latency": latency, "plan": plan, "predicted": best["seconds"], "seconds": seconds, "grid": grid}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this model; repeatable")
    parser.add_argument("--link", type=int, choices=range(len(LINKS)), action="append", help="only this link, by its number; repeatable")
    parser.add_argument("--server-speed", type=float, default=4, help="the server's speed, divided by the client's (4)")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each setting, each after one that is not counted (5)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    options.queue = None  # the link's own

    others = Others()
    results = []
    print(f"{'model':<14}{'link':<19}{'predicted':>10}{'plan':>9}{'ratio':>7}{'grid best':>10}{'plan/grid':>11}{'run':>6}  settings; ms")
    with tempfile.TemporaryDirectory() as folder, running_server(options, Loopback(), folder) as server:
        for name in options.model or MODELS:
            files = profiles(options, name, os.fspath(folder))
            for number in options.link or range(len(LINKS)):
                results.append(measure_link(options, name, files, server, *LINKS[number]))
    share = others.share()
    conclude(share, results, options.json, others_share=share)


if __name__ == "__main__":
    main()
