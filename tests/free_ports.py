"""Ports for servers that a test starts."""

import itertools
import os
import socket

# The kernel chooses ports from 32768 on for connections and for port 0, so it does not take these. Tests that run at the same time begin at
# different ports.
FIRST, END = 10_000, 32_000
numbers = itertools.count(64 * os.getpid())


def free_ports(count):
    """Different ports of the loopback interface that are free now."""
    ports = []
    while len(ports) < count:
        port = FIRST + next(numbers) % (END - FIRST)
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
                ports.append(port)
            except OSError:
                pass  # another program uses it
    return ports
