#!/usr/bin/env python3
"""Makes the image without Docker: runs the last stage of docker/Dockerfile in a bare Debian, with the programs from an archive of
scripts/package.sh, and writes an archive for `docker load`. Requires root and, the first time, debootstrap; exit code 3 without them."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import string
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASE = ROOT / ".deps/debian-bookworm.tar"
NAMES = ("cleave", "cleave-server")  # two names of the same image, whose default command is the server


def last_stage(dockerfile):
    """The instructions after the last FROM, as pairs of an instruction's name and its arguments."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.M)
    lines = [line.split(None, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]
    return lines[max(i for i, (word, _) in enumerate(lines) if word == "FROM") + 1:]


def seconds(text):
    """Converts a duration such as 10s to nanoseconds, the unit in an image's configuration."""
    return int(text.removesuffix("s")) * 10**9


class Image:
    """A root file system and its configuration. Each upper-case method executes an instruction of a Dockerfile."""

    def __init__(self, root, built):
        self.root, self.built = root, built  # built: the root of the files that the stage `build` would have
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.config = {"Labels": {}}

    def RUN(self, text):
        subprocess.run(["chroot", self.root, "/bin/sh", "-c", text], env=self.environment, check=True)

    def COPY(self, text):
        *sources, target = text.split()
        origin = ROOT
        if sources[0] == "--from=build":
            del sources[0]
            # The dataset is from a Debian package, which is installed on this machine as in the stage `build`.
            origin = self.built if sources[0].startswith("/opt/") else pathlib.Path("/")
        target = self.root / target.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            source = origin / source.lstrip("/")
            subprocess.run(["cp", "-r", f"{source}/." if source.is_dir() else source, target], check=True)

    def ENV(self, text):
        name, _, value = text.partition("=")
        self.environment[name] = string.Template(value).substitute(self.environment)

    def WORKDIR(self, text):
        self.config["WorkingDir"] = text

    def USER(self, text):
        self.config["User"] = text

    def EXPOSE(self, text):
        self.config["ExposedPorts"] = {f"{text}/tcp": {}}

    def VOLUME(self, text):
        self.config["Volumes"] = {path: {} for path in json.loads(text)}

    def LABEL(self, text):
        self.config["Labels"] |= dict(word.split("=", 1) for word in shlex.split(text))

    def HEALTHCHECK(self, text):
        options, command = re.fullmatch(r"(.*?)CMD (.*)", text).groups()
        options = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
        self.config["Healthcheck"] = {
            "Test": ["CMD", *json.loads(command)], "Interval": seconds(options["interval"]), "Timeout": seconds(options["timeout"]),
            "StartPeriod": seconds(options["start-period"]), "Retries": int(options["retries"])}  # fmt: skip

    def ENTRYPOINT(self, text):
        self.config["Entrypoint"] = json.loads(text)

    def CMD(self, text):
        self.config["Cmd"] = json.loads(text)


def write(image, output, scratch):
    """Writes the archive: manifest.json, the configuration, and the root file system as one layer."""
    version = subprocess.check_output([image.built / "opt/cleave/bin/cleave-server", "--version"], text=True).split()[-1]
    layer = scratch / "layer.tar"
    subprocess.run(["tar", "-C", image.root, "--sort=name", "--numeric-owner", "-cf", layer, "."], check=True)
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    image.config["Labels"]["org.opencontainers.image.version"] = version
    image.config["Env"] = [f"{name}={value}" for name, value in image.environment.items()]
    created = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = json.dumps({"architecture": "amd64", "os": "linux", "created": created, "config": image.config,
                         "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                         "history": [{"created": created, "created_by": "scripts/image.py"}]}).encode()  # fmt: skip
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    (scratch / config_name).write_bytes(config)
    tags = [f"{name}:{tag}" for name in NAMES for tag in ("latest", version)]
    (scratch / "manifest.json").write_text(json.dumps([{"Config": config_name, "RepoTags": tags, "Layers": [layer.name]}]))
    part = output.with_name(output.name + ".part")
    # The fastest compression level: compared with the default level, the archive is an eighth larger but takes less than half the time.
    subprocess.run(["tar", "-C", scratch, "-I", "gzip -1", "-cf", part, "manifest.json", config_name, layer.name], check=True)
    part.rename(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: sudo ./scripts/image.py dist/cleave-0.1.0-linux-x86_64.tar.gz")
    parser.add_argument("archive", type=pathlib.Path, help="made by scripts/package.sh; the image is written next to it, as …-image.tar.gz")
    archive = parser.parse_args().archive
    if os.getuid() != 0:
        print("image.py: skipped: chroot requires root: run this with sudo", file=sys.stderr)
        return 3
    code = subprocess.run([ROOT / "scripts/debian_base.sh"], check=False).returncode
    if code != 0:
        return code
    os.umask(0o022)
    output = archive.with_name(archive.name.removesuffix(".tar.gz") + "-image.tar.gz")
    # Needs 1.7 GB, which the folder for temporary files may not have.
    with tempfile.TemporaryDirectory(dir=archive.resolve().parent, prefix="image-") as folder:
        scratch = pathlib.Path(folder)
        root, built = scratch / "root", scratch / "built"
        (built / "opt/cleave").mkdir(parents=True)
        root.mkdir(mode=0o755)
        subprocess.run(["tar", "-C", root, "-xf", BASE], check=True)
        subprocess.run(["tar", "-C", built / "opt/cleave", "--strip-components=1", "--no-same-owner", "-xf", archive], check=True)
        image = Image(root, built)
        for word, text in last_stage(ROOT / "docker/Dockerfile"):
            if not hasattr(Image, word):
                sys.exit(f"image.py: docker/Dockerfile has the instruction {word}, which this script does not support")
            getattr(image, word)(text)
        write(image, output, scratch)
    print(f"image: {output}, {output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
