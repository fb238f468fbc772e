"""Starts a program that ends with the Python process that started it: `python -I -S _launch.py PARENT PROGRAM [ARGUMENT…]`.

PARENT is the process ID of that Python. The kernel sends SIGTERM to the program if the parent's starting thread ends, also after kill -9,
so a run makes a checkpoint and a server informs its clients. The setting survives exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the setting took effect
        sys.exit(1)
    os.execv(program, [os.path.basename(program), *sys.argv[3:]])
