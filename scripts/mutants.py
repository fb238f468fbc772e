#!/usr/bin/env python3
"""Checks that the simulation detects bugs in the code that lets interrupted runs continue bit-identically: builds it with one
injected bug at a time, in a copy of the sources, and expects a run to fail.

Example: scripts/mutants.py --only commit-alone
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPY = ROOT / "build/mutants/source"
# name: [(file, text, replacement)]. Each text must occur exactly once in its file.
MUTANTS = {
    # After a reconnection, every unsettled tensor is sent again in full, even if it has already arrived.
    "resend-all": [("common/link/tensor_sender.cpp", "    if (count.complete > 0) {\n      --count.complete;",
                    "    if (false) {\n      --count.complete;")],
    # After a reconnection, nothing is sent again.
    "resend-nothing": [("common/link/tensor_sender.cpp", "      send(encoding, begin);\n    }\n  }\n}", "    }\n  }\n}")],
    # A restarted client gets the run that the server has in memory, instead of a checkpoint.
    "no-token": [("server/run_table.cpp", "      found->second.run->token() != request.hello.token()) {", "      false) {"),
                 ("server/session.cpp", "  if (request.hello.token() != 0) co_return co_await continueRun(std::move(request));",
                  "  bool warm = request.hello.token() != 0;\n  try {\n    context_.runs.find(request);\n    warm = true;\n  } catch (const Error&) {\n  }\n"
                  "  if (warm) co_return co_await continueRun(std::move(request));")],
    # The server continues from its own newest checkpoint, even if the client has not committed it.
    "own-newest": [("server/run_checkpoints.cpp", "return info.step == step; });", "return info.step >= step; });")],
    # The server removes a checkpoint before the client has committed the next one.
    "forget-early": [("server/run_checkpoints.cpp", "      saved.sha256 = info.sha256;", "      saved.sha256 = info.sha256;\n      store_.removeExcept({saved.step});")],
    # The client commits a checkpoint without waiting for the server's.
    "commit-alone": [("client/train/checkpointer.h", "return client && server; }", "return client.has_value(); }"),
                     ("client/train/checkpointer.cpp", "if (!open_->client->empty() && !open_->server->empty()) {", "if (!open_->client->empty()) {"),
                     ("client/train/checkpointer.cpp", "{*open_->server}", '{open_->server.value_or("")}')],
    # Files are not synchronised, so a loss of power destroys them.
    "no-fsync": [("common/core/durable.cpp", "if (error == 0 && ::fsync(file.get()) != 0) error = errno;", "")],
    # After a resume, the server's codecs start without their state.
    "no-codec-state": [("server/served_run.cpp", "  link_->restoreCodecs(std::move(content.codecs));\n", "")],
    # After a resume, the server's count of evaluation batches restarts at 0.
    "no-engine-state": [("server/served_run.cpp", "  return content.engine;", "  EngineState state = content.engine;\n  state.evaluated = 0;\n  return state;")],
}  # fmt: skip


def copy_sources():
    """Copies the files that have changed since the last call."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, COPY / name
        if not source.is_file() or (target.exists() and target.read_bytes() == source.read_bytes()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
    if not (COPY / ".deps").exists():
        (COPY / ".deps").symlink_to(ROOT / ".deps")


def build(log):
    command = ["ninja", "-C", COPY / "build/release", "crash_sim"]
    if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode != 0:
        sys.exit(f"mutants: the build failed; see {log.name}")


def simulate(arguments, log):
    command = [COPY / "build/release/bin/crash_sim", "--runs", str(arguments.runs), "--stop"]
    try:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=1800).returncode
    except subprocess.TimeoutExpired:
        return 124


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="maximum number of simulated runs to find a bug (300)")
    parser.add_argument("--only", choices=[*MUTANTS], action="append", help="only this one; repeatable")
    arguments = parser.parse_args()
    copy_sources()
    found = 0
    chosen = arguments.only or [*MUTANTS]
    with open(ROOT / "build/mutants/log.txt", "w") as log:
        configure = ["cmake", "--preset", "release", "-DBUILD_TESTING=ON"]
        subprocess.run(configure, cwd=COPY, stdout=log, stderr=subprocess.STDOUT, check=True)
        build(log)
        if simulate(arguments, log) != 0:
            sys.exit(f"mutants: the simulation fails with the unmodified sources; see {log.name}")
        for name in chosen:
            start = time.monotonic()
            for file, text, replacement in MUTANTS[name]:
                source = (COPY / file).read_text()
                if source.count(text) != 1:
                    sys.exit(f"mutants: {name}: the text to replace occurs {source.count(text)} times in {file}: {text}")
                (COPY / file).write_text(source.replace(text, replacement))
            build(log)
            code = simulate(arguments, log)
            found += code == 1
            print(f"mutants: {name}: {'found' if code == 1 else 'NOT FOUND'} ({time.monotonic() - start:.0f} s)", flush=True)
            copy_sources()
    print(f"mutants: {found} of {len(chosen)} bugs found")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
