"""Measures the cost of recording and metrics per step in two ways.

Directly: the processor time of all threads (bench_record) for the rows that one side writes per
step, to files and as Prometheus counters, plus one Prometheus scrape per second, divided by the
duration of a step in real training. This is compared with the limit of 1 %. It is pessimistic: it
assumes that nothing runs in parallel.

Side by side: the same training without metrics, and with client and server scraped every second, in turns. The ratio of the medians has the
noise of two training runs. Files are written in both. Called by scripts/bench.sh metrics."""

import argparse
import collections
import csv
import json
import re
import statistics
import subprocess
import tempfile
import threading
import urllib.request

from machine import Others, conclude
from made_data import cifar_data, idx_data
from pipeline import MODELS

TARGET = 0.01  # share of a step
MAKE_DATA = {"mobilenet_v2": cifar_data, "small_cnn": idx_data}
LISTEN = ["--set", "metrics.listen=127.0.0.1:0"]


class Asked:
    """Reads the address of a program's metrics from its log, and requests them every second until the program ends."""

    def __init__(self, process):
        self.process, self.answers, self.ended = process, 0, threading.Event()
        self.last_lines = collections.deque(maxlen=5)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        url = None
        for line in self.process.stderr:  # reads to the end, because the program would block otherwise
            self.last_lines.append(line)
            if url is None and (found := re.search(r"metrics at (http://\S+)", line)):
                url = found[1]
                threading.Thread(target=self.ask, args=(url,), daemon=True).start()

    def ask(self, url):
        while not self.ended.is_set():
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    self.answers += b"steps_total" in answer.read()
            except OSError:
                return  # the program has ended
            self.ended.wait(1)

    def stop(self):
        self.ended.set()
        self.thread.join()


def train(options, name, with_metrics):
    """The median seconds of a step at the client, and the number of requests to client and server."""
    model = MODELS[name]
    listen = LISTEN if with_metrics else []
    with tempfile.TemporaryDirectory() as folder:
        data = MAKE_DATA[name](folder, model["batch"] * options.steps)
        settings = {"data": data, "train.epochs": 1, "codec": options.codec}
        server = subprocess.Popen(
            [f"{options.programs}/cleave-server", "serve", "--set", "listen.port=0", "--set", f"store={folder}/store",
             "--set", "limits.memory_mib=32768", *listen],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        asked = [Asked(server)]
        try:
            address = server.stdout.readline().strip().rpartition(" ")[2]
            client = subprocess.Popen(
                [f"{options.programs}/cleave-client", "train", "--config", model["config"], "--server", address, "--run-dir",
                 f"{folder}/client", "--json", *listen,
                 *[argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            asked.append(Asked(client))
            if client.wait() != 0:
                asked[1].stop()
                raise SystemExit("bench.sh: the training run failed: " + "".join(asked[1].last_lines))
        finally:
            server.terminate()
            server.wait()
            for one in asked:
                one.stop()
        with open(f"{folder}/client/steps.csv", newline="") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file) if row["phase"] == "train"][1:]
    return statistics.median(seconds), sum(one.answers for one in asked)


def recording(options, micro_batches):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([f"{options.programs}/bench_record", "--folder", folder, "--micro-batches", str(micro_batches),
                               "--steps", str(options.rows), "--rounds", str(options.rounds)],
                              check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def measure(options, name):
    steps = {False: [], True: []}
    answers = 0
    for _ in range(options.rounds):
        for with_metrics in (False, True):
            seconds, asked = train(options, name, with_metrics)
            steps[with_metrics].append(seconds)
            answers += asked
    cost = recording(options, MODELS[name]["micro_batches"])
    step = statistics.median(steps[False])
    each_step = cost["files_and_metrics"]["all"] + cost["answer"] * step
    ratios = [with_it / without for without, with_it in zip(steps[False], steps[True])]
    return {"model": name, "step": step, "files": cost["files"]["all"], "with_metrics": cost["files_and_metrics"]["all"],
            "caller": cost["files_and_metrics"]["caller"], "answer": cost["answer"], "share": each_step / step,
            "reached": each_step / step < TARGET, "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
            "answers": answers}


def print_result(result):
    us = lambda key: 1e6 * result[key]
    print(f"{result['model']:<14}{1e3 * result['step']:>9.2f}{us('files'):>9.1f}{us('with_metrics'):>9.1f}{us('caller'):>9.1f}"
          f"{us('answer'):>9.1f}{100 * result['share']:>9.3f} %{'yes' if result['reached'] else 'no':>7}"
          f"{result['ratio']:>10.4f} ({result['least']:.3f} to {result['most']:.3f}){result['answers']:>9}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this model; repeatable")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="steps per training run")
    parser.add_argument("--rows", type=int, default=2000, help="steps whose rows are written, per round")
    parser.add_argument("--codec", default="block:bits=8")
    parser.add_argument("--short", action="store_true", help="small_cnn, 3 rounds of 30 steps")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    if options.short:
        options.model, options.rounds, options.steps, options.rows = ["small_cnn"], 3, 30, 500

    others = Others()
    print(f"{'':<14}{'step':>9}{'rows per step, us of processor time':>37}{'share of':>10}{'':>8}{'step with metrics /':>20}")
    print(f"{'medians':<14}{'ms':>9}{'files':>9}{'+ metr.':>9}{'callers':>9}{'answer':>9}{'step':>11}{'< 1 %':>7}"
          f"{'without':>10}{'requests':>25}")
    results = []
    for name in options.model or MODELS:
        results.append(measure(options, name))
        print_result(results[-1])
    conclude(others.share(), results, options.json, load=True)


if __name__ == "__main__":
    main()
