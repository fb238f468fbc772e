#!/usr/bin/env python3
"""Tests an image made by `scripts/package.sh --image` without Docker: checks its digests and configuration, starts the server in the
image's root file system as Docker would (read-only, as the image's user, without capabilities), and trains with a client over TLS.
Requires root; exit code 3 without it."""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

EXPECTED = {"User": "cleave", "WorkingDir": "/work", "Entrypoint": ["entrypoint.sh"], "Cmd": ["server"], "ExposedPorts": {"4800/tcp": {}},
            "Volumes": {"/certs": {}, "/store": {}}}  # fmt: skip
# Prepares the root file system $1 in the same way as Docker, and then runs the command in the other arguments. Volumes are empty file
# systems owned by the user.
CONTAINER = """
  ip link set lo up
  mount --bind "$1" "$1"
  mount -o remount,bind,ro "$1"
  mount -t proc proc "$1/proc"
  mount --bind /dev "$1/dev"
  mount -t tmpfs tmpfs "$1/tmp"
  for volume in /certs /store; do mount -t tmpfs -o mode=0700,uid=10001,gid=10001 tmpfs "$1$volume"; done
  cd "$1"
  shift
  exec chroot . setpriv --reuid cleave --regid cleave --clear-groups --bounding-set=-all --no-new-privs "$@"
"""
TRIAL = """
  cd "$1"
  shift
  "$@" >/tmp/server.out 2>&1 &
  for _ in $(seq 300); do
    ! healthcheck.sh || break
    kill -0 $! || break
    sleep 0.1
  done
  healthcheck.sh && grep -q 'each run in a process of its own' /tmp/server.out || { cat /tmp/server.out; exit 1; }
  ! touch /work/written 2>/dev/null
  entrypoint.sh certs client trial >/dev/null
  cleave-client train --config /opt/cleave/share/cleave/configs/synthetic.yaml --server 127.0.0.1:4800 --tls /certs/server/clients/trial \
    --run-dir /tmp/run --log-level warn
  [ -s /tmp/run/model.safetensors ]
  [ -s /store/trial/*/steps.csv ]
  kill %1
  wait %1
"""


def digest(file):
    return hashlib.file_digest(file, "sha256").hexdigest()


def read(path, root):
    """The image's configuration; unpacks its layers to `root`."""
    with tarfile.open(path) as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))
        config_text = archive.extractfile(manifest["Config"]).read()
        assert manifest["Config"] == f"{hashlib.sha256(config_text).hexdigest()}.json", "the configuration's name is not its digest"
        config = json.loads(config_text)
        digests = [f"sha256:{digest(archive.extractfile(layer))}" for layer in manifest["Layers"]]
        assert digests == config["rootfs"]["diff_ids"], f"the layers have the digests {digests}"
        assert "cleave:latest" in manifest["RepoTags"], manifest["RepoTags"]
        for layer in manifest["Layers"]:
            with subprocess.Popen(["tar", "-C", root, "-xf", "-"], stdin=subprocess.PIPE) as tar:
                source = archive.extractfile(layer)
                while block := source.read(1 << 20):
                    tar.stdin.write(block)
                tar.stdin.close()
                assert tar.wait() == 0
    return config["config"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: sudo ./scripts/check_image.py dist/cleave-*-image.tar.gz")
    parser.add_argument("image", type=pathlib.Path)
    path = parser.parse_args().image
    if os.getuid() != 0:
        print("check_image.py: skipped: chroot requires root: run this with sudo", file=sys.stderr)
        return 3
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.resolve().parent, prefix="image-") as root:
        os.chmod(root, 0o755)
        config = read(path, root)
        for key, value in EXPECTED.items():
            assert config[key] == value, f"{key} is {config[key]}, not {value}"
        assert config["Healthcheck"]["Test"] == ["CMD", "healthcheck.sh"], config["Healthcheck"]
        assert config["Labels"]["org.opencontainers.image.version"] in path.name, config["Labels"]
        server = [*config["Entrypoint"], *config["Cmd"], "--set", "limits.memory_mib=1024"]
        environment = dict(variable.split("=", 1) for variable in config["Env"])
        # CONTAINER runs this machine's programs; their folders are also in the image's PATH.
        ended = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "--kill-child", "bash", "-euc", CONTAINER, "bash", root,
                                "bash", "-euc", TRIAL, "bash", config["WorkingDir"], *server], env=environment, check=False)  # fmt: skip
    if ended.returncode != 0:
        sys.exit("check_image.py: the server of the image does not work (above)")
    print(f"check: the image has the expected configuration, and its server trains, in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
