"""What benchmarks say of the machine that they ran on."""

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


def busy_seconds():
    """Seconds that all cores together have worked: for this process and its ended children, and for all programs."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    everyone = (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # but idle and waiting for disks
    return sum(os.times()[:4]), everyone


class Others:
    """The share of the cores that other programs take, from when this is made."""

    def __init__(self):
        self.started, (self.own, self.everyone) = time.monotonic(), busy_seconds()

    def share(self):
        own, everyone = busy_seconds()
        theirs = everyone - self.everyone - (own - self.own)
        return max(0.0, theirs / (time.monotonic() - self.started) / len(os.sched_getaffinity(0)))
