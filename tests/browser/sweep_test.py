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
