#!/usr/bin/env python3
"""Compares the page of a sweep in a browser with its CSV files."""
import csv
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser
import runs

PROGRAM = None  # cleave-client
CHROME = None


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Sweep(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="cleave-browser-")
        self.folder = pathlib.Path(self.temporary.name) / "sweep"

    def tearDown(self):
        self.temporary.cleanup()

    def sweep(self, *grid, code=0):
        command = [PROGRAM, "sweep", "--config", runs.ROOT / "configs/synthetic.yaml", "--folder", self.folder, "--set",
                   "data.train.size=128", "--set", "data.test.size=64", "--set", "train.epochs=1", "--set", "eval.batch=64"]  # fmt: skip
        for value in grid:
            command += ["--grid", value]
        ended = subprocess.run([*map(str, command), "--reference", "codec=none"], capture_output=True, text=True, timeout=250)
        self.assertEqual(ended.returncode, code, ended.stderr)

    def points(self, panels, chart, label):
        """{x: mean} of a line."""
        panel = panels[chart]
        i = panel["labels"].index(label) + 1
        return {row[0]: row[i][1] if isinstance(row[i], list) else row[i] for row in panel["rows"] if row[i] is not None}

    def test_charts_and_table_say_what_the_files_say(self):
        self.sweep("codec=none", "codec=bf16", "train.micro_batches=1", "train.micro_batches=4")
        CHROME.size(1280, 900)
        CHROME.open(self.folder / "report.html")
        panels = CHROME.panels()
        groups = rows_of(self.folder / "groups.csv")
        for chart in ("average-up", "peak-up", "average-down", "peak-down"):
            self.assertTrue(CHROME.is_drawn(chart))
            for codec in ("none", "bf16"):
                expected = {int(row["train.micro_batches"]): float(row[chart.replace("-", "_")]) for row in groups if row["codec"] == codec}
                drawn = self.points(panels, chart, codec)
                self.assertEqual(set(drawn), set(expected))
                for x, value in expected.items():
                    self.assertAlmostEqual(drawn[x] / value, 1, places=6)

        sizes = [row for row in rows_of(self.folder / "transfer_sizes.csv") if row["flow"] in ("activation/0", "gradient/1")]
        drawn = self.points(panels, "sizes-up", "all points")
        self.assertGreaterEqual(len(drawn), 3)  # whole and quarter batches, 4 and 2 bytes per value
        for x in drawn:
            self.assertLessEqual(min(float(row["bytes"]) for row in sizes) * 0.999, 10**x)
            self.assertGreaterEqual(max(float(row["bytes"]) for row in sizes) * 1.001, 10**x)
        bandwidths = [math.log10(float(row["bandwidth"])) for row in sizes]
        for value in drawn.values():  # the axis shows logarithms
            self.assertTrue(min(bandwidths) - 1e-6 <= value <= max(bandwidths) + 1e-6)

        self.assertIn("4 of 4 points done", CHROME.text("#subtitle"))
        self.assertIn("Speed-up", CHROME.text("#groups"))
        self.assertIn("Accuracy, best", CHROME.text("#groups"))
        self.assertIn("Peak down", CHROME.text("#group-steps"))
        curves = {label: self.points(panels, "metric-bytes", label) for label in panels["metric-bytes"]["labels"]}
        self.assertEqual(len(curves), 4)
        for row in groups:
            [(spent, accuracy)] = curves[f"{row['codec']}, micro_batches {row['train.micro_batches']}"].items()
            self.assertAlmostEqual(accuracy, float(row["top1"]), places=6)
            # The curve has all bytes but those of the weights, which are fetched after the last epoch.
            self.assertLessEqual(spent, float(row["total_bytes"]))
            self.assertGreater(spent, 0.5 * float(row["total_bytes"]))
            self.assertAlmostEqual(float(row["total_bytes"]), float(row["total_up_bytes"]) + float(row["total_down_bytes"]))
        self.assertEqual(CHROME.complaints(), [])
        CHROME.run("document.querySelector('#groups a').click()")
        CHROME.until(lambda: "synthetic-" in CHROME.text("#title"), "the run's own page")
        self.assertIn("loss", CHROME.panels())
        self.assertEqual(CHROME.complaints(), [])

    def test_codecs_alone_stand_beside_each_other(self):
        self.sweep("codec=none", "codec=bf16")
        CHROME.size(1280, 900)
        CHROME.open(self.folder / "report.html")
        groups = {row["codec"]: row for row in rows_of(self.folder / "groups.csv")}
        drawn = self.points(CHROME.panels(), "average-up", "all points")
        self.assertEqual(set(drawn), {0, 1})
        for x, codec in enumerate(("none", "bf16")):
            self.assertAlmostEqual(drawn[x] / float(groups[codec]["average_up"]), 1, places=6)
        labels = CHROME.run(
            "return [...document.querySelectorAll('#chart-average-up .dygraph-axis-label-x')].map((label) => label.textContent)"
        )
        self.assertEqual(labels, ["none", "bf16"])
        self.assertEqual(CHROME.complaints(), [])

    def test_seeds_are_aggregated_in_the_table_and_in_figures(self):
        self.sweep("codec=none", "codec=topk:ratio=0.01", "run.seed=1", "run.seed=2", "data.classes=3")
        CHROME.size(1280, 900)
        CHROME.open(self.folder / "report.html")
        self.assertRegex(CHROME.text("#groups"), r"\d ± \d")
        self.assertNotIn("data.classes", CHROME.text("#groups"))
        self.assertIn("data.classes=3", CHROME.text("#subtitle"))
        fits = "return [...document.querySelectorAll('#groups table, #group-steps table')].every((one) => one.scrollWidth <= one.parentElement.clientWidth)"
        self.assertTrue(CHROME.run(fits))
        self.assertEqual(CHROME.complaints(), [])
        into = self.folder / "figures"
        command = [PROGRAM, "report", self.folder, "--figures", into]
        ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        files = [pathlib.Path(line) for line in ended.stdout.splitlines()]
        first = {path: path.read_bytes() for path in files}
        self.assertEqual({path.stem for path in files},
                         {"accuracy_bytes", "accuracy_seconds", "accuracy_epochs", "loss_epochs", "step_time", "bandwidth"})  # fmt: skip
        for path in files:
            if path.suffix != ".svg":
                continue
            CHROME.open(path)
            # No text is cut off at the edge or overlaps another one.
            self.assertEqual(CHROME.run("""
                const width = innerWidth, svg = document.documentElement.getBoundingClientRect();
                const texts = [...document.querySelectorAll('text')].map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
                const cut = texts.filter(({ box }) => box.left < svg.left || box.right > svg.right || box.top < svg.top || box.bottom > svg.bottom);
                const both = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
                const over = texts.filter((one, i) => texts.some((other, j) => j > i && both(one.box, other.box)));
                return [...cut, ...over].map(({ text }) => text)"""), [], path)
        groups = {row["codec"]: row for row in rows_of(self.folder / "groups.csv")}
        drawn = rows_of(into / "accuracy_bytes.csv")
        self.assertEqual([(row["codec"], row["runs"]) for row in drawn], [("none", "2"), ("topk:ratio=0.01", "2")])
        for row in drawn:
            self.assertAlmostEqual(float(row["eval_top1_percent"]), 100 * float(groups[row["codec"]]["top1"]), places=5)
            self.assertAlmostEqual(float(row["eval_top1_percent_std"]), 100 * float(groups[row["codec"]]["top1_std"]), places=5)
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
        self.assertEqual({path: path.read_bytes() for path in files}, first)
        (into / "loss_epochs.svg").write_text("<svg/>")
        refused = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("not-a-figure", refused.stderr)

    def test_a_point_that_failed_is_named_and_the_page_fits_a_phone(self):
        self.sweep("codec=none", "data.holdout=0", "data.holdout=128", code=1)
        CHROME.size(390, 800)
        CHROME.open(self.folder / "report.html")
        self.assertIn("cannot be held out of 128", CHROME.text("#problems"))
        self.assertLessEqual(CHROME.run("return document.documentElement.scrollWidth"), 390)
        self.assertEqual(CHROME.complaints(), [])


if __name__ == "__main__":
    browser.required()
    PROGRAM = sys.argv.pop(1)
    CHROME = browser.Browser()
    try:
        unittest.main()
    finally:
        CHROME.close()
