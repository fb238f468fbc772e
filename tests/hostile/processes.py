"""What /proc says about the processes that a server starts. They may end at any time."""
import os
import pathlib
import re


def children(process):
    try:
        return pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def memory_kib(process, name):
    """A row of /proc/PROCESS/status; 0 if the process has ended."""
    try:
        found = re.search(rf"{name}:\s+(\d+)", pathlib.Path(f"/proc/{process}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found else 0


def processor_seconds(process):
    """Of the process and its children that have ended; 0 if it has ended itself."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
