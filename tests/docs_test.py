#!/usr/bin/env python3
"""Compares README.md and docs/*.md with the built programs and the sources. Every command, option,
configuration key, error code and message that the pages name must exist; docs/cli.md must list
every command with its options, and docs/configuration.md every key with its default; links must
have a target; README.md must stay short. Prints each difference, and fails if there is one."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_README_LINES = 180
LINK_KEYS = r"link\.(up\.|down\.)?(rate|latency|jitter|loss|queue|burst)"  # keys that only `sweep --grid` accepts
# Options of other programs in the pages: apt, cmake, docker, systemctl, tar, gnuplot and others.
FOREIGN = {"--preset", "--build-arg", "--logdir", "--component", "--exit-code-from", "--profile", "--volumes"}
FILE_NAMES = r"\.(csv|pkl|json|jsonl|md|yaml|html|crt|key|crl|safetensors|cpp|bin|txt|pt2|org)$"
SYSTEM_MESSAGES = {"No space left on device"}  # from strerror()
SYNTHETIC = "model: {name: mlp}\ndata: {format: synthetic, shape: [4]}\n"
IDX = "model: {name: mlp}\ndata: {format: idx, train: {images: images, labels: labels}, test: {images: images, labels: labels}}\n"

problems = []


def complain(page, text):
    problems.append(f"{page.relative_to(ROOT)}: {text}")


class Programs:
    """The commands, options, keys and defaults reported by the programs."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = folder, scratch
        self.options = {}  # ("cleave-client", "train") -> {"--config", …}
        self.helps = {}  # ("cleave-client", "train") -> what --help prints
        self.groups = set()  # commands with subcommands
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waiting = [("cleave-client",), ("cleave-server",), ("cleave-link",), ("cleave-relay",)]
            while waiting:
                texts = list(pool.map(lambda words: self.run(*words, "--help").stdout, waiting))
                deeper = []
                for words, text in zip(waiting, texts):
                    self.helps[words] = text
                    self.options[words] = set(re.findall(r"^  (?:-\w,)?(--[a-z][a-z-]*)", text, re.M)) - {"--help", "--version"}
                    _, _, commands = text.partition("\nSubcommands:\n")
                    names = re.findall(r"^  ([a-z][a-z-]*)(?:\s|$)", commands.split("\n\n")[0], re.M)
                    if names:
                        self.groups.add(words)
                    deeper += [(*words, name) for name in names]
                waiting = deeper
        self.any_option = set().union(*self.options.values())

    def run(self, program, *arguments):
        # With this variable set, programs do not re-execute themselves, which halves their start-up time.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        return subprocess.run([self.folder / program, *arguments], cwd=self.scratch, env=environment, capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip

    def ask_json(self, *arguments):
        ended = self.run("cleave-client", *arguments, "--json")
        if ended.returncode != 0:
            sys.exit(f"docs_test: cleave-client {' '.join(arguments)}: {ended.stderr}")
        return json.loads(ended.stdout)

    def known_keys(self, *command, only=()):
        """All keys of a configuration, or of some parts, from the errors for unknown ones: one for the parts, and one for each part's keys."""
        def listed(key, text):
            ended = self.run(*command, "--set", f"{key}=1")
            found = re.search(text + r" ([^\n]*)\n", ended.stderr + "\n")
            return set(re.sub(r"\[\d\]", "", found[1]).split(", ")) if ended.returncode == 2 and found else set()

        unknown = "z" * 60
        parts = set(only) or listed(unknown, "known keys begin with")
        if not parts:
            sys.exit(f"docs_test: {command} does not list its keys")
        keys = set()
        for part in parts:
            below = "model.lora" if part == "model" else part  # unknown keys directly in model are parameters
            keys |= listed(f"{below}.{unknown}", rf"known keys in {part}(?:\[0\])? are") or {part}  # a part alone is a key, such as device
        return keys | ({"codec"} & parts)  # one codec for all flows, or a map

    def client_keys(self):
        keys = set()
        files = {"synthetic": SYNTHETIC, "idx": IDX, "cifar100": "model: {name: mlp}\ndata: {format: cifar100, folder: none}\n",
                 "folder": "model: {name: mlp}\ndata: {format: folder, train: {folder: none}}\n",
                 "tensors": "model: {name: mlp}\ndata: {format: tensors, train: {file: none}, test: {file: none}}\n",
                 "text": "model: {name: mlp}\ndata: {format: text, train: {file: none}, tokenizer: none, length: 8}\n",
                 "csv": "model: {name: mlp}\ndata: {format: csv, train: {file: none}}\n"}
        for name, text in files.items():
            (self.scratch / f"{name}.yaml").write_text(text)
            keys |= self.known_keys("cleave-client", "train", "--dry-run", "--config", f"{name}.yaml", only=() if name == "synthetic" else ("data",))
        keys |= self.known_keys("cleave-client", "train", "--dry-run", "--config", "synthetic.yaml", "--set", "weights.file=none",
                                "--set", "train.learning_rate.schedule=polynomial", "--set", "codec={activation/0: none}",
                                only=("weights", "train", "codec"))  # fmt: skip
        keys |= self.known_keys("cleave-client", "train", "--dry-run", "--config", "synthetic.yaml", "--set", "keep.best=top1", "--set", "train.stop=loss",
                                "--set", "eval.target.value=1",
                                "--set", "model={name: graph, file: none, cuts: [a, b], lora: {rank: 1, targets: [a]}}",
                                only=("keep", "train", "model", "eval"))  # fmt: skip
        for insert in ("kind: conv, channels: 1", "kind: linear, rank: 1", "kind: decaying, rank: 1, every_steps: 1"):
            keys |= self.known_keys("cleave-client", "train", "--dry-run", "--config", "synthetic.yaml", "--set", f"insert={{cut: 0, {insert}}}", only=("insert",))
        keys |= self.known_keys("cleave-client", "train", "--dry-run", "--config", "synthetic.yaml", "--set", "privacy.key_file=key",
                                "--set", "privacy.defence=[{kind: noise, deviation: 1}, {kind: distance_correlation, weight: 1}]", only=("privacy",))  # fmt: skip
        for model in self.ask_json("models")["models"]:
            keys |= {f"model.{name}" for name in re.findall(r"(\w+)=", model["parameters"])}
        for optimizer in self.ask_json("optimizers")["optimizers"]:
            keys |= {f"train.optimizer.{name}" for name in re.findall(r"(?:^|, )(\w+) ", optimizer["parameters"])}
        return keys - {"weights", "insert", "privacy.defence"}  # a map, or a short form of weights.file; a map, or a list of maps

    def client_defaults(self):
        """The defaults of all optional keys, from the output of --dry-run."""
        (self.scratch / "images").write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 2) + bytes(8))
        (self.scratch / "labels").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 2) + bytes(2))
        defaults = {}
        for name in ("idx", "synthetic"):
            defaults.update(flat(self.ask_json("train", "--dry-run", "--log-level", "error", "--config", f"{name}.yaml")["config"]))
        return defaults


def flat(yaml):
    """{path: value} of block YAML without block lists, as in the programs' output and
    configs/server.yaml."""
    values, path = {}, []
    for line in yaml.splitlines():
        found = re.match(r"( *)([\w/]+):\s*(.*?)\s*(?:#.*)?$", line)
        if not found:
            continue
        path = [*path[: len(found[1]) // 2], found[2]]
        if found[3]:
            values[".".join(path)] = found[3].strip("\"'")
    return values


def same(a, b):
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def split_page(text):
    """Code spans outside code blocks, and the lines of code blocks with continuation lines joined."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", rest), re.sub(r"\\\n\s*", " ", blocks).splitlines()


def check_command_line(page, line, programs, keys):
    found = re.match(r"(?:\w+\$ )?(?:sudo (?:-u \w+ )?)?(?:ExecStart=)?(?:docker run cleave )?(?:\S*/)?(?:cleave-with-torch )?"
                     r"(?:\S*/)?(cleave-(?:client|server|link|relay))(?: (.*))?$", line)  # fmt: skip
    if not found:
        return
    words, arguments = (found[1],), re.split(r"(?:^|\s)[|&;#>]", found[2] or "")[0].split()
    while words in programs.groups and arguments and re.fullmatch(r"[a-z][a-z-]*", arguments[0]):
        words = (*words, arguments.pop(0))
        if words not in programs.options:
            return complain(page, f"there is no command '{' '.join(words)}'")
    for option in re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", " ".join(arguments)):
        if option not in programs.options[words] | {"--help", "--version"}:
            complain(page, f"'{' '.join(words)}' has no option {option}")
    for key in re.findall(r"--(?:set|grid|reference)[ =]['\"]?([\w./]+)=", " ".join(arguments)):
        check_key(page, key, keys)


def check_key(page, key, keys):
    if key in keys or any(known.startswith(key.rstrip("*") + ("" if key.endswith("*") else ".")) for known in keys):
        return
    is_operator = key.endswith(".default")  # of PyTorch, such as log.default
    if not re.fullmatch(LINK_KEYS, key) and not is_operator and key != "KEY":
        complain(page, f"there is no key {key}")


def check_page(page, programs, keys, own_scripts):
    sections = {key.split(".")[0] for key in keys if "." in key}
    spans, lines = split_page(page.read_text())
    for line in [*spans, *lines]:
        check_command_line(page, line, programs, keys)
    for span in spans:
        if option := re.match(r"--[a-z][a-z-]*(?!…)\b(?!-)", span):
            if option[0] not in programs.any_option | FOREIGN and option[0] not in own_scripts:
                complain(page, f"no program has the option {option[0]}")
        for key in re.findall(r"^--(?:set|grid|reference) ['\"]?([\w./]+)=", span):
            check_key(page, key, keys)
        key = re.match(r"([a-z_]+(?:\.[\w/]+)+\*?)(?:=.*|: .*)?$", span)
        if key and key[1].split(".")[0] in sections and not re.search(FILE_NAMES, key[1]):
            check_key(page, key[1], keys)


def check_links(page, anchors):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"(?:\]\(|src=\")([^)\"\s]+)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", path):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            complain(page, f"a link leads to {target}, which does not exist")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            complain(page, f"a link leads to {target}, but there is no such heading")


def anchors_of(file):
    """The anchors that GitHub generates for the headings."""
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def sections_of(page):
    """{heading: text} of the second-level sections."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def check_cli(programs):
    page = ROOT / "docs/cli.md"
    sections = {tuple(heading.split()): text for heading, text in sections_of(page).items() if heading.startswith("cleave-")}
    # A group of commands, such as models, may itself be a command.
    commands = {words for words in programs.options
                if (words not in programs.groups or words in sections) and words not in (("cleave-link",), ("cleave-relay",))}  # fmt: skip
    for words in sorted(commands ^ set(sections)):
        complain(page, f"'{' '.join(words)}' is {'not documented' if words in commands else 'not a command'}")
    for words in sorted(commands & set(sections)):
        listed = "\n".join(re.findall(r"^(?: ?(?:Also|Options): .*)", re.sub(r"\n(?!\n|\|)", " ", sections[words]), re.M))
        documented = set(re.findall(r"`(--[a-z][a-z-]*)", listed)) | set(re.findall(r"^\| `(--[a-z-]*)", sections[words], re.M))
        for option in sorted(documented ^ programs.options[words]):
            complain(page, f"'{' '.join(words)}': {option} is {'not an option' if option in documented else 'not documented'}")


def check_configuration(programs, keys, defaults, section):
    page = ROOT / "docs/configuration.md"
    rows = re.findall(r"^\| `([^`]+)` *\|(?:[^|]*\|){2} *([^|]*?) *\|", sections_of(page)[section], re.M)
    documented = [key for key, _ in rows]
    for key in sorted(keys ^ set(documented)):
        complain(page, f"{section}: {key} is {'not documented' if key in keys else 'not a key'}")
    for key in sorted({key for key in documented if documented.count(key) > 1}):
        complain(page, f"{section}: {key} is listed twice")
    for key, cell in rows:
        default = re.fullmatch(r"`([^`]*)`", cell)
        if not default or default[1] in keys or key not in defaults or defaults[key] == "":
            continue
        if not same(default[1], defaults[key]):
            complain(page, f"{section}: the default of {key} is {defaults[key]}, not {default[1]}")


def check_generated(programs, write):
    """Checks that docs/configuration.md contains, between markers, the output of `keys --markdown` for a program or a section."""
    page = ROOT / "docs/configuration.md"
    text = page.read_text()

    def printed(found):
        begin, program, section, end = found.groups()
        ended = programs.run(program, "keys", "--markdown")
        if ended.returncode != 0:
            sys.exit(f"docs_test: {program} keys: {ended.stderr}")
        if section is None:
            return f"{begin}{ended.stdout}{end}"
        keys = json.loads(programs.run(program, "keys", "--json").stdout)["keys"]
        sections = list(dict.fromkeys(key["section"] for key in keys))
        if section not in sections:
            complain(page, f"{program} has no keys in a section '{section}'")
            return found[0]
        return f"{begin}{ended.stdout.strip().split(chr(10) * 2)[sections.index(section)]}{chr(10)}{end}"

    generated, count = re.subn(r"(<!-- keys of ([\w-]+)(?:, ([\w, ]+))?\..*?-->\n).*?(<!-- end of keys -->)", printed, text,
                               flags=re.S)  # fmt: skip
    if write:
        page.write_text(generated)
    elif generated != text or count == 0:
        complain(page, "the tables of keys differ from what the programs print; pass --write to regenerate them")


def check_operators(write):
    """Checks that docs/models.md and the Python package list the operators of common/graph/operators.cpp."""
    source = (ROOT / "common/graph/operators.cpp").read_text()
    lists = re.findall(r"constexpr std::string_view k(?:OwnMemory|MayShare|InPlace) =[^;]*;", source, re.S)
    names = sorted(name for words in lists for text in re.findall(r'"([^"]*)"', words) for name in text.split())
    page, module = ROOT / "docs/models.md", ROOT / "python/cleave_split/operators.py"
    wrapped = [textwrap.fill(" ".join(quoted), width, break_long_words=False, break_on_hyphens=False)
               for quoted, width in (([f"`{name}`" for name in names], 118), (names, 138))]  # fmt: skip
    listed = re.sub(r"(<!-- operators\..*?-->\n).*?(<!-- end of operators -->)", rf"\1\n{wrapped[0]}\n\n\2", page.read_text(), flags=re.S)
    code = f'"""The operators that Cleave runs, from common/graph/operators.cpp; tests/docs_test.py --write updates this file."""\n\nALLOWED = frozenset("""\n{wrapped[1]}\n""".split())\n'
    for file, text in ((page, listed), (module, code)):
        if write:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text or names[0] not in text:
            complain(file, "the list of operators differs from common/graph/operators.cpp; pass --write to regenerate it")


def check_server_file(keys):
    """Checks that configs/server.yaml has every key, because it documents the server's keys."""
    file = ROOT / "configs/server.yaml"
    for key in sorted(keys ^ set(flat(file.read_text()))):
        complain(file, f"{key} is {'missing' if key in keys else 'not a key'}")


def check_exit_codes():
    """Checks that each error code has one exit code. Codes whose kind is computed are in the text of PROTOCOL.md."""
    exits = {}  # {code: {exit code: file}}
    for folder in ("client", "server", "stage", "common", "compression", "cuda", "tools"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in (".cpp", ".h"):
                continue
            thrown = re.findall(
                r'\b(UsageError|DataError|RunError|ProtocolError)\(\s*(?:ErrorKind::(\w+),\s*)?"([a-z0-9-]+)"', file.read_text()
            )
            for name, kind, code in thrown:
                isUsage = name in ("UsageError", "DataError") or kind == "usage"
                exits.setdefault(code, {})[2 if isUsage else 1] = file
    for code, files in sorted(exits.items()):
        if len(files) > 1:
            complain(files[1], f"{code}: exit code 1 here, but 2 in {files[2].relative_to(ROOT)}")


def check_image():
    """Checks that .dockerignore allows what the Dockerfile copies."""
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    page = ROOT / "docker/Dockerfile"
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", page.read_text(), re.M):
        for source in copied.split():
            if source != "." and source.split("/")[0] not in allowed:
                complain(page, f"copies {source}, which .dockerignore excludes")


def check_example(programs):
    page = ROOT / "docs/configuration.md"
    (programs.scratch / "example.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)[1])
    ended = programs.run("cleave-client", "train", "--dry-run", "--config", "example.yaml")
    if ended.returncode != 0:
        complain(page, f"the complete client file is refused: {ended.stderr}")


def literals_of_sources():
    """[(file, text)] of all string literals of the programs; adjacent ones are joined."""
    literals = []
    for folder in ("client", "server", "stage", "common", "compression", "cuda", "tools", "cmake", "packaging"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".cpp", ".h", ".cu", ".cmake", ".txt"):
                found = re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', file.read_text())
                literals += [(file, re.sub(r'"\s*"', "", literal)[1:-1].replace("\\n", "\n")) for literal in found]
    return literals


def check_message(file, text, programs, keys):
    """Checks the commands, options and keys that a message or a help text names."""
    sections = {key.split(".")[0] for key in keys if "." in key}
    for line in re.sub(r"\\+\n\s*", " ", text).splitlines():
        for command in re.findall(r"(?<![\w/.-])cleave-(?:client|server|link|relay) (?!listens)[a-z-][^'`;:,()]*", line):
            check_command_line(file, command, programs, keys)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])", line):
            if option not in programs.any_option | FOREIGN | {"--help", "--version"}:
                complain(file, f"no program has the option {option}: {line.strip()[:60]}")
        for key in re.findall(r"(?<![\w./<-])[a-z_]+(?:\.[a-z_]+)+(?![\w.(/-])", line):
            if key.split(".")[0] in sections and f"data.{key}" not in keys and not re.search(FILE_NAMES, key):
                check_key(file, key, keys)


def check_messages(programs, keys, literals):
    for file, text in literals:
        check_message(file, text, programs, keys)
    for words, text in programs.helps.items():
        check_message(ROOT / f"'{' '.join(words)} --help'", text, programs, keys)


def check_troubleshooting(literals):
    """Checks that messages and codes occur in the sources."""
    page = ROOT / "docs/troubleshooting.md"
    text = "\n".join(f'"{literal}"' for _, literal in literals)
    for message, codes in re.findall(r"^\| ([^|]*`[^|]*) \| ([^|]*?) *\|", page.read_text(), re.M):
        for span in re.findall(r"`([^`]+)`", message):
            for piece in re.split(r" ?… ?|HOST:PORT", span):
                if piece.strip() not in text and piece not in SYSTEM_MESSAGES:
                    complain(page, f"no program prints '{piece.strip()}'")
        for code in re.findall(r"`([^`]+)`", codes):
            if f'"{code}"' not in text:
                complain(page, f"there is no error code {code}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="the folder of the built programs")
    parser.add_argument("--write", action="store_true", help="regenerates the tables of keys in docs/configuration.md and the lists of operators first")
    options = parser.parse_args()
    folder = options.programs.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        programs = Programs(folder, pathlib.Path(scratch))
        client, server = programs.client_keys(), programs.known_keys("cleave-server", "serve")
        check_generated(programs, options.write)
        check_operators(options.write)
        check_cli(programs)
        check_configuration(programs, client, programs.client_defaults(), "The client's keys")
        check_configuration(programs, server, flat((ROOT / "configs/server.yaml").read_text()), "The server's keys")
        check_server_file(server)
        check_example(programs)
    own_scripts = "\n".join(file.read_text() for pattern in ("scripts/*", "configs/experiments/*.py", "python/cleave_split/**/*.py", "tests/**/*.py") for file in ROOT.glob(pattern)
                            if file.is_file() and file.name != "docs_test.py")  # fmt: skip
    for page in PAGES:
        check_page(page, programs, client | server, own_scripts)
        check_links(page, anchors_of)
    literals = literals_of_sources()
    check_troubleshooting(literals)
    check_messages(programs, client | server, literals)
    check_exit_codes()
    check_image()
    lines = len(PAGES[0].read_text().splitlines())
    if lines > MAX_README_LINES:
        complain(PAGES[0], f"has {lines} lines, more than {MAX_README_LINES}")
    print("\n".join(problems) or f"{len(PAGES)} pages agree with the programs")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
