#!/usr/bin/env python3
"""Tests the pages of `cleave-client report` in a browser: the charts' numbers against the CSV
files, zoom, several runs, dark mode, phone size, damaged files, a million rows, and the live
page."""
import csv
import hashlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import browser
import runs

PROGRAM = None  # cleave-client
CHROME = None
KNOWN_IDS = ("loss", "metric", "learning-rate", "gradient-norm", "step-time", "client-split", "server-split", "bandwidth", "transfers", "rate-distribution",
             "transfer-time", "latency-distribution", "round-trip", "delivery", "retransmits", "snr")  # fmt: skip


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def report(*arguments, code=0):
    ended = subprocess.run([PROGRAM, "report", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == code, ended.stderr
    return ended


def column(panel, label):
    """[(x, mean)] of a line; for bands, their mean."""
    i = panel["labels"].index(label) + 1
    return [(row[0], row[i][1] if isinstance(row[i], list) else row[i]) for row in panel["rows"] if row[i] is not None]


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="cleave-browser-")
        self.folder = pathlib.Path(self.temporary.name)
        CHROME.size(1280, 900)
        CHROME.dark(False)
        CHROME.complaints()

    def tearDown(self):
        self.temporary.cleanup()

    def run_folder(self, place="run", **options):
        run = runs.Run(self.folder / place, **options)
        self.addCleanup(run.close)
        return run

    def show(self, *arguments):
        page = self.folder / "page.html"
        report(*arguments, "--output", page)
        CHROME.open(page)
        self.assertEqual(CHROME.complaints(), [])
        return CHROME.panels()

    def close(self, one, other, part=1e-4):
        self.assertAlmostEqual(one, other, delta=part * abs(other) + 1e-12)


class OneRun(Case):
    def test_charts_have_the_numbers_of_the_files(self):
        run = self.run_folder().whole(200)
        panels = self.show(run.folder)
        self.assertEqual(set(panels), set(KNOWN_IDS))
        for chart in KNOWN_IDS:
            self.assertTrue(CHROME.is_drawn(chart), chart)
        CHROME.run("document.getElementById('by-step').click()")
        panels = CHROME.panels()
        steps = [row for row in rows_of(run.folder / "steps.csv") if row["phase"] == "train"]
        loss = column(panels["loss"], "training")
        self.assertEqual([x for x, _ in loss], [float(row["step"]) for row in steps])
        for (_, shown), row in zip(loss, steps):
            self.close(shown, float(row["loss"]))
        self.assertEqual([round(shown, 6) for _, shown in column(panels["gradient-norm"], "gradient norm")][:3], [3, 2.5, 2.333330])
        self.assertEqual(column(panels["learning-rate"], "learning rate")[9], (10, 0.01))
        for _, shown in column(panels["step-time"], "bound (estimate)"):
            self.close(shown, 0.04)
        self.assertEqual(column(panels["metric"], "evaluation"), [(200, 0.9)])
        # The four parts add up to the step.
        split = {part: column(panels["client-split"], part) for part in ("compute", "codec", "wire", "waiting")}
        for at in range(len(steps)):
            self.close(sum(line[at][1] for line in split.values()), 0.05)
        self.close(split["compute"][0][1], 0.010)
        self.close(split["codec"][0][1], 0.003)
        self.close(split["wire"][0][1], 2 * (runs.RAW // 4 + runs.HEAD) / run.rate)
        self.close(column(panels["server-split"], "compute")[0][1], 0.023)
        self.assertEqual({value for _, value in column(panels["snr"], "gradient/0")}, {33})

    def test_each_server_has_its_own_charts(self):
        run = self.run_folder().whole(20)
        second = shutil.copytree(run.server, run.folder / "server-2" / "local" / (run.server.name + "-2"))
        for file in second.glob("*.csv"):
            file.write_text(file.read_text().replace(f",{run.server.name},", f",{run.server.name}-2,"))
        self.show(run.folder)
        panels = CHROME.panels()
        for name in ("server-split", "server2-split"):
            self.assertTrue(CHROME.is_drawn(name))
            self.close(column(panels[name], "compute")[0][1], 0.023)
        self.assertIn("The step of server 2", CHROME.text("#chart-server2-split"))
        for line in ("client", "server 1", "server 2"):
            self.assertGreater(len(column(panels["round-trip"], line)), 2)
        self.assertIn("Server 2", CHROME.text("#server2_environment-1"))

    def test_without_the_servers_folder_its_step_comes_from_the_client(self):
        run = self.run_folder().whole(60)
        shutil.rmtree(run.folder / "server")
        panels = self.show(run.folder)
        self.assertTrue(CHROME.is_drawn("server-split"))
        self.close(column(panels["server-split"], "compute")[0][1], 0.022)  # without the server's update
        self.assertIn("Drawn from the client’s rows", CHROME.text("#chart-server-split .note"))
        self.assertTrue(CHROME.run("return document.getElementById('problems').hidden"), CHROME.text("#problems"))
        self.show(self.run_folder("both").whole(60).folder)
        self.assertNotIn("client’s rows", CHROME.text("#chart-server-split .note"))

    def test_an_outlier_step_does_not_flatten_the_chart(self):
        run = self.run_folder(step_seconds=3)
        run.train(1)
        run.step_seconds = 0.05
        run.whole(100)
        self.show(run.folder)
        for chart in ("step-time", "client-split", "server-split"):
            top = CHROME.run("return cleaveReport.panels().find((one) => one.spec.id === arguments[0]).graph.yAxisRange()[1]", chart)
            self.assertGreater(top, 0.05)
            self.assertLess(top, 0.1)
            self.assertIn("1 point is beyond the top, up to 3.00 s", CHROME.text(f"#chart-{chart} .note"))
        self.show(self.run_folder("even").whole(100).folder)
        self.assertNotIn("beyond", CHROME.text("#chart-step-time .note"))

    def test_bandwidth_is_bytes_per_second(self):
        run = self.run_folder().whole(200)
        panels = self.show(run.folder)
        transfers = rows_of(run.folder / "transfers.csv")
        up = sum(float(row["wire_bytes"]) for row in transfers if row["role"] == "send")
        self.close(sum(rate for _, rate in column(panels["bandwidth"], "up")), up)  # every bucket is 1 s wide
        for label, rate in (("up", run.rate), ("down", 2 * run.rate)):
            points = column(panels["transfers"], label)
            self.assertGreater(len(points), 100)
            for _, value in points:
                self.close(10**value, rate, 1e-3)  # the chart is logarithmic
        shares = column(panels["rate-distribution"], "up")
        self.close(sum(share for _, share in shares), 1)

    def test_headline_and_tables(self):
        run = self.run_folder().whole(200)
        self.show(run.folder)
        self.assertIn("90.0 %", CHROME.text("#tile-metric"))
        self.assertIn("best 90.0 % in epoch 1", CHROME.text("#tile-metric"))
        self.assertIn("200 steps", CHROME.text("#tile-time"))
        self.assertIn("samples/s", CHROME.text("#tile-time"))
        self.assertIn("1.25 ×", CHROME.text("#tile-bound"))
        self.assertIn("uplink", CHROME.text("#bottleneck"))
        self.assertEqual(runs.ADVICE.capitalize(), CHROME.text("#advice"))
        ratio = (runs.RAW // 4 + runs.HEAD) / runs.RAW
        self.assertIn(f"{ratio:.3f}", CHROME.text("#tile-ratio"))
        self.assertIn("activation/0", CHROME.text("#flows-1"))
        self.assertIn(f"{ratio:.4f}", CHROME.text("#flows-1"))
        self.assertIn("train.batch", CHROME.text("#config-1"))
        self.assertIn("2.11.0", CHROME.text("#server_environment-1"))
        self.assertEqual(CHROME.text("#state"), "finished")
        self.assertTrue(CHROME.run("return document.getElementById('problems').hidden"), CHROME.text("#problems"))

    def test_the_kept_model(self):
        run = self.run_folder().whole(50)
        (run.folder / "summary.json").write_text(json.dumps({"kept": {"metric": "matthews", "value": 0.61, "epoch": 3, "model": "m"}}))
        self.show(run.folder)
        self.assertIn("kept: epoch 3 with matthews correlation 0.6100", CHROME.text("#tile-metric"))

    def test_resumes_and_reconnects(self):
        self.show(self.run_folder("undisturbed").whole(50).folder)
        self.assertIsNone(CHROME.run("return document.getElementById('interruptions')"))
        run = self.run_folder()
        run.train(40)
        run.reconnect()
        run.train(40)
        run.resume(60)
        run.train(40)
        self.show(run.folder)
        self.assertIn("1 resume (20 steps redone), 1 reconnect.", CHROME.text("#interruptions"))
        self.assertTrue(CHROME.run("return document.getElementById('problems').hidden"), CHROME.text("#problems"))
        marks = "return cleaveReport.panels().find((one) => one.spec.id === arguments[0]).marks.map((one) => [one.x, one.isSolid])"
        self.assertEqual(CHROME.run(marks, "bandwidth"), [[2.15, False], [5.1, True]])
        # The pause before the resume, from 4.1 s to 5.1 s, has no line and no area.
        drawn = """
            const graph = cleaveReport.panels().find((one) => one.spec.id === arguments[0]).graph, area = graph.getArea();
            const { data, width } = graph.hidden_ctx_.getImageData(0, area.y, area.x + area.w, area.h);
            return arguments[1].map((x) => {
              let drawn = 0;
              for (let y = 0; y < area.h; ++y) {
                const at = 4 * (y * width + Math.round(graph.toDomXCoord(x))), [red, green, blue, alpha] = data.slice(at, at + 4);
                drawn += alpha > 0 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;  // the grid is grey
              }
              return drawn;
            })"""
        for chart in ("learning-rate", "step-time", "client-split", "server-split", "bandwidth"):
            before, within, after = CHROME.run(drawn, chart, [3.5, 4.6, 6.6])
            self.assertGreater(before, 0, chart)
            self.assertLessEqual(within, 3 if chart.endswith("split") else 0, chart)
            self.assertGreater(after, 0, chart)
        rows = CHROME.run("return cleaveReport.panels().find((one) => one.spec.id === 'bandwidth').csv().map((row) => row[0])")
        self.assertFalse([x for x in rows[1:] if 4.1 < x < 5.1], rows)
        CHROME.run("document.getElementById('by-step').click()")
        self.assertEqual(CHROME.run(marks, "loss"), [[41, False], [60, True]])
        self.assertEqual(CHROME.run(marks, "client-split"), [[41, False], [60, True]])
        self.assertEqual(CHROME.run(marks, "rate-distribution"), [])
        # A line is drawn from the top of the chart to its bottom, with a gap only if it is dashed.
        drawn = CHROME.run("""
            const graph = cleaveReport.panels().find((one) => one.spec.id === 'loss').graph, area = graph.getArea();
            const { data, width } = graph.hidden_ctx_.getImageData(0, area.y, area.x + area.w, area.h);
            const column = (x) => {
              let drawn = 0;
              for (let y = 0; y < area.h; ++y) drawn += data[4 * (y * width + Math.round(graph.toDomXCoord(x))) + 3] > 0;
              return drawn / area.h;
            };
            return [column(20), column(41), column(60)]""")
        self.assertLess(drawn[0], 0.3)
        self.assertGreater(drawn[1], 0.4)
        self.assertLess(drawn[1], 0.8)
        self.assertGreater(drawn[2], 0.95)
        # Once the run has ended, the counts are those that `train` printed.
        run.end()
        (run.folder / "summary.json").write_text(json.dumps({"reconnects": 3, "offline_seconds": 1.25, "resumes": 2, "steps_redone": 24}))
        self.show(run.folder)
        self.assertIn("2 resumes (24 steps redone), 3 reconnects (1.25 s without a connection).", CHROME.text("#interruptions"))
        self.show(run.folder, self.folder / "undisturbed")
        compared = CHROME.run("return [...document.querySelectorAll('#compared tbody tr')].map((row) => row.textContent)")
        for text in ("Resumes2 0 ", "Steps redone24 0 ", "Reconnects3 0 ", "Time without a connection1.25 s –"):
            self.assertTrue(any(row.startswith(text) for row in compared), (text, compared))
        self.assertEqual(CHROME.complaints(), [])

    def test_who_leaves_and_joins_a_cohort_is_marked(self):
        run = self.run_folder()
        run.train(40)
        run.resume(30)
        run.train(20)
        run.resume(50)
        run.train(40)
        everybody, attendance = [0, 1, 2], []
        for step, present in ((1, everybody), (31, [0, 1]), (51, everybody)):
            attendance.append({"first_step": step, "evaluated": 0, "present": present})
        cohort = {"id": "lungs", "members": ["north", "south", "west"], "train_samples": [3, 3, 3], "attendance": attendance, "member": "north"}
        (run.folder / "cohort.json").write_text(json.dumps(cohort))
        self.show(run.folder)
        CHROME.run("document.getElementById('by-step').click()")
        marks = "return cleaveReport.panels().find((one) => one.spec.id === 'loss').marks.map((one) => [one.x, one.text])"
        self.assertEqual(CHROME.run(marks), [[30, "\u2212west"], [50, "+west"]])
        self.assertIn("name the members", CHROME.text("#interruptions"))

    def test_changed_settings(self):
        self.show(self.run_folder("unchanged").whole(50).folder)
        self.assertIsNone(CHROME.run("return document.getElementById('changes')"))
        run = self.run_folder().whole(50)
        changes = [{"step": 40, "key": "train.epochs", "before": "1", "after": "2"}, {"step": 40, "key": "eval.batch", "before": "", "after": "<b>"}]
        (run.folder / "changes.json").write_text(json.dumps(changes))
        rows = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        expected = [["40", "train.epochs", "1", "2"], ["40", "eval.batch", "–", "<b>"]]
        self.show(run.folder)
        self.assertEqual(CHROME.run(rows, "#changes"), expected)
        self.assertIn("2 (1 until step 40)", CHROME.text("#config-1"))
        self.show(self.folder / "unchanged", run.folder)
        self.assertEqual(CHROME.run(rows, "#changes-2"), expected)
        self.assertIsNone(CHROME.run("return document.getElementById('changes-1')"))
        self.assertEqual(CHROME.complaints(), [])

    def test_the_evaluation_of_the_trained_model(self):
        run = self.run_folder().whole(50)
        self.show(run.folder)
        self.assertTrue(CHROME.run("return document.getElementById('evaluation').hidden"))
        names = ["cat", "dog<b>"]
        evaluation = {
            "model": "runs/a/model.safetensors", "samples": 10, "metrics": {"loss": 0.5, "top1": 0.7, "top5": None},
            "classes": [{"name": name, "samples": 5, "predicted": 5, "precision": 0.7, "recall": None, "f1": 0.7, "auroc": 0.75} for name in names],
            "confusion": [[4, 1], [2, 3]], "most_confused": [{"class": names[1], "predicted": names[0], "samples": 2}],
            "calibration": {"error": 0.12, "bins": [{"from": 0, "samples": 0, "confidence": 0, "accuracy": 0}, {"from": 0.5, "samples": 10, "confidence": 0.82, "accuracy": 0.7}]},
        }  # fmt: skip
        path = run.folder / "evaluation.json"
        path.write_text(json.dumps(evaluation))
        self.show(run.folder)
        self.assertIn("0.50000", CHROME.text("#evaluation-1"))
        self.assertIn("dog<b>570.0 %–70.0 %0.7500", CHROME.text("#classes-1"))
        self.assertIn("cat41", CHROME.text("#confusion-1"))
        self.assertIn("12.0 %", CHROME.text("#calibration-1"))
        self.assertEqual(CHROME.run("return document.querySelectorAll('#calibration-1 .bin').length"), 1)
        self.assertIn("Unknown weights.", CHROME.text("#evaluation-note-1"))
        # The last label of the calibration's axis is not cut off.
        inside = """const picture = document.querySelector('.calibration'), box = picture.getBoundingClientRect();
            return [...picture.querySelectorAll('text')].every((one) => one.getBoundingClientRect().right <= box.right)"""
        self.assertTrue(CHROME.run(inside))
        model = run.folder / "model.safetensors"
        model.write_bytes(b"weights")
        path.write_text(json.dumps({**evaluation, "weights_sha256": hashlib.sha256(b"weights").hexdigest(), "steps": 50}))
        self.show(run.folder)
        self.assertIn("model.safetensors, after 50 steps, epoch 1", CHROME.text("#evaluation-1"))
        self.assertIsNone(CHROME.run("return document.getElementById('evaluation-note-1')"))
        model.write_bytes(b"weights of a later epoch")
        self.show(run.folder)
        self.assertIn("An older model.", CHROME.text("#evaluation-note-1"))
        self.assertIn("Evaluation of an older model", CHROME.text("#evaluation-1"))
        self.assertIn("cleave-client eval " + str(run.folder), CHROME.text("#problems"))
        for damaged in ("{", '{"model": 1}', json.dumps({**evaluation, "confusion": [[1]]})):
            path.write_text(damaged)
            self.show(run.folder)
            self.assertIn("evaluation.json is damaged", CHROME.text("#problems"))

    def test_smoothing_is_that_of_tensorboard(self):
        run = self.run_folder().whole(100)
        self.show(run.folder)
        CHROME.run("document.getElementById('by-step').click()")
        CHROME.run("const one = document.getElementById('smoothing'); one.value = 0.9; one.dispatchEvent(new Event('input'))")
        self.assertEqual(CHROME.text("#smoothing-value"), "0.90")
        panels = CHROME.panels()
        mean, weight = 0, 0.9
        for (step, shown), raw in zip(column(panels["loss"], "training"), (run.loss(step) for step in range(1, 101))):
            mean = weight * mean + (1 - weight) * raw
            self.close(shown, mean / (1 - weight**step))
        self.assertEqual(column(panels["metric"], "evaluation"), [(100, 0.9)])  # not smoothed
        self.assertEqual(column(panels["learning-rate"], "learning rate")[9], (10, 0.01))
        head, *rows = panels["loss"]["csv"]
        self.assertEqual(head, ["training step", "training, mean", "training, min", "training, max", "training, smoothed", "evaluation"])
        self.close(rows[49][1], run.loss(50))
        self.close(rows[49][4], column(panels["loss"], "training")[49][1])
        self.assertTrue(CHROME.is_drawn("loss"))
        self.assertEqual(CHROME.complaints(), [])

    def test_a_logarithmic_scale(self):
        run = self.run_folder().whole(100)
        self.show(run.folder)
        CHROME.run("document.getElementById('by-step').click()")
        before = CHROME.panels()["loss"]["csv"]
        CHROME.run("document.querySelector('#chart-loss .log').click()")
        panels = CHROME.panels()
        for step, shown in column(panels["loss"], "training"):
            self.close(10**shown, run.loss(step))
        self.assertEqual(panels["loss"]["csv"], before)
        self.assertGreater(panels["learning-rate"]["rows"][0][1][1], 0)  # the other charts keep their scale
        ticks = CHROME.run("return [...document.querySelectorAll('#chart-loss .dygraph-axis-label-y')].map((one) => one.textContent)")
        self.assertIn("1", ticks)
        CHROME.run("document.querySelector('#chart-step-time .log').click()")  # constant values
        CHROME.run("document.querySelector('#chart-retransmits .log').click()")  # zeros
        CHROME.run("document.querySelector('#chart-loss .log').click()")
        self.close(column(CHROME.panels()["loss"], "training")[0][1], run.loss(1))
        self.assertIsNone(CHROME.run("return document.querySelector('#chart-client-split .log')"))
        self.assertEqual(CHROME.complaints(), [])

    def test_charts_have_keys(self):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        self.show(self.run_folder().whole(100).folder)
        CHROME.run("document.getElementById('by-step').click(); document.querySelector('#chart-loss .chart').focus()")

        def press(*keys):
            ActionChains(CHROME.driver).send_keys(*keys).perform()

        press(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertIn("step 3", CHROME.text("#chart-loss .legend"))
        self.assertIn("step 3", CHROME.text("#chart-gradient-norm .legend"))
        self.assertIn("step 3", CHROME.text("#spoken"))
        press(Keys.END, Keys.ARROW_LEFT)
        self.assertIn("step 99", CHROME.text("#chart-loss .legend"))
        press("+")
        low, high = CHROME.panels()["gradient-norm"]["range"]
        self.assertGreater(low, 50)
        self.assertGreater(high, 99)
        press(Keys.ESCAPE)
        self.assertLess(CHROME.panels()["gradient-norm"]["range"][0], 1)
        self.assertNotIn("step", CHROME.text("#chart-loss .legend .at") if CHROME.run("return document.querySelector('#chart-loss .at')") else "")
        self.assertEqual(CHROME.complaints(), [])

    def test_json_agrees_with_the_files(self):
        run = self.run_folder().whole(50)
        summary = json.loads(report(run.folder, "--json").stdout)
        self.assertTrue((run.folder / "report.html").exists())
        headline = summary["runs"][0]["headline"]
        transfers = rows_of(run.folder / "transfers.csv")
        control = sum(float(row["control_up_bytes"]) for row in rows_of(run.folder / "steps.csv"))
        self.close(headline["bytes_up"], control + sum(float(row["wire_bytes"]) for row in transfers if row["role"] == "send"))
        self.assertEqual(headline["steps"], 50)
        self.close(headline["images_per_second"], 128 / 0.05)

    def test_charts_share_zoom_and_pointer(self):
        self.show(self.run_folder().whole(200).folder)
        CHROME.run("""cleaveReport.panels()[0].graph.updateOptions({dateWindow: [2, 5]})""")
        for panel in CHROME.panels().values():
            if "distribution" in panel["id"] or panel["id"] == "transfer-time":
                continue
            self.assertEqual([round(x, 6) for x in panel["range"]], [2, 5], panel["id"])
        CHROME.run("document.getElementById('unzoom').click()")
        self.assertGreater(CHROME.panels()["loss"]["range"][1], 9)
        # Hovering over one chart shows values in the others.
        from selenium.webdriver.common.action_chains import ActionChains

        chart = CHROME.driver.find_element("css selector", "#chart-loss .chart")
        CHROME.run("arguments[0].scrollIntoView({block: 'center'})", chart)
        ActionChains(CHROME.driver).move_to_element(chart).perform()
        for other in ("loss", "delivery", "bandwidth"):
            CHROME.until(lambda: re.search(r"\d", CHROME.text(f"#chart-{other} .legend")), f"values of {other}")
        # Dragging zooms.
        ActionChains(CHROME.driver).move_to_element(chart).click_and_hold().move_by_offset(120, 0).release().perform()

        def ranges():
            return {tuple(panel["range"]) for panel in CHROME.panels().values() if panel["id"] in ("loss", "delivery", "retransmits")}

        CHROME.until(lambda: len(ranges()) == 1 and max(ranges())[1] < 9, "the same range in each chart")
        self.assertEqual(CHROME.complaints(), [])

    def test_every_chart_as_csv(self):
        panels = self.show(self.run_folder().whole(60).folder)
        for panel in panels.values():
            head, *rows = panel["csv"]
            self.assertGreater(len(rows), 0, panel["id"])
            self.assertTrue(all(len(row) == len(head) for row in rows), panel["id"])
        CHROME.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(self.folder)})
        CHROME.run("document.querySelector('#chart-step-time .csv').click()")
        path = self.folder / "cleave-step-time.csv"
        CHROME.until(path.exists, "the chart's file")
        rows = rows_of(path)
        self.assertEqual(len(rows), 60)
        self.close(float(rows[0]["step, max"]), 0.05)


class Looks(Case):
    def test_dark(self):
        folder = self.run_folder().whole(40).folder
        self.show(folder)
        background = "return getComputedStyle(document.body).backgroundColor"
        line = "return cleaveReport.panels()[0].graph.getColors()[0]"
        light = CHROME.run(background), CHROME.run(line)
        CHROME.dark(True)
        for script, before in zip((background, line), light):
            CHROME.until(lambda: CHROME.run(script) != before, f"another colour than {before}")
        red, green, blue = map(int, re.findall(r"\d+", CHROME.run(background))[:3])
        self.assertLess(red + green + blue, 120)
        self.assertEqual(CHROME.complaints(), [])

    def test_fits_a_phone_and_a_small_screen(self):
        folder = self.run_folder().whole(40).folder
        for width in (1280, 390):
            CHROME.size(width, 844)
            self.show(folder)
            self.assertEqual(CHROME.run("return document.documentElement.scrollWidth"), width)
            wide = CHROME.run("""return [...document.querySelectorAll('.card, .tile, .chart, .tools button, .legend')]
                .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.id || one.className)""")
            self.assertEqual(wide, [])

    def test_page_is_self_contained(self):
        self.show(self.run_folder().whole(20).folder)
        self.assertEqual(CHROME.run("return performance.getEntriesByType('resource').map((entry) => entry.name)"), [])
        page = (self.folder / "page.html").read_text()
        self.assertEqual(re.findall(r"""(?:src|href)=["']?https?:[^"'> ]*""", page), [])


class SeveralRuns(Case):
    def test_are_compared(self):
        one = self.run_folder("one", name="run-20260131-120000-aaaa", codec="none").whole(100, top1=0.8)
        two = self.run_folder("two", name="run-20260131-130000-bbbb", step_seconds=0.1).whole(60, top1=0.9)
        panels = self.show(one.folder, two.folder)
        # Each panel has one line per run, and all lines have the same x positions.
        loss = panels["loss-training"]
        self.assertEqual(loss["labels"], ["120000-aaaa", "130000-bbbb"])
        CHROME.run("document.getElementById('by-step').click()")
        loss = CHROME.panels()["loss-training"]
        self.assertEqual(len(column(loss, "120000-aaaa")), 100)
        self.assertEqual(column(loss, "130000-bbbb"), column(loss, "120000-aaaa")[:60])
        self.assertIn("client-split-2", panels)
        compared = CHROME.text("#compared")
        self.assertIn("80.0 %", compared)
        self.assertIn("+10.00 points", compared)  # from 0.8 to 0.9
        self.assertIn("+100 %", compared)  # the seconds per step
        self.assertIn("codec", CHROME.text("#different-config"))
        self.assertNotIn("train.batch", CHROME.text("#different-config"))
        CHROME.run("document.getElementById('reference-1').click()")
        self.assertIn("−10.00 points", CHROME.text("#compared"))
        self.assertEqual(CHROME.complaints(), [])

    def test_of_the_members_of_a_cohort_have_their_names(self):
        attendance = [{"first_step": 1, "evaluated": 0, "present": [0, 1]}, {"first_step": 31, "evaluated": 1, "present": [1]}]
        for name in ("north", "<b>"):
            run = self.run_folder(name.strip("<>"), name=f"run-{name.strip('<>')}").whole(60)
            cohort = {"id": "lungs", "members": ["north", "<b>"], "train_samples": [30, 1], "attendance": attendance, "member": name}
            (run.folder / "cohort.json").write_text(json.dumps(cohort))
        rows = "return [...document.querySelectorAll(arguments[0] + ' tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        expected = [["From step", "north (30 samples)", "<b> (1 sample)"], ["1", "takes part", "takes part"], ["31", "–", "takes part"]]
        self.show(self.folder / "north")
        self.assertEqual(CHROME.run(rows, "#cohort"), expected)
        panels = self.show(self.folder / "north", self.folder / "b")
        self.assertEqual(CHROME.run(rows, "#cohort-1"), expected)
        self.assertEqual(panels["loss-training"]["labels"], ["north", "<b>"])
        self.assertNotIn("not comparable", CHROME.text("#runs"))
        self.assertEqual(CHROME.complaints(), [])

    def test_the_list_of_runs_can_be_sorted(self):
        for name, step_seconds, top1 in (("run-a", 0.1, 0.8), ("run-b", 0.05, 0.9), ("run-c", 0.2, 0.7)):
            self.run_folder(name, name=name, step_seconds=step_seconds, codec="none" if name == "run-c" else "block:bits=8").whole(60, top1=top1)
        self.show(*(self.folder / name for name in ("run-a", "run-b", "run-c")))

        def names():
            return CHROME.run("return [...document.querySelectorAll('#runs tbody tr')].map((row) => row.querySelector('b').textContent)")

        def sort(column):
            CHROME.run("const one = document.getElementById('sort-' + arguments[0]); one.focus(); one.click()", column)
            self.assertEqual(CHROME.run("return document.activeElement.id"), "sort-" + column)
            return names()

        self.assertEqual(names(), ["a", "b", "c"])
        self.assertEqual(sort("metric"), ["c", "a", "b"])
        self.assertEqual(sort("metric"), ["b", "a", "c"])
        self.assertEqual(CHROME.run("return document.getElementById('sort-metric').parentNode.getAttribute('aria-sort')"), "descending")
        self.assertEqual(sort("seconds"), ["b", "a", "c"])
        self.assertEqual(sort("bytes")[2], "c")
        self.assertIn("2026-01-31 11:59:58", CHROME.text("#runs"))
        self.assertIn("Accuracy, best", CHROME.text("#runs"))
        # The reference is chosen by run, not by position.
        CHROME.run("document.getElementById('reference-2').click()")
        self.assertIn("differences from c", CHROME.text("#compared"))
        self.assertEqual(CHROME.complaints(), [])

    def test_only_comparable_runs_are_compared_in_colour(self):
        texts = ["model:\n  name: mlp\n  cuts: [1, 2]\n", "model:\n  name: mlp\n  cuts: [1, 3]\n", "model:\n  name: small_cnn\n  cuts: [1, 2]\n"]
        for i, text in enumerate(texts):
            self.run_folder(f"run-{i}", name=f"run-{i}", config=text, step_seconds=0.05 * (i + 1)).whole(60, top1=0.5 + i / 10)
        self.show(*(self.folder / f"run-{i}" for i in range(3)))
        seconds = CHROME.run("""return [...document.querySelectorAll('#compared tbody tr')]
            .find((row) => row.textContent.startsWith('Step time, mean')).innerHTML""")
        self.assertEqual(seconds.count('class="change bad"'), 1, seconds)
        self.assertIn('title="Not comparable: different model.name"', seconds)
        self.assertIn("not comparable: different model.name", CHROME.text("#runs"))
        self.assertEqual(CHROME.text("#runs").count("not comparable"), 1)

    def test_runs_with_different_metrics(self):
        one = self.run_folder("one", name="run-1").whole(60, top1=0.8)
        two = self.run_folder("two", name="run-2").whole(60, top1=0.9)
        for name in ("steps", "epochs"):
            path = two.folder / f"{name}.csv"
            path.write_text(path.read_text().replace("top1", "perplexity", 2))
        panels = self.show(one.folder, two.folder)
        self.assertNotIn("metric-training", panels)
        metric = CHROME.run("return document.querySelector('#compared tbody tr').textContent")
        self.assertIn("80.0 % (Accuracy)", metric)
        self.assertIn("0.9000 (Perplexity)", metric)
        self.assertNotIn("points", metric)
        self.assertIn("different main metric", CHROME.text("#runs"))

    def test_nine_runs_are_distinguishable(self):
        folders = [self.run_folder(f"run{i}", name=f"run-{i}").whole(30).folder for i in range(9)]
        panels = self.show(*folders)
        self.assertEqual(len(set(panels["loss-training"]["labels"])), 9)
        looks = CHROME.run("""const graph = cleaveReport.panels()[0].graph;
            return graph.getLabels().slice(1).map((name) => graph.getOption('color', name) + graph.getOption('strokePattern', name))""")
        self.assertEqual(len(set(looks)), 9)
        marks = CHROME.run("""return [...document.querySelectorAll('#chart-loss-training .swatch')].map((mark) => mark.style.background)""")
        self.assertEqual(len(set(marks)), 9)


class DamagedFiles(Case):
    def damaged(self, *texts):
        panels = self.show(self.folder / "run")
        for text in texts:
            self.assertIn(text, CHROME.text("#problems"))
        return panels

    def test_missing_files_are_named_and_the_rest_is_shown(self):
        run = self.run_folder().whole(60)
        for file in ("transfers.csv", "config.yaml"):
            (run.folder / file).unlink()
        panels = self.damaged("transfers.csv is missing", "config.yaml is missing")
        self.assertEqual(len(column(panels["loss"], "training")), 60)
        self.assertGreater(len(column(panels["bandwidth"], "up")), 2)  # from the server's file

    def test_truncated_rows_are_left_out(self):
        run = self.run_folder().whole(60)
        text = (run.folder / "steps.csv").read_text()
        (run.folder / "steps.csv").write_text(text[: len(text) - 200])
        panels = self.damaged("steps.csv ends with an incomplete line")
        self.assertGreaterEqual(len(column(panels["loss"], "training")), 58)

    def test_garbled_rows_are_counted(self):
        run = self.run_folder().whole(60)
        lines = (run.folder / "steps.csv").read_text().split("\n")
        lines[10] = "\x00\x01garbage,,,"
        lines[20] = lines[20].replace("train", '"tr<script>alert(1)</script>')
        lines[30] = lines[30].replace(",0.05,", ",x05,", 1)
        (run.folder / "steps.csv").write_text("\n".join(lines))
        (run.folder / "environment.json").write_text("{ not json")
        (run.folder / "config.yaml").write_text("codec: </script><script>alert(1)</script>\n")
        panels = self.damaged("steps.csv: 3 of 62 rows cannot be read", "environment.json cannot be read")
        self.assertEqual(len(column(panels["loss"], "training")), 57)
        self.assertIn("</script>", CHROME.text("#config-1"))

    def test_a_file_with_another_header_is_reported(self):
        run = self.run_folder().whole(60)
        (run.folder / "transfers.csv").write_text("a,b\n1,2\n")
        panels = self.damaged("transfers.csv: its first line is not this table's header")
        self.assertEqual(len(column(panels["loss"], "training")), 60)

    def test_a_folder_without_a_run_is_refused(self):
        ended = report(self.folder, code=2)
        self.assertIn("contains no run files", ended.stderr)


class ManyRows(Case):
    ROWS = 1_000_000

    def test_a_million_rows_open_quickly(self):
        run = self.run_folder().whole(20)
        path = run.folder / "transfers.csv"
        head, *lines = path.read_text().splitlines(keepends=True)
        times = [runs.utc(second) for second in range(3600)]
        with open(path, "w") as file:
            file.write(head)
            peak = ",1e-06,"  # one transfer is a thousand times as fast as the others
            for i in range(self.ROWS):
                line = lines[i % 4]
                line = times[i * 3600 // self.ROWS] + line[line.index(",") :]
                file.write(re.sub(r",0\.00\d+,0\.0005,", peak + "0.0005,", line) if i == 123_456 else line)
        page = self.folder / "page.html"
        begin = time.time()
        report(run.folder, "--output", page)
        written = time.time() - begin
        begin = time.time()
        CHROME.open(page)
        panels = CHROME.panels()
        opened = time.time() - begin
        size = page.stat().st_size
        print(f"{self.ROWS} rows ({path.stat().st_size >> 20} MiB): written in {written:.2f} s, {size >> 10} KiB, opened in {opened:.2f} s")
        self.assertLess(opened, 3)
        self.assertLess(size, 4 << 20)
        self.assertLess(len(panels["transfers"]["rows"]), 2500)
        peak = max(row[1 + j][2] for row in panels["transfers"]["rows"] for j in (0, 1) if row[1 + j])
        self.close(10**peak, (runs.RAW // 4 + runs.HEAD) / 1e-6, 1e-3)
        self.assertIn("Each point represents", CHROME.text("#sampling"))


    def test_a_hundred_thousand_steps_open_quickly(self):
        steps = 100_000
        run = self.run_folder().whole(20)
        path = run.folder / "steps.csv"
        head, first, *lines = path.read_text().splitlines(keepends=True)
        names = head.strip().split(",")
        cells = lines[0].strip().split(",")
        with open(path, "w") as file:
            file.write(head + first)
            for step in range(1, steps + 1):
                cells[names.index("time")] = runs.utc(0.05 * step)
                cells[names.index("step")] = str(step)
                cells[names.index("loss")] = f"{2.5 / step + 0.001 * (step % 7):.9g}"
                file.write(",".join(cells) + "\n")
        page = self.folder / "page.html"
        report(run.folder, "--output", page)
        begin = time.time()
        CHROME.open(page)
        self.assertEqual(CHROME.panels()["loss"]["id"], "loss")
        opened = time.time() - begin
        redrawn = CHROME.run("""const one = document.getElementById('smoothing'), begin = performance.now();
            one.value = 0.9; one.dispatchEvent(new Event('input')); return performance.now() - begin""") / 1000
        print(f"{steps} steps: {page.stat().st_size >> 10} KiB, opened in {opened:.2f} s, smoothed in {redrawn:.2f} s")
        self.assertLess(opened, 3)
        self.assertLess(redrawn, 1)
        self.assertLess(page.stat().st_size, 2 << 20)
        self.assertEqual(CHROME.complaints(), [])


class Live(Case):
    def serve(self, *arguments):
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def steps_shown(self):
        return CHROME.run("return cleaveReport.page() ? cleaveReport.page().runs[0].headline.steps || 0 : -1")

    def test_follows_a_run(self):
        run = self.run_folder(total=90)
        run.train(30)
        process = self.serve("report", run.folder, "--serve", "127.0.0.1:0")
        CHROME.open(process.stdout.readline().strip() + "/")
        CHROME.until(lambda: self.steps_shown() == 30, "the first steps")
        self.assertEqual(CHROME.text("#state"), "running")
        self.assertIn("33 %: step 30 of 90, epoch 1 of 2; about 0:03 left", CHROME.text("#progress"))  # 60 steps of 0.05 s
        CHROME.run("document.getElementById('by-step').click()")
        CHROME.run("cleaveReport.panels()[0].graph.updateOptions({dateWindow: [5, 20]})")
        # The file is rotated while the page is open.
        run.tables["client", "transfers"].file.close()
        (run.folder / "transfers.csv").rename(run.folder / "transfers.1.csv")
        run.tables["client", "transfers"] = runs.Table(run.folder, "transfers", runs.columns("transfers"))
        run.train(20)
        CHROME.until(lambda: self.steps_shown() == 50, "more steps")
        panels = CHROME.panels()
        self.assertEqual(len(column(panels["loss"], "training")), 50)
        self.assertEqual(panels["loss"]["range"], [5, 20])  # the zoom is kept
        tensors = CHROME.run("return cleaveReport.page().runs[0].flows.map((flow) => flow.transfers)")
        self.assertEqual(tensors, [50, 50, 50, 50])  # from both parts of the file
        run.evaluate(0.3, 0.95)
        run.end()
        CHROME.until(lambda: CHROME.text("#state") == "finished", "the end")
        self.assertIsNone(CHROME.run("return document.getElementById('progress')"))
        self.assertIn("95.0 %", CHROME.text("#tile-metric"))
        self.assertEqual(CHROME.complaints(), [])
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(10), 0)

    def test_follows_a_training_run(self):
        process = self.serve(
            "train", "--config", runs.ROOT / "configs/synthetic.yaml", "--run-dir", self.folder / "run", "--dashboard", "127.0.0.1:0",
            "--set", "data.train.size=256", "--set", "train.batch=32", "--set", "train.epochs=3", "--set", "threads={client: 1, server: 1}",
            "--set", "model={name: sleep, of: mlp, F1: 20, T3: 20, B1: 20, F2: 20, B2: 20}", "--set", "codec=block:bits=8")  # fmt: skip
        for line in process.stderr:
            if found := re.search(r"dashboard: open (\S+)", line):
                break
        CHROME.open(found[1])
        CHROME.until(lambda: self.steps_shown() > 0, "the first steps")
        self.assertEqual(CHROME.text("#state"), "running")
        CHROME.until(lambda: CHROME.text("#state") == "finished", "the end")
        self.assertEqual(self.steps_shown(), 24)
        self.assertIn("server-split", CHROME.panels())
        output = process.stdout.read()
        self.assertEqual(process.wait(30), 0)
        self.assertIn("cleave-client report ", output)

    def test_listens_on_loopback_only(self):
        run = self.run_folder().whole(10)
        ended = report(run.folder, "--serve", "0.0.0.0:0", code=2)
        self.assertIn("--anywhere", ended.stderr)


if __name__ == "__main__":
    browser.required()
    PROGRAM = sys.argv.pop(1)
    CHROME = browser.Browser()
    try:
        unittest.main()
    finally:
        CHROME.close()
