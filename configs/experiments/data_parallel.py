#!/usr/bin/env python3
"""Measures training with torch's DistributedDataParallel on this machine, over Gloo on processors and NCCL on GPUs, and prints JSON.

    python3 configs/experiments/data_parallel.py --model roberta_base --devices 2 --batch 32 --threads 1

Needs torch, torchvision and transformers. Each device is a process with `--threads` threads; the processes are connected over loopback. With
one device, the model is trained without DistributedDataParallel. With `--device cuda`, each process has a GPU of its own. Models have random weights, and data is random. The keys of the JSON:

    seconds           of a step (median)
    forward, backward, update   its parts in process 0; with several devices, backward includes the all-reduce
    samples_per_second
    peak_bytes        per process, the maximum of its resident memory, or of what it has allocated on its GPU
    program_bytes     the same before the model is built, in process 0
    gradient_bytes    of the trained parameters
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

LENGTH = 128  # tokens per sample of RoBERTa


def build(name):
    """The model, its inputs for 2 samples, and the number of its classes."""
    import torch

    torch.manual_seed(1)
    if name == "roberta_base":
        import transformers

        config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=2)
        tokens = torch.randint(3, config.vocab_size, (2, LENGTH))
        return transformers.RobertaForSequenceClassification(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, 2
    import torchvision

    return getattr(torchvision.models, name)(weights=None, num_classes=10), torch.randn(2, 3, 224, 224), 10


def learning_rate(model, batch):
    """The publication's: proportional to the batch."""
    return 2e-5 * batch / 32 if model == "roberta_base" else 0.005 * batch / 64


def random_batch(inputs, classes, samples):
    """Inputs of this many samples with the shapes of the given ones, and labels."""
    import torch

    def like(tensor):
        return tensor[torch.arange(samples) % len(tensor)]

    batch = {name: like(tensor) for name, tensor in inputs.items()} if isinstance(inputs, dict) else like(inputs)
    return batch, torch.randint(0, classes, (samples,))


def peak_bytes(on_gpu):
    """The maximum of this process's resident memory until now, or of what it has allocated on its GPU."""
    if on_gpu:
        import torch

        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def train(rank, options, store, results):
    """Trains as one of the processes, and writes its figures to the file `results`.RANK."""
    import torch

    torch.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    program_bytes = peak_bytes(on_gpu)
    model, inputs, classes = build(options.model)
    model = model.to(options.device).train()
    gradient_bytes = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    if options.devices > 1:
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo", init_method=f"file://{store}", rank=rank, world_size=options.devices)
        model = torch.nn.parallel.DistributedDataParallel(model)
    rate = learning_rate(options.model, options.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate) if options.model == "roberta_base" else torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.1)  # fmt: skip
    samples = options.batch // options.devices + (rank < options.batch % options.devices)
    batch, labels = random_batch(inputs, classes, samples)
    batch = {name: each.to(options.device) for name, each in batch.items()} if isinstance(batch, dict) else batch.to(options.device)
    labels = labels.to(options.device)

    def clock():
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    parts = {"seconds": [], "forward": [], "backward": [], "update": []}
    for _ in range(1 + options.steps):
        if options.devices > 1:
            torch.distributed.barrier()
        begin = clock()
        output = model(**batch).logits if isinstance(batch, dict) else model(batch)
        loss = torch.nn.functional.cross_entropy(output, labels)
        forward = clock()
        loss.backward()
        backward = clock()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end = clock()
        for name, seconds in zip(parts, (end - begin, forward - begin, backward - forward, end - backward)):
            parts[name].append(seconds)
    figures = {name: statistics.median(seconds[1:]) for name, seconds in parts.items()}  # the first step is a warm-up
    with open(f"{results}.{rank}", "w", encoding="utf-8") as file:
        json.dump({**figures, "peak_bytes": peak_bytes(on_gpu), "program_bytes": program_bytes, "gradient_bytes": gradient_bytes}, file)
    if options.devices > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=["mobilenet_v2", "resnet101", "roberta_base"])
    parser.add_argument("--devices", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--batch", type=int, required=True, help="samples per step of all devices together")
    parser.add_argument("--threads", type=int, default=1, help="threads per process; default: 1")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a GPU per process; default: cpu")
    parser.add_argument("--steps", type=int, default=3, help="steps to measure, after one warm-up step; default: 3")
    options = parser.parse_args()
    if min(options.devices, options.threads, options.steps) < 1 or options.batch < options.devices:
        parser.error("--devices, --threads and --steps must be at least 1, and --batch at least --devices")
    import torch

    if options.device == "cuda" and torch.cuda.device_count() < options.devices:
        parser.error(f"--device cuda: this machine has {torch.cuda.device_count()} GPUs for {options.devices} devices; set --devices or use --device cpu")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results")
        torch.multiprocessing.spawn(train, (options, os.path.join(folder, "store"), results), nprocs=options.devices)
        ranks = []
        for rank in range(options.devices):
            with open(f"{results}.{rank}", encoding="utf-8") as file:
                ranks.append(json.load(file))
    seconds = max(each["seconds"] for each in ranks)
    json.dump({"model": options.model, "devices": options.devices, "batch": options.batch, "threads": options.threads, "steps": options.steps,
               "device": options.device, "learning_rate": learning_rate(options.model, options.batch), "torch": torch.__version__, **ranks[0], "seconds": seconds, "samples_per_second": options.batch / seconds,
               "peak_bytes": [each["peak_bytes"] for each in ranks]}, sys.stdout, indent=2)  # fmt: skip
    print()


if __name__ == "__main__":
    main()
