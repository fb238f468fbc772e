#!/usr/bin/env python3
"""Simulates clients that train at several servers behind a TCP balancer that keeps each run at its server, and prints a table with one
row per number of servers.

Each client repeats a step: it computes for half of --client-seconds, the server's device computes the body's forward pass for half of
--body-seconds, the client answers at once, the device computes the backward pass, and the client computes for the rest. All times vary by up to --jitter. A device computes one action at a
time, and its sessions have fair shares, by the rule of common/resources/fair_shares.h. The balancer chooses a client's server when it first
connects: `hash` takes a hash of its address, `least` the server with the fewest clients. A server refuses clients beyond --sessions."""
import argparse
import hashlib
import heapq
import random
import statistics
import sys


def address_of(client):
    return f"10.{client >> 16 & 255}.{client >> 8 & 255}.{client & 255}"


def choose_server(policy, client, load):
    """The index of the client's server. `load`: the number of clients of each server so far."""
    if policy == "least":
        return load.index(min(load))
    digest = hashlib.sha256(address_of(client).encode()).digest()
    return int.from_bytes(digest[:8], "big") % len(load)


def balance(policy, clients, servers):
    """The number of clients of each server."""
    load = [0] * servers
    for client in range(clients):
        load[choose_server(policy, client, load)] += 1
    return load


class FairShares:
    """Which of a server's clients may use the device next: common/resources/fair_shares.h. Users are numbered from 0."""

    LEAD_SECONDS = 0.25
    QUIET_SECONDS = {False: 2, True: 10}  # by whether the user is in a step

    def __init__(self, users):
        self.seconds = [0.0] * users
        self.quiet = [0.0] * users
        self.in_step = [False] * users
        self.floor = 0.0

    def work_left(self, user):
        return self.QUIET_SECONDS[self.in_step[user]] - self.quiet[user]

    def limit(self):
        """The seconds that a user may have used to be admitted now."""
        return self.min_at_work() + self.LEAD_SECONDS

    def min_at_work(self):
        if max(self.quiet) < min(self.QUIET_SECONDS.values()):
            return min(self.seconds)  # all users are at work
        return min((used for user, used in enumerate(self.seconds) if self.work_left(user) > 0), default=float("inf"))

    def used(self, user, seconds, in_step):
        if self.work_left(user) <= 0:
            self.seconds[user] = max(self.seconds[user], self.floor)
        self.quiet[user], self.in_step[user] = 0.0, in_step
        self.floor = max(self.floor, self.min_at_work())
        self.seconds[user] += seconds

    def idled(self, seconds):
        limit, most = self.limit(), max(self.floor, *self.seconds)
        for user, used in enumerate(self.seconds):
            if used <= limit:
                self.quiet[user] += seconds
            self.seconds[user] = max(used, min(used + seconds, most))
        self.floor = max(self.floor, min(self.floor + seconds, most))

    def held_for(self):
        """The idle time after which another user may be admitted; infinite if no user is held back."""
        limit = self.limit()
        held = [used - limit for used in self.seconds if used > limit]
        holding = [self.work_left(user) for user, used in enumerate(self.seconds) if used <= limit and self.work_left(user) > 0]
        return min(held + holding) if held else float("inf")


class Device:
    """A server's device and its clients in virtual time."""

    def __init__(self, clients, options, seed):
        self.options, self.rng = options, random.Random(seed)
        self.shares = FairShares(clients)
        self.end = options.warm_up + options.seconds
        self.steps, self.busy = [], 0.0  # seconds of each step that ended after the warm-up, and of the device's work in that time
        self.begins = [self.rng.uniform(0, options.client_seconds) for _ in range(clients)]  # of the current steps
        self.arrivals = []  # requests on their way to the server: (time, client, action)
        self.waiting = {}  # requests at the server: {client: action}
        for client in range(clients):
            self.begin_step(client)
        self.run()

    def vary(self, seconds):
        return seconds * self.rng.uniform(1 - self.options.jitter, 1 + self.options.jitter)

    def begin_step(self, client):
        self.send(self.begins[client] + self.vary(self.options.client_seconds / 2), client, "forward")

    def send(self, time, client, action):
        heapq.heappush(self.arrivals, (time + self.options.latency, client, action))

    def run(self):
        time = 0.0
        while time < self.end and self.begins:
            while self.arrivals and self.arrivals[0][0] <= time:
                _, client, action = heapq.heappop(self.arrivals)
                self.waiting[client] = action
            used, first = min(((self.shares.seconds[client], client) for client in self.waiting), default=(0.0, None))
            if first is not None and used <= self.shares.limit():
                time = self.compute(first, time)
            else:
                idle = min(self.arrivals[0][0] - time if self.arrivals else float("inf"), max(1e-6, self.shares.held_for()))
                self.shares.idled(idle)
                time += idle

    def compute(self, client, time):
        """Runs the action that the client waits for, and returns the time of its end."""
        action = self.waiting.pop(client)
        done = time + self.vary(self.options.body_seconds / 2)
        self.shares.used(client, done - time, action == "forward")
        self.busy += max(0.0, min(done, self.end) - max(time, self.options.warm_up))
        if action == "forward":
            self.send(done + self.options.latency, client, "backward")
        else:
            end = done + self.options.latency + self.vary(self.options.client_seconds / 2)
            if self.options.warm_up <= end < self.end:
                self.steps.append(end - self.begins[client])
            self.begins[client] = end
            self.begin_step(client)
        return done


def simulate(servers, options):
    load = balance(options.balancer, options.clients, servers)
    admitted = [min(clients, options.sessions) for clients in load]
    served = [Device(clients, options, f"{options.seed}/{servers}/{i}") for i, clients in enumerate(admitted)]
    if not all(device.steps for device, clients in zip(served, admitted) if clients):
        sys.exit("fleet_sim.py: a server ended no step: raise --warm-up and --seconds")
    steps = sorted(second for device in served for second in device.steps)
    # By Little's law. Clients end their steps in bursts, so a count would depend on when the measurement ends.
    rates = [clients / statistics.mean(device.steps) for device, clients in zip(served, admitted) if clients]
    return {
        "servers": servers,
        "fewest": min(load),
        "most": max(load),
        "refused": options.clients - sum(admitted),
        "steps_per_second": sum(rates),
        "median_seconds": statistics.median(steps),
        "p95_seconds": steps[int(0.95 * (len(steps) - 1))],
        "mean_busy": sum(device.busy for device in served) / servers / options.seconds,
        "max_busy": max(device.busy for device in served) / options.seconds,
        "max_mbit": max(rates) * options.step_mb * 8,
        "max_gib": max(admitted) * options.run_mib / 1024,
        "restart_seconds": max(0.0, (max(admitted) - options.burst) / options.handshakes),
    }


HEAD = ["servers", "clients per server", "refused", "steps/s", "step, median", "step, 95 %", "device busy, mean (max)", "Mbit/s, max",
        "memory, max", "reconnection"]  # fmt: skip


def cells(row):
    return [str(row["servers"]), f"{row['fewest']} to {row['most']}", str(row["refused"]), f"{row['steps_per_second']:,.0f}",
            f"{row['median_seconds']:.2f} s", f"{row['p95_seconds']:.2f} s", f"{row['mean_busy']:.0%} ({row['max_busy']:.0%})",
            f"{row['max_mbit']:,.0f}", f"{row['max_gib']:.1f} GiB", f"{row['restart_seconds']:.1f} s"]  # fmt: skip


def markdown(rows):
    lines = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    texts = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]])


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Example: scripts/fleet_sim.py --balancer least --client-seconds 5")  # fmt: skip
    add = parser.add_argument
    add("--clients", type=int, default=1000)
    add("--servers", default="1,2,4,8,16", help="numbers of servers (default: %(default)s)")
    add("--balancer", choices=("hash", "least"), default="hash")
    add("--client-seconds", type=float, default=2.0, help="time of a step in the client, alone (default: %(default)s)")
    add("--body-seconds", type=float, default=0.018, help="device time of a step in the server (default: %(default)s)")
    add("--latency", type=float, default=0.02, help="one way, in seconds (default: %(default)s)")
    add("--jitter", type=float, default=0.2, help="share by which both times vary (default: %(default)s)")
    add("--step-mb", type=float, default=1.01, help="MB of a step, both directions (default: %(default)s)")
    add("--run-mib", type=float, default=68, help="MiB of a run in the server (default: %(default)s)")
    add("--sessions", type=int, default=1000, help="limits.sessions (default: %(default)s)")
    add("--handshakes", type=float, default=100, help="limits.handshakes (default: %(default)s)")
    add("--burst", type=float, default=200, help="limits.handshakes_burst (default: %(default)s)")
    add("--warm-up", type=float, default=60, help="simulated seconds before the measurement (default: %(default)s)")
    add("--seconds", type=float, default=120, help="simulated seconds (default: %(default)s)")
    add("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main():
    options = parse(None)
    print(markdown([simulate(int(servers), options) for servers in options.servers.split(",")]))


if __name__ == "__main__":
    main()
