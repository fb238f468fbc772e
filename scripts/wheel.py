#!/usr/bin/env python3
"""Assembles the wheel from installed programs; scripts/wheel.sh calls it: wheel.py STAGE OUTPUT.

STAGE has a folder torch-X.Y for each minor version of PyTorch, in which `cmake --install` has put the components `programs` and
`libraries`. Refuses a wheel that is too large, that contains a path of this machine, or that needs newer libraries than manylinux_2_34.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLATFORM = "manylinux_2_34_x86_64"
MAX_BYTES = 60_000_000
PROGRAMS = ("cleave-client", "cleave-server", "cleave-stage", "cleave-link", "cleave-relay")
COMMANDS = {"cleave-client": "client", "cleave-server": "server", "cleave-link": "link", "cleave-relay": "relay"}
# Every system has these, and LibTorch is PyTorch's. libgcc_s and libstdc++ of another version than the system's would break PyTorch.
NOT_SHIPPED = re.compile(r"lib(stdc\+\+|gcc_s|torch|c10|gomp|cu)")
# The newest versions on manylinux_2_34: glibc 2.34, and the libstdc++ of g++ 11.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
# Symbols whose newest version manylinux_2_34 lacks, and the older version that every system has: {newest: (older, symbols)}.
OLDER = {
    "GLIBC_2.35": ("GLIBC_2.2.5", {"hypot"}),
    "GLIBCXX_3.4.30": ("GLIBCXX_3.4.11", {"_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"}),
}
DATASET = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist


class WheelError(Exception):
    pass


def needed_versions(file):
    """The versions of the C and C++ libraries' symbols that a program or library needs, such as {"GLIBC_2.34", …}."""
    text = subprocess.run(["readelf", "--version-info", "--wide", file], capture_output=True, text=True, check=True).stdout
    _, _, needs = text.partition("Version needs section")
    return set(re.findall(r"Name: ((?:GLIBC|GLIBCXX|CXXABI|GCC)_[0-9.]+)", needs))


def too_new(versions):
    def is_newer(version):
        name, number = version.rsplit("_", 1)
        return tuple(map(int, number.split("."))) > NEWEST[name]

    return sorted(filter(is_newer, versions))


def bind_older(file):
    """Binds the symbols of OLDER in a program or library to their older version, by renaming the version that it needs."""
    data = bytearray(file.read_bytes())

    def read(layout, position):
        return struct.unpack_from("<" + layout, data, position)

    def text(position):
        return data[position : data.index(0, position)].decode()

    sections = {}  # {type: (offset, size, index of the section with its names)}
    (headers,), (size, count) = read("Q", 40), read("HH", 58)
    places = [read("IIQQQQII", headers + number * size) for number in range(count)]
    for _, kind, _, _, offset, length, link, _ in places:
        sections[kind] = (offset, length, places[link][4] if link < count else 0)
    if _VERSIONS_NEEDED not in sections:
        return
    symbols, length, names = sections[_DYNAMIC_SYMBOLS]
    numbers = sections[_SYMBOL_VERSIONS][0]
    users = {}  # {number of a version: its symbols}
    for symbol in range(length // 24):
        (number,), (name,) = read("H", numbers + 2 * symbol), read("I", symbols + 24 * symbol)
        users.setdefault(number, set()).add(text(names + name))

    need = sections[_VERSIONS_NEEDED][0]
    while True:
        _, _, _, first, following = read("HHIII", need)
        versions, entry = {}, need + first
        while True:
            _, _, number, name, step = read("IHHII", entry)
            versions[text(names + name)] = (entry, number)
            if step == 0:
                break
            entry += step
        for newest, (older, known) in OLDER.items():
            if newest in versions and older in versions and users[versions[newest][1]] <= known:
                (target, _), (source, _) = versions[newest], versions[older]
                data[target : target + 4] = data[source : source + 4]  # the hash of the version's name
                data[target + 8 : target + 12] = data[source + 8 : source + 12]  # its name
        if following == 0:
            break
        need += following
    file.write_bytes(data)


_DYNAMIC_SYMBOLS, _VERSIONS_NEEDED, _SYMBOL_VERSIONS = 11, 0x6FFFFFFE, 0x6FFFFFFF  # types of ELF sections


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def relocate(file, path):
    """Sets DT_RPATH, which the loader prefers to LD_LIBRARY_PATH: a library of the same name elsewhere, such as conda's, is not used. Binds symbols to older versions."""
    subprocess.run(["patchelf", "--force-rpath", "--set-rpath", path, file], check=True)
    bind_older(file)


def copy_programs(stage, package):
    """Copies the programs of each version, and the libraries once. Returns the minor versions."""
    minors = []
    libraries = package / "lib"
    libraries.mkdir()
    for installed in sorted(stage.glob("torch-*")):
        minors.append(tuple(map(int, installed.name.removeprefix("torch-").split("."))))
        target = package / "bin" / installed.name
        target.mkdir(parents=True)
        files = [installed / "bin" / name for name in PROGRAMS]
        cuda = installed / "lib" / "cleave" / "libcleave_cuda.so"
        for file in [*files, *([cuda] if cuda.exists() else [])]:
            copied = shutil.copy2(file, target)
            relocate(pathlib.Path(copied), "$ORIGIN/../../lib")  # LibTorch: cleave_split/torch_versions.py
        for file in (installed / "lib" / "cleave").glob("lib*.so*"):
            if not NOT_SHIPPED.match(file.name) and file != cuda and not (libraries / file.name).exists():
                copied = shutil.copy2(file, libraries / file.name)  # follows a symbolic link, which a wheel cannot contain
                relocate(pathlib.Path(copied), "$ORIGIN")
        licences = installed / "share" / "doc" / "cleave" / "licences"
        shutil.copytree(licences, package / "licences", dirs_exist_ok=True)
    keep_needed(package)
    return sorted(minors)


def keep_needed(package):
    """Removes the copies of libraries under names that no file needs: the same library has several."""
    needed = set()
    for file in package.rglob("*"):
        if file.is_file() and is_elf(file):
            needed.update(subprocess.run(["patchelf", "--print-needed", file], capture_output=True, text=True, check=True).stdout.split())
    for library in (package / "lib").iterdir():
        if library.name not in needed:
            library.unlink()


def copy_data(package):
    """The example's images: the test set of Fashion-MNIST, 10,000 real images."""
    folder = package / "example"
    folder.mkdir()
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        shutil.copy2(DATASET / name, folder)
    shutil.copy2("/usr/share/doc/dataset-fashion-mnist/copyright", folder / "copyright")


def check(package):
    """Refuses paths of this machine, and symbols that manylinux_2_34 does not have."""
    problems = []
    for file in sorted(filter(pathlib.Path.is_file, package.rglob("*"))):
        name = file.relative_to(package)
        if f"{ROOT}/".encode() in file.read_bytes():
            problems.append(f"{name} contains {ROOT}, a path of this machine")
        if is_elf(file):
            newer = too_new(needed_versions(file))
            if newer:
                problems.append(f"{name} needs {', '.join(newer)}, which {PLATFORM} does not have")
    if problems:
        raise WheelError("\n".join(problems))


def metadata(project, minors):
    """Core metadata 2.1. The upper bound keeps pip from installing a PyTorch for which there are no programs."""
    lowest, highest = minors[0], minors[-1]
    torch = f"torch>={lowest[0]}.{lowest[1]},<{highest[0]}.{highest[1] + 1}"
    between = [(lowest[0], minor) for minor in range(lowest[1], highest[1] + 1)]
    torch += "".join(f",!={major}.{minor}.*" for major, minor in between if (major, minor) not in minors)
    extras = "".join(f"Provides-Extra: {extra}\n" + "".join(f"Requires-Dist: {each} ; extra == '{extra}'\n" for each in needs)
                     for extra, needs in project["optional-dependencies"].items())  # fmt: skip
    return (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nSummary: {project['description']}\n"
            f"License: {project['license']['text']}\nRequires-Python: {project['requires-python']}\nRequires-Dist: {torch}\n{extras}"
            "Description-Content-Type: text/markdown\n\n" + (ROOT / "README.md").read_text())  # fmt: skip


class Wheel:
    """A zip file with a record of its contents."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = []

    def add(self, name, content, executable=False):
        info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, content, compresslevel=9)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}\n")

    def close(self, record_name):
        self.zip.writestr(zipfile.ZipInfo(record_name, (2026, 1, 1, 0, 0, 0)), "".join(self.record) + f"{record_name},,\n")
        self.zip.close()


def build(stage, output):
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    package = stage / "cleave_split"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python/cleave_split", package, ignore=shutil.ignore_patterns("__pycache__"))
    minors = copy_programs(stage, package)
    copy_data(package)
    shutil.copytree(ROOT / "configs", package / "configs", ignore=shutil.ignore_patterns("__pycache__", "experiments"))
    check(package)

    name = f"{project['name'].replace('-', '_')}-{project['version']}"
    output.mkdir(exist_ok=True)
    path = output / f"{name}-py3-none-{PLATFORM}.whl"
    wheel, info = Wheel(path), f"{name}.dist-info"
    for file in sorted(filter(pathlib.Path.is_file, package.rglob("*"))):
        wheel.add(str(file.relative_to(stage)), file.read_bytes(), executable=file.name in PROGRAMS)
    wheel.add(f"{info}/METADATA", metadata(project, minors).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: scripts/wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-{PLATFORM}\n".encode())
    entries = "".join(f"{command} = cleave_split.console:{function}\n" for command, function in COMMANDS.items())
    wheel.add(f"{info}/entry_points.txt", f"[console_scripts]\n{entries}".encode())
    for file in ("LICENSE", "THIRD_PARTY.md"):
        wheel.add(f"{info}/licenses/{file}", (ROOT / file).read_bytes())
    wheel.close(f"{info}/RECORD")
    return path, minors


def audit(path):
    """Asks auditwheel, which knows the rules of PyPI, for the oldest platform on which the wheel runs."""
    auditwheel = pathlib.Path(sys.executable).with_name("auditwheel")
    told = " ".join(subprocess.run([auditwheel, "show", path], capture_output=True, text=True, check=True).stdout.split())
    if f'This constrains the platform tag to "{PLATFORM}"' not in told:
        raise WheelError(f"auditwheel does not find that the wheel is for {PLATFORM}: {told}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    options = parser.parse_args()
    try:
        path, minors = build(options.stage, options.output)
        audit(path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise WheelError(f"{path} has {size} bytes, more than the limit of {MAX_BYTES}")
    except WheelError as error:
        sys.exit(f"wheel.py: {error}")
    print(f"wheel: {path}, {size} bytes, for PyTorch {', '.join(f'{major}.{minor}' for major, minor in minors)}")


if __name__ == "__main__":
    main()
