"""Describes the machine for the benchmarks."""

import json
import os
import time


def machine():
    with open("/proc/cpuinfo") as file:
        fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in fields.items()}
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        congestion = file.read().strip()
    return {"processor": values.get("model name", os.uname().machine), "family": values.get("cpu family"),
            "model": values.get("model"), "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
            "congestion": congestion}


def machine_text():
    here = machine()
    return (f"{here['processor']}, family {here['family']}, model {here['model']}; Linux {here['kernel']}; "
            f"TCP {here['congestion']}")


def conclude(others, results, path, load=False, **more):
    """Prints the conditions of the measurement, with `others` as the share of processor time used
    by other programs, and writes everything to `path` if given."""
    average = f"load {os.getloadavg()[0]:.1f}; " if load else ""
    print(f"\n{len(os.sched_getaffinity(0))} cores, of which other programs used {100 * others:.0f} %; {average}{machine_text()}")
    if path:
        with open(path, "w") as file:
            json.dump({"results": results, **more, "machine": machine()}, file, indent=2)


def busy_seconds():
    """The processor seconds on all cores of this process with its finished children, and of all programs."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    everyone = (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # no idle, no I/O wait
    return sum(os.times()[:4]), everyone


class Others:
    """The share of the cores that other programs use, from the creation of this object."""

    def __init__(self):
        self.started, (self.own, self.everyone) = time.monotonic(), busy_seconds()

    def share(self):
        own, everyone = busy_seconds()
        theirs = everyone - self.everyone - (own - self.own)
        return max(0.0, theirs / (time.monotonic() - self.started) / len(os.sched_getaffinity(0)))
