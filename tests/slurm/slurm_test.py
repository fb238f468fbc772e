#!/usr/bin/env python3
"""Runs packaging/slurm on a Slurm cluster of one node, on this machine: both jobs reach their time limit and are queued again while a client
trains, and the model has the bits of an undisturbed run. Needs Debian's slurmctld, slurmd, slurm-client and munge, and root.

Example: tests/slurm/slurm_test.py --programs build/release/bin
"""
import argparse
import csv
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "slurm"
SKIPPED = 77  # the exit code
PATIENCE = 300  # seconds
CONFIG = """
run: {name: slurm}
model: {name: mlp, width: 32, depth: 3, dropout: 0.1}
data: {format: synthetic, shape: [1, 8, 8], classes: 10, train: {size: 400}, test: {size: 64}}
train: {batch: 32, micro_batches: 4, epochs: 300, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {every: 50}
codec: none
checkpoint: {every_steps: 50}
threads: {client: 1, server: 1}
"""
# A requeued job is not started before credentials of its earlier start have expired.
SLURM = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=cred_expire=5,socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={host} CPUs=8
PartitionName=all Nodes={host} Default=YES
"""


def free_ports(count):
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(what, is_true):
    end = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.1)


def tensors(run):
    file = (run / "model.safetensors").read_bytes()
    return hashlib.sha256(file[8 + int.from_bytes(file[:8], "little") :]).hexdigest()


class Cluster:
    def __init__(self, folder, programs):
        self.folder, self.daemons = folder, []
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        configuration = folder / "slurm.conf"
        configuration.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=folder, ports=free_ports(2)))
        self.environment = {**os.environ, "SLURM_CONF": str(configuration), "PATH": f"{programs}:{os.environ['PATH']}"}
        munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "pid-file", "log-file", "seed-file", "socket")]
        try:
            self.start("munged", "--foreground", "--force", *munge)
            wait_for("munged listens", (folder / "munge.socket").exists)
            self.start("slurmctld", "-D")
            self.start("slurmd", "-D")
            wait_for("the node is idle", lambda: self.ask("sinfo", "--noheader", "--format=%T").strip() == "idle")
        except BaseException:
            self.stop()
            raise

    def start(self, *command):
        with open(self.folder / f"{command[0]}.txt", "w") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def stop(self):
        self.ask("scancel", "--user=root")
        self.ask("scancel", "--user=root", "--signal=KILL", "--full")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()

    def run(self, *command):
        return subprocess.run(command, env=self.environment, cwd=self.folder / "work", stdout=subprocess.PIPE, text=True, check=True).stdout

    def ask(self, *command):
        """The output of a command that may fail while the cluster starts."""
        return subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout

    def submit(self, *command):
        return self.run("sbatch", "--parsable", *command).strip()

    def job(self, job):
        return dict(each.split("=", 1) for each in self.run("scontrol", "--oneliner", "show", "job", job).split() if "=" in each)


def steps(run):
    """The training steps in the run's records."""
    try:
        with open(run / "steps.csv", newline="") as file:
            return sum(row.get("phase") == "train" for row in csv.DictReader(file))
    except FileNotFoundError:
        return 0


def check(cluster, programs):
    work = cluster.folder / "work"
    work.mkdir()
    (work / "config.yaml").write_text(CONFIG)
    node = socket.gethostname().split(".")[0]
    cluster.run("cleave-server", "certs", "init", "--name", node)
    cluster.run("cleave-server", "certs", "client", "clinic-a")
    cluster.run("cleave-client", "train", "--quiet", "--config", "config.yaml", "--run-dir", "undisturbed")

    run = work / "runs" / "one"
    # The client is submitted first, and waits.
    client = cluster.submit(SCRIPTS / "client.sbatch", "runs/one", "--config", "config.yaml", "--tls", "certs/clients/clinic-a")
    wait_for("the client's job runs", lambda: cluster.job(client)["JobState"] == "RUNNING")
    server = cluster.submit(SCRIPTS / "server.sbatch", "--set", "device=cpu")
    wait_for("the run has begun", lambda: steps(run) > 60)
    first = (work / "address").read_text()
    before = steps(run)
    cluster.run("scancel", "--batch", "--signal=USR1", server)  # what Slurm does before the time limit
    wait_for("the server's job has started again", lambda: cluster.job(server)["Restarts"] == "1")
    wait_for("the run has continued", lambda: steps(run) > before + 60)
    assert (work / "address").read_text() != first
    cluster.run("scancel", "--batch", "--signal=USR1", client)
    wait_for("the client's job has started again", lambda: cluster.job(client)["Restarts"] == "1")
    wait_for("the client's job has ended", lambda: cluster.job(client)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
    state = cluster.job(client)["JobState"]
    assert state == "COMPLETED", f"the client's job: {state}"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["resumes"], summary["steps_redone"]) == (2, 0), summary
    assert tensors(run) == tensors(work / "undisturbed"), "the model differs from that of an undisturbed run"
    cluster.run("scancel", server)
    wait_for("the address is removed", lambda: not (work / "address").exists())

    # A server that is cancelled lets its client make a checkpoint; the client's job waits for the next one.
    run = work / "runs" / "two"
    client = cluster.submit(SCRIPTS / "client.sbatch", "runs/two", "--config", "config.yaml", "--tls", "certs/clients/clinic-a")
    server = cluster.submit(SCRIPTS / "server.sbatch", "--set", "device=cpu")
    wait_for("the second run has begun", lambda: steps(run) > 60)
    cluster.run("scancel", server)
    wait_for("the address is removed", lambda: not (work / "address").exists())
    server = cluster.submit(SCRIPTS / "server.sbatch", "--set", "device=cpu")
    wait_for("the second run has ended", lambda: cluster.job(client)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
    again = json.loads((run / "summary.json").read_text())
    assert (again["resumes"], again["steps_redone"]) == (1, 0), again
    cluster.run("scancel", server)
    wait_for("the address is removed", lambda: not (work / "address").exists())

    # A wrong configuration ends the job.
    client = cluster.submit(SCRIPTS / "client.sbatch", "runs/three", "--config", "none.yaml")
    server = cluster.submit(SCRIPTS / "server.sbatch")
    wait_for("the client's job has failed", lambda: cluster.job(client)["JobState"] == "FAILED")
    assert cluster.job(client)["ExitCode"] == "2:0", cluster.job(client)["ExitCode"]
    cluster.run("scancel", server)
    wait_for("the server's job has ended", lambda: cluster.job(server)["JobState"] == "CANCELLED")
    server = cluster.submit(SCRIPTS / "server.sbatch", "--set", "unknown=1")
    wait_for("the server's job has failed", lambda: cluster.job(server)["JobState"] == "FAILED")
    assert cluster.job(server)["ExitCode"] == "2:0", cluster.job(server)["ExitCode"]
    return summary["steps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder with cleave-client and cleave-server")
    programs = parser.parse_args().programs.resolve()
    if os.geteuid() != 0:
        print("slurm_test: skipped, because Slurm's daemons need root")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-slurm-"))
    cluster = None
    try:
        cluster = Cluster(folder, programs)
        count = check(cluster, programs)
    except BaseException:
        for log in [*folder.glob("*.txt"), *folder.glob("work/*.log")]:
            print(f"---- {log}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        raise
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"slurm_test: {count} steps over two requeued jobs: the bits of an undisturbed run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
