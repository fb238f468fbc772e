"""Measures what it costs to run an exported model apart from the arithmetic: 24 GPT-2 layers of width 16 on tensors of a few values, one
thread, forward and backward, compared with PyTorch's eager mode in Python. The two take turns.

Prints the ratios. Called by scripts/bench.sh overhead; needs the environment of scripts/test_python.sh."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import Others, conclude

SAMPLES, TOKENS = 2, 4
STEPS, WARM_UP = 12, 4  # of a turn; the steps after the other's turn have cold caches

# Exports the model, then prints the milliseconds of a step for each line of its standard input.
EAGER = """
import sys, time, torch, transformers
sys.path.insert(0, "python")
import cleave_split
torch.set_num_threads(1)
config = transformers.GPT2Config(n_layer=24, n_embd=16, n_head=2, vocab_size=32, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
                                 attn_pdrop=0.0, use_cache=False)
model = transformers.GPT2Model(config).train()
ids = torch.arange({samples} * {tokens}).remainder(7).reshape({samples}, {tokens})
cleave_split.export(model, {{"input_ids": ids}}, {path!r}, output="last_hidden_state")
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    output = model(input_ids=ids).last_hidden_state
    middle = time.perf_counter()
    output.backward(torch.ones_like(output))
    print([1e3 * (middle - start), 1e3 * (time.perf_counter() - middle)], flush=True)
    model.zero_grad()
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--python", default=".deps/python/bin/python")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    if not os.path.exists(options.python):
        sys.exit(f"overhead.py: there is no {options.python}: run scripts/test_python.sh first")
    others = Others()
    times = {"cleave": [], "eager": []}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/gpt2.pt2"
        start = lambda arguments: subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        source = EAGER.format(samples=SAMPLES, tokens=TOKENS, path=path)
        with start([options.python, "-W", "ignore", "-c", source]) as eager:
            while "ready" not in (line := eager.stdout.readline()):
                if not line:
                    sys.exit("overhead.py: the export failed")
            with start([f"{options.programs}/bench_overhead", path, str(SAMPLES), str(TOKENS)]) as cleave:
                for _ in range(options.rounds):
                    for name, process in (("cleave", cleave), ("eager", eager)):
                        process.stdin.write("\n" * STEPS)
                        process.stdin.flush()
                        steps = [json.loads(process.stdout.readline()) for _ in range(STEPS)]
                        times[name] += steps[WARM_UP:]
    forward, backward = ({name: statistics.median(step[part] for step in steps) for name, steps in times.items()} for part in (0, 1))
    print(f"24 GPT-2 layers of width 16, {SAMPLES} samples of {TOKENS} tokens, 1 thread, medians of {options.rounds * (STEPS - WARM_UP)} steps, in ms")
    for name in times:
        print(f"{name:>7}: forward {forward[name]:.2f}, backward {backward[name]:.2f}")
    sums = {name: forward[name] + backward[name] for name in times}
    print(f"ratio of the sums: {sums['cleave'] / sums['eager']:.3f}")
    conclude(others.share(), {"milliseconds": times}, options.json)


if __name__ == "__main__":
    main()
