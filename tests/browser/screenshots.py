#!/usr/bin/env python3
"""Takes screenshots of the dashboard and of a report while training on Fashion-MNIST over an emulated
link. Arguments: PROGRAMS IMAGES."""
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import browser
import palette

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 400
PATIENCE = 300  # seconds


def start(stack, folder, *command):
    process = subprocess.Popen(list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stack.append(process)
    return process


def take(chrome, path, width, height):
    chrome.size(width, height)
    time.sleep(0.5)  # the charts adapt to the new size
    chrome.screenshot(path, {"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
    path.write_bytes(palette.smaller(path.read_bytes()))
    size = path.stat().st_size
    print(f"{path}: {size >> 10} KiB")
    if size > 200_000:
        sys.exit(f"{path} has {size} bytes, more than a README should load")


def main(programs, images, folder, processes):
    images.mkdir(parents=True, exist_ok=True)
    server = start(processes, folder, programs / "cleave-server", "serve", "--set", "listen.port=0", "--log-level", "error")
    address = re.search(r"listens on (\S+:\d+)", server.stdout.readline())[1]
    link = start(processes, folder, programs / "cleave-link", "--target", address, "--rate", "200Mbit/s", "--latency", "5ms")
    address = re.search(r"listening on (\S+)", link.stdout.readline())[1]
    run = "runs/fashion-mnist"
    client = start(
        processes, folder, programs / "cleave-client", "train", "--config", ROOT / "configs/fashion_mnist.yaml", "--server", address, "--run-dir", run,
        "--dashboard", "127.0.0.1:0", "--set", f"train.max_steps={STEPS}", "--set", "codec=block:bits=8", "--set", "metrics.error_every=10",
        "--set", "eval.every=1")  # fmt: skip
    url = next(found[1] for line in client.stderr if (found := re.search(r"dashboard: open (\S+)", line)))
    chrome = browser.Browser()
    try:
        chrome.size(1280, 860)
        chrome.dark(True)
        chrome.open(url)
        steps = "return cleaveReport.page() ? cleaveReport.page().runs[0].headline.steps || 0 : 0"
        chrome.until(lambda: client.poll() is not None or chrome.run(steps) >= 0.6 * STEPS, "most of the training", PATIENCE)
        if client.poll() is not None:
            sys.exit("the training run has ended: " + client.stderr.read())
        take(chrome, images / "dashboard.png", 1280, 1100)
        client.stderr.read()
        if client.wait(PATIENCE) != 0:
            sys.exit("the training run failed")
        page = folder / "report.html"
        subprocess.run([programs / "cleave-client", "report", run, "--output", page], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        chrome.dark(False)
        chrome.open(page)
        take(chrome, images / "report.png", 1280, 2060)
    finally:
        chrome.close()


if __name__ == "__main__":
    browser.required()
    started = []
    with tempfile.TemporaryDirectory(prefix="cleave-pictures-") as temporary:
        try:
            main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(temporary), started)
        finally:
            for process in reversed(started):
                process.terminate()
                process.communicate()
