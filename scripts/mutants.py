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
    "no-token": [("server/run/run_table.cpp", "      found->second->token() != request.hello.token()) {", "      false) {"),
                 ("server/sessions/session.cpp", "  if (request.hello.token() != 0) co_return co_await continueRun(std::move(request));",
                  "  bool warm = request.hello.token() != 0;\n  try {\n    context_.runs.find(request);\n    warm = true;\n  } catch (const Error&) {\n  }\n"
                  "  if (warm) co_return co_await continueRun(std::move(request));")],
    # The server continues from its own newest checkpoint, even if the client has not committed it.
    "own-newest": [("server/store/run_checkpoints.cpp", "return info.step == step; });", "return info.step >= step; });")],
    # The server removes a checkpoint before the client has committed the next one.
    "forget-early": [("server/store/run_checkpoints.cpp", "      saved.sha256 = info.sha256;", "      saved.sha256 = info.sha256;\n      store_.removeExcept({saved.step});")],
    # At a resume, the server removes the checkpoints that the client has not listed, and the client lists them before it has stopped
    # writing. If the server removed them alone, nothing would be lost.
    "delete-newer": [("server/store/run_store.cpp", "      run.isExact = run.isExact && found->fingerprint == fingerprint;\n    }\n",
                      "      run.isExact = run.isExact && found->fingerprint == fingerprint;\n    }\n    store.removeExcept(run.available);\n"),
                     ("client/commands/command_train.cpp", '    run.close("restarting");\n',
                      '    run.close("restarting");\n    prepared.commits = intactCommits(diskFiles(), prepared.folder);\n'),
                     ("client/commands/command_train.cpp",
                      "  command.prepared.commits = intactCommits(diskFiles(), command.prepared.folder);\n", "")],
    # The client commits a checkpoint without waiting for the server's.
    "commit-alone": [("client/train/checkpointer.cpp", "return digest.has_value();", "return true || digest.has_value();"),
                     ("client/train/checkpointer.cpp", "return digest->empty();", "return digest && digest->empty();"),
                     ("client/train/checkpointer.cpp", "whole->servers.push_back(*digest);",
                      "whole->servers.push_back(digest.value_or(std::string(32, '0')));"),
                     ("client/train/checkpointer.cpp", 'throw ProtocolError("unexpected-message", "Saved of step "', 'return;\n      throw ProtocolError("unexpected-message", "Saved of step "')],
    # A cohort's checkpoint counts as complete when one member has saved its part.
    "one-part": [("server/cohort/saved_by_all.cpp", "if (member >= parts_.size() || step_ == 0",
                  "if (step_ == 0 || saved.step != step_) return;\n  if (member >= parts_.size() || step_ == 0"),
                 ("server/cohort/saved_by_all.cpp", "std::ranges::all_of(parts_, isThere)) return;",
                  "(!parts_.empty() && std::ranges::none_of(parts_, isThere))) return;"),
                 ("server/cohort/saved_by_all.cpp", "*std::exchange(parts_[member], std::nullopt);",
                  "std::exchange(parts_[member], std::nullopt).value_or(all);")],
    # Files are not synchronised, so a loss of power destroys them.
    "no-fsync": [("common/core/durable.cpp", "if (error == 0 && ::fsync(file.get()) != 0) error = errno;", "")],
    # After a resume, the server's codecs start without their state.
    "no-codec-state": [("server/run/body_checkpoints.cpp", "  restoreCodecs(std::move(content.codecs));\n", "")],
    # A checkpoint is loaded without the kept samples that have changed since an earlier one.
    "first-samples-only": [("common/run/checkpoint_file.cpp", "    std::move(samples.begin(), samples.end(), std::back_inserter(content.codecs));",
                         "    if (file.step == checkpoint.samples.front().step) std::move(samples.begin(), samples.end(), std::back_inserter(content.codecs));")],
    # After a resume, the server's count of evaluation batches restarts at 0.
    "no-engine-state": [("server/run/body_checkpoints.cpp", "  return content.engine;", "  EngineState state = content.engine;\n  state.evaluated = 0;\n  return state;")],
}  # fmt: skip


def check_texts(names):
    for name in names:
        for file, text, _ in MUTANTS[name]:
            found = (ROOT / file).read_text().count(text)
            if found != 1:
                sys.exit(f"mutants: {name}: the text to replace occurs {found} times in {file}: {text}")


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
    parser.add_argument("--check", action="store_true", help="only check that each text to replace occurs in the sources")
    arguments = parser.parse_args()
    chosen = arguments.only or [*MUTANTS]
    check_texts(chosen)
    if arguments.check:
        return 0
    copy_sources()
    found = 0
    with open(ROOT / "build/mutants/log.txt", "w") as log:
        configure = ["cmake", "--preset", "release", "-DBUILD_TESTING=ON"]
        subprocess.run(configure, cwd=COPY, stdout=log, stderr=subprocess.STDOUT, check=True)
        build(log)
        if simulate(arguments, log) != 0:
            sys.exit(f"mutants: the simulation fails with the unmodified sources; see {log.name}")
        for name in chosen:
            start = time.monotonic()
            for file, text, replacement in MUTANTS[name]:
                (COPY / file).write_text((COPY / file).read_text().replace(text, replacement))
            build(log)
            code = simulate(arguments, log)
            found += code == 1
            print(f"mutants: {name}: {'found' if code == 1 else 'NOT FOUND'} ({time.monotonic() - start:.0f} s)", flush=True)
            copy_sources()
    print(f"mutants: {found} of {len(chosen)} bugs found")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
