"""Compares the memory that a server admits for the process of a run's body with the most that the process allocates, for exported models on
the CPU. Each model trains four steps, with an evaluation and a checkpoint after each. The process may not allocate more than what was admitted (RLIMIT_DATA).

Prints the ratios. Called by scripts/bench.sh admission; needs the environment of scripts/test_python.sh."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from machine import machine, machine_text
from server import PROGRAMS, ROOT, Server

sys.path.append(str(ROOT / "tests/hostile"))
from processes import children, memory_kib  # noqa: E402

MIB = 1 << 20
ROBERTA = ("roberta", "[m.roberta.embeddings, m.roberta.encoder.layer.3]", 16)
TEXT = "data.target=input_ids train.loss=next_token"
# name: (model, cuts, samples of a micro-batch, settings)
RUNS = {
    "resnet18": ("resnet18", "[maxpool, layer4]", 64, ""),
    "mobilenet_v2": ("mobilenet_v2", "[features.0, features.18]", 16, ""),
    "efficientnet_b0": ("efficientnet_b0", "[features.0, features.8]", 16, ""),
    "densenet121": ("densenet121", "[features.pool0, features.norm5]", 16, ""),
    "convnext_tiny": ("convnext_tiny", "[features.0, features.7]", 16, ""),
    "vit": ("vit", "[m.vit.embeddings, m.vit.layers.4]", 64, ""),
    "lstm": ("lstm", "[embedding, recurrent]", 128, ""),
    "gpt2": ("gpt2", "[m.transformer.drop, m.transformer.h.5]", 8, TEXT),
    "llama": ("llama", "[m.model.embed_tokens, m.model.layers.3]", 16, TEXT),
    "roberta": (*ROBERTA, ""),
    "roberta, LoRA": (*ROBERTA, "lora"),
    "roberta, bf16": (*ROBERTA, "precision.client=bf16 precision.server=bf16"),
    "roberta, recompute": (*ROBERTA, "train.recompute=true"),
    "roberta, staleness 1": (*ROBERTA, "train.staleness=1 train.schedule=priority"),
}  # fmt: skip

EXPORT = """
import sys, torch, torchvision, transformers as T
from torch import nn
sys.path.insert(0, "python")
import cleave_split
torch.manual_seed(0)

class Logits(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
    def forward(self, input_ids):
        return self.m(input_ids=input_ids).logits

class Images(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
    def forward(self, x):
        return self.m(pixel_values=x).logits

class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent, self.last = nn.Embedding(1000, 128), nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)
    def forward(self, input_ids):
        return self.last(self.recurrent(self.embedding(input_ids))[0][:, -1])

def vision(name):
    return getattr(torchvision.models, name)(num_classes=10), torch.randn(4, 3, 64, 64)
def text(model, tokens=128):
    return model, torch.randint(0, 1000, (4, tokens))
small = dict(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=8, max_position_embeddings=140)
models = {
    "vit": lambda: (Images(T.ViTForImageClassification(T.ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=6, intermediate_size=768, image_size=64, patch_size=8, num_labels=10))),
        torch.randn(4, 3, 64, 64)),
    "lstm": lambda: text(Lstm(), 32),
    "gpt2": lambda: text(Logits(T.GPT2LMHeadModel(T.GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=6, n_head=8, use_cache=False)))),
    "roberta": lambda: text(Logits(T.RobertaForSequenceClassification(T.RobertaConfig(**small, intermediate_size=1024, num_labels=10)))),
    "llama": lambda: text(Logits(T.LlamaForCausalLM(T.LlamaConfig(**small, intermediate_size=688, num_key_value_heads=4, use_cache=False)))),
}
name, folder, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, example = models[name]() if name in models else vision(name)
cleave_split.export(model.train(), example, f"{folder}/model.pt2")
many = example.repeat((samples + 3) // 4, *[1] * (example.dim() - 1))[:samples]
program = torch.export.load(f"{folder}/model.pt2")
cleave_split.save_dataset({"data": {program.graph_signature.user_inputs[0]: many, "labels": torch.arange(samples) % 10}}, f"{folder}/rows")
"""


class Peak:
    """The memory that a process may allocate, and the most that it has allocated, in bytes."""

    def __init__(self, process):
        self.process = process
        self.start = self.most = self.admitted = 0

    def look(self):
        try:
            limits = pathlib.Path(f"/proc/{self.process}/limits").read_text()
            now = 1024 * memory_kib(self.process, "VmData")
        except (OSError, ValueError, TypeError, ProcessLookupError):
            return
        found = re.search(r"Max data size\s+(\d+)", limits)
        if not found:  # not confined yet
            self.start = now
            return
        self.admitted = int(found[1])
        self.most = max(self.most, now)


def run(name, folder):
    model, cuts, samples, settings = RUNS[name]
    batch = 4 * samples
    spec = f"{{name: graph, file: {folder}/model.pt2, cuts: {cuts}"
    spec += ", lora: {rank: 8, alpha: 16, targets: [query, value]}}" if settings == "lora" else "}"
    data = f"{folder}/rows"
    paths = [str(path) for path in pathlib.Path(data).iterdir()]
    server = Server(f"{folder}/store", "limits.memory_mib=65536", "models.allow=[graph]")
    (stages,) = children(server.process.pid)
    known = set(children(stages))
    # So late that the server computes the activations of all micro-batches in flight before the first gradient arrives.
    link = subprocess.Popen([PROGRAMS / "cleave-link", "--target", server.address, "--latency", "1500ms"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = "127.0.0.1:" + link.stdout.readline().rsplit(":", 1)[1].strip()
    more = [] if settings in ("", "lora") else settings.split()
    client = subprocess.Popen(
        [PROGRAMS / "cleave-client", "train", "--config", ROOT / "configs/synthetic.yaml", "--server", address, "--run-dir", f"{folder}/run",
         f"--set=model={spec}", f"--set=data={{format: tensors, train: {{file: {paths[0]}}}, test: {{file: {paths[0]}}}}}", f"--set=train.batch={batch}",
         "--set=train.micro_batches=4", f"--set=eval.batch={batch}", "--set=train.epochs=4", "--set=checkpoint.every_steps=1", "--set=codec=none", "--set=train.schedule=gpipe",
         "--set=train.optimizer={name: adamw}", "--set=threads={client: 1, server: 2}", "--quiet",
         *(f"--set={one}" for one in more)], stdout=subprocess.DEVNULL, cwd=ROOT)  # fmt: skip
    peaks = {}
    while client.poll() is None:
        for process in children(stages):
            if process not in known:
                peaks.setdefault(process, Peak(process)).look()
        time.sleep(0.001)
    link.terminate()
    link.wait()
    server.end()
    if client.returncode != 0:
        raise SystemExit(f"admission.py: {name}: the run failed")
    return max(peaks.values(), key=lambda peak: peak.most)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh admission", description=__doc__)
    parser.add_argument("--python", default=".deps/python/bin/python")
    parser.add_argument("--run", action="append", choices=list(RUNS), help="only this run; repeatable (all)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    if not os.path.exists(options.python):
        sys.exit(f"admission.py: there is no {options.python}: run scripts/test_python.sh first")
    results = {}
    print(f"{'run':<24}{'admitted MiB':>14}{'peak MiB':>10}{'ratio':>8}")
    for name in options.run or RUNS:
        model, _, samples, _ = RUNS[name]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([options.python, "-W", "ignore", "-c", EXPORT, model, folder, str(4 * samples)], check=True, cwd=ROOT,
                           env={**os.environ, "HF_HUB_OFFLINE": "1"}, stderr=subprocess.DEVNULL)  # fmt: skip
            peak = run(name, folder)
        admitted, most = peak.admitted - peak.start, peak.most - peak.start
        results[name] = {"admitted_mib": admitted / MIB, "peak_mib": most / MIB}
        print(f"{name:<24}{admitted / MIB:>14.0f}{most / MIB:>10.0f}{admitted / most:>8.2f}", flush=True)
    print(f"\n{machine_text()}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"results": results, "machine": machine()}, indent=2))


if __name__ == "__main__":
    main()
