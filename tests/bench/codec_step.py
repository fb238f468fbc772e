"""Compares a training step with a codec on all four flows to one without: MobileNetV2 at batch 64,
224 x 224, 8 micro-batches. The client computes; the server, an unmodified cleave-server, waits
instead: 2 ms per forward, 4 ms per backward.

Both variants are sessions of the same client process with the same server, and take turns of a few steps, so that a pair of turns is
measured within seconds. Measures over plain loopback, and between two network namespaces connected by a veth pair whose ends are limited to
1 Gbit/s by a token bucket (tc tbf), with TLS; this part requires root and is skipped without it. Prints a table and writes the figures as
JSON. Called by scripts/bench.sh codec-step."""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import tempfile
import time

from machine import Others, machine, machine_text

WAIT = {"F2": 2, "B2": 4}  # ms per micro-batch
ALLOWED = "[mlp, small_cnn, mobilenet_v2, graph, sleep]"  # models of the server


def sleeping(model, times, cuts=None):
    """Arguments that let the parts of a model sleep for these ms per micro-batch. `cuts`: those of the model; None: its own. Other parameters
    of the model stay as they are in the configuration."""
    settings = {"name": "sleep", "of": model, **times}
    if cuts:
        settings["at"] = "-".join(str(cut) for cut in cuts)
    return [argument for key, value in settings.items() for argument in ("--set", f"model.{key}={value}")]
COMPUTE = ["HeadForward", "TailStep", "HeadBackward", "Update"]


class Loopback:
    name = "loopback, unshaped"
    address = "127.0.0.1"
    server, client = [], []  # prefixes of the programs' command lines


class ShapedLink:
    """Two network namespaces connected by a veth pair. Each end is limited to `megabits` Mbit/s."""

    address = "10.0.0.1"

    def __init__(self, megabits, stack):
        self.name = f"veth, {megabits:g} Mbit/s"
        # A namespace exists as long as a process runs in it; these processes end when their stdin
        # closes.
        holders = [stack.enter_context(subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)) for _ in "ab"]
        self.server, self.client = (["nsenter", "--net", f"--target={holder.pid}"] for holder in holders)
        own = os.readlink("/proc/self/ns/net")
        for holder in holders:
            while holder.poll() is None and os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.01)
            if holder.poll() is not None:
                raise OSError("cannot create network namespaces")
        ends = [("cleave0", self.server, self.address), ("cleave1", self.client, "10.0.0.2")]
        run(self.server + ["ip", "link", "add", "name", "cleave0", "type", "veth",
                           "peer", "name", "cleave1", "netns", str(holders[1].pid)])
        for device, inside, address in ends:
            run(inside + ["ip", "address", "add", f"{address}/24", "dev", device])
            run(inside + ["ip", "link", "set", device, "up"])
            # The burst must exceed the largest unsegmented packet that the kernel passes on.
            run(inside + ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{megabits:g}mbit",
                          "burst", "256kb", "latency", "10ms"])


def run(arguments):
    subprocess.run(arguments, check=True)


def certificates(options, link, folder):
    """The arguments that enable TLS on server and client; the server requires it beyond
    loopback."""
    certs = [f"{options.programs}/cleave-server", "certs"]
    for arguments in (["init", "--name", link.address], ["client", "bench"]):
        subprocess.run([*certs, *arguments, "--folder", f"{folder}/certs"], check=True, stdout=subprocess.DEVNULL)
    return [["--set", "tls.enabled=true", "--set", f"tls.folder={folder}/certs{place}"] for place in ("", "/clients/bench")]


@contextlib.contextmanager
def running_server(options, link, folder, tls=()):
    arguments = ["--log-level", "error", "--set", "listen.port=0", "--set", f"listen.address={link.address}",
                 "--set", f"store={folder}/store", "--set", "limits.memory_mib=16777216",
                 "--set", f"models.allow={ALLOWED}", *tls]
    server = subprocess.Popen([*link.server, f"{options.programs}/cleave-server", "serve", *arguments],
                              stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip().rpartition(" ")[2]
    finally:
        server.terminate()
        server.wait()


def measure(options, link, codecs):
    """The sessions' descriptions and the rows of the measured steps, by codec."""
    variants = [argument for codec in codecs for argument in ("--variant", f"codec={codec}")]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        is_loopback = link.address == Loopback.address
        server_tls, client_tls = ([], []) if is_loopback else certificates(options, link, folder)
        address = stack.enter_context(running_server(options, link, folder, server_tls))
        done = subprocess.run(
            [*link.client, f"{options.programs}/bench_step", "--config", options.config, "--server", address,
             "--folder", f"{folder}/client", *client_tls, *variants, "--rounds", str(options.pairs), "--steps", str(options.steps),
             *sleeping("mobilenet_v2", WAIT), "--set", f"threads.client={options.threads}", "--log-level", "warn",
             *[argument for setting in options.set for argument in ("--set", setting)]],
            check=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    measured = [row for row in rows if row.get("warm_up") is False]
    return {codec: [row for row in measured if row["variant"] == f"codec={codec}"] for codec in codecs}


def median_limits(values, confidence=0.95):
    """An interval that contains the median with at least that confidence, for any distribution:
    from the k-th smallest to the k-th largest value, where k follows from the binomial
    distribution. It is two-sided, so each bound alone has a higher confidence."""
    ordered, n = sorted(values), len(values)
    tail, k = 0.0, 0
    while (tail := tail + math.comb(n, k) / 2**n) <= (1 - confidence) / 2:
        k += 1
    if k == 0:
        return -math.inf, math.inf  # too few values
    return ordered[k - 1], ordered[n - k]


def turns(rows):
    """Seconds per step of each turn."""
    by_round = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row["seconds"])
    return [statistics.fmean(by_round[number]) for number in sorted(by_round)]


def compare(steps, codec, most):
    seconds = {name: turns(rows) for name, rows in steps.items()}
    ratios = [with_codec / without for with_codec, without in zip(seconds[codec], seconds["none"])]
    low, high = median_limits(ratios)
    return {"codec": codec, "seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios), "limits": [low, high],
            "target": most, "reached": high <= most}


def print_comparison(link, result):
    with_codec, without = (1e3 * statistics.median(result["seconds"][name]) for name in (result["codec"], "none"))
    limits = "{:.3f} to {:.3f}".format(*result["limits"])
    print(f"{link.name:<20}{result['codec']:<16}{with_codec:>9.1f}{without:>9.1f}{result['ratio']:>8.3f}{limits:>18}"
          f"{result['target']:>8.2f}{'yes' if result['reached'] else 'no':>9}")


def print_parts(link, steps):
    print(f"\n{link.name}: medians of a step in ms; MB; Mbit/s over the whole step")
    print(f"{'codec':<16}{'step':>8}{'client':>9}{'server':>9}{'client':>9}{'server':>9}{'client':>11}{'bytes':>8}{'link':>8}")
    print(f"{'':<16}{'':>8}{'computes':>9}{'waits':>9}{'codec':>9}{'codec':>9}{'processor':>11}{'up':>8}{'up':>8}")
    for codec, rows in steps.items():
        middle = lambda *columns: statistics.median(sum(row[column] for column in columns) for row in rows)
        step, up = middle("seconds"), middle("bytes_up")
        values = [1e3 * value for value in (step, middle(*COMPUTE), middle("BodyForward", "BodyBackward"),
                                            middle("encode", "decode"), middle("server_codec"))]
        print(f"{codec:<16}{values[0]:>8.1f}" + "".join(f"{value:>9.1f}" for value in values[1:]) +
              f"{1e3 * middle('processor_seconds'):>11.1f}{up / 1e6:>8.1f}{8e-6 * up / step:>8.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="tests/bench/mobilenet_v2.yaml")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="steps per turn, after one that is not counted")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=max(1, cores // 2), help="threads of the client")
    parser.add_argument("--link", choices=["loopback", "shaped"], help="only this link")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed to cleave-client")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    results = []
    with contextlib.ExitStack() as stack:
        links = []
        if options.link != "shaped":
            links.append((Loopback(), "sort:q=6,s=2", 1.05))
        if options.link != "loopback":
            try:
                links.append((ShapedLink(1000, stack), "block:bits=8", 1.0))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"1 Gbit/s: skipped, because it requires root, unshare, nsenter, ip and tc: {error}")
        for link, codec, most in links:
            steps = measure(options, link, ["none", codec])
            results.append((link, steps, compare(steps, codec, most)))
    if not results:
        return
    others = others.share()

    print(f"MobileNetV2, batch 64, 8 micro-batches, server waits {WAIT['F2']} + {WAIT['B2']} ms each; {options.pairs} pairs of "
          f"turns of {options.steps} steps;\nclient with {options.threads} thread(s) on {cores} cores, which the server shares and "
          f"of which other programs used {100 * others:.0f} %\n"
          f"{machine_text()}")
    print(f"\n{'link':<20}{'codec':<16}{'step, ms':>9}{'none, ms':>9}{'ratio':>8}{'95 % limits':>18}{'at most':>8}{'reached':>9}")
    for link, _, result in results:
        print_comparison(link, result)
    for link, steps, _ in results:
        print_parts(link, steps)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"results": [{"link": link.name, **result, "steps": steps} for link, steps, result in results],
                       "threads": options.threads, "others": others, "machine": machine()}, file, indent=2)


if __name__ == "__main__":
    main()
