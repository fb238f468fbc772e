#!/usr/bin/env python3
"""Tests the arithmetic and the tables of configs/experiments/parallelism.py, with measurements that are made up."""
import contextlib
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "configs/experiments"))
import parallel_costs as costs  # noqa: E402
import parallelism  # noqa: E402

MB = 1e6
ALONE = {"batch": 8, "forward": 0.8, "backward": 1.6, "update": 0.1, "gradient_bytes": 100 * MB, "seconds": 2.5}


def part(forward, backward, output=0, update=0, saved=0, parameters=0):
    return {"forward_seconds": forward, "backward_seconds": backward, "update_seconds": update, "output_bytes": output,
            "output_bytes_per_sample": output, "saved_bytes_per_sample": saved, "parameter_bytes": parameters}  # fmt: skip


def profile(blocks):
    """A profile in which each block takes 10 ms per sample forward and 20 ms backward."""
    return {"blocks": [{"name": name, "output_bytes_per_sample": 1000, "parameter_bytes": 4 * MB, "saved_bytes_per_sample": 1 * MB,
                        "update_seconds": 0.001} for name in blocks],
            "sizes": [{"samples": 4, "forward_seconds": [0.04] * len(blocks), "backward_seconds": [0.08] * len(blocks), "loss_seconds": 0.01}]}


class ResidentMemory(unittest.TestCase):
    def test_resident(self):
        """A server computes a run in a process of its own, whose memory counts."""
        waits = "import sys; held = b'x' * {} * 2**20; print('ready', flush=True); sys.stdin.read()"
        server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits.format(200)!r}])"
        client = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {server!r}])"
        with subprocess.Popen([sys.executable, "-c", client], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            peaks = parallelism.resident_so_far(process.pid)
            process.stdin.close()
        own = peaks.pop(process.pid)
        (of_server,) = peaks.values()
        self.assertLess(own, 150 * 2**20)
        self.assertGreater(of_server, 200 * 2**20)


class DataParallel(unittest.TestCase):
    def test_ring_bytes(self):
        self.assertEqual(costs.ring_bytes(100, 1), 0)
        self.assertEqual(costs.ring_bytes(100, 2), 100)
        self.assertEqual(costs.ring_bytes(100, 4), 150)

    def test_a_step_without_a_link_is_the_computation(self):
        seconds = costs.data_parallel_seconds(ALONE, 2, 32, math.inf, 0, overlaps=False)
        self.assertAlmostEqual(seconds, 2 * (0.8 + 1.6) + 0.1)

    def test_only_the_excess_over_the_backward_counts_if_they_overlap(self):
        buckets = math.ceil(100 * MB / costs.BUCKET)
        for rate, latency in ((1e9, 0), (20 * MB, 0), (20 * MB, 0.01)):
            sending = 1.5 * 100 * MB / rate + buckets * 6 * latency
            apart = costs.data_parallel_seconds(ALONE, 4, 32, rate, latency, overlaps=False)
            together = costs.data_parallel_seconds(ALONE, 4, 32, rate, latency, overlaps=True)
            self.assertAlmostEqual(apart, 0.8 + 1.6 + sending + 0.1)
            self.assertAlmostEqual(together, 0.8 + max(1.6, sending) + 0.1)


class Profiles(unittest.TestCase):
    def test_times_are_interpolated_and_beyond_them_proportional(self):
        sizes = [{"samples": 2, "s": 1.0}, {"samples": 4, "s": 1.5}]
        found = [costs.at_size(sizes, samples, lambda size: size["s"]) for samples in (1, 2, 3, 4, 8)]
        self.assertEqual(found, [0.5, 1.0, 1.25, 1.5, 3.0])

    def test_the_loss_belongs_to_the_tail(self):
        head, tail = (costs.part_of(profile("abc"), *blocks, 8) for blocks in ((0, 2), (2, 3)))
        self.assertAlmostEqual(head["backward_seconds"], 2 * 0.16)
        self.assertAlmostEqual(tail["backward_seconds"], 0.16 + 0.02)
        self.assertEqual(head["output_bytes"], 8000)

    def test_scaling_changes_times_only(self):
        fast = costs.scaled({**profile("ab"), "codecs": {"none": {"encode_seconds_per_byte": 1.0}}}, 0.1)
        self.assertAlmostEqual(fast["sizes"][0]["forward_seconds"][1], 0.004)
        self.assertAlmostEqual(fast["codecs"]["none"]["encode_seconds_per_byte"], 0.1)
        self.assertEqual(fast["blocks"][0]["parameter_bytes"], 4 * MB)
        self.assertEqual(costs.scaled(ALONE, 0.5)["backward"], 0.8)


class Memory(unittest.TestCase):
    PARTS = [part(0, 0, 7, saved=5, parameters=10), part(0, 0, 3, saved=50, parameters=100), part(0, 0, 1, saved=2, parameters=20)]

    def test_data_parallel_has_the_whole_model_and_its_buckets(self):
        self.assertEqual(costs.data_parallel_memory(self.PARTS, 1, 16), 130 * 4 + 57 * 16)

    def test_a_pipeline_keeps_the_micro_batches_in_flight(self):
        self.assertEqual(costs.pipeline_memory(self.PARTS, 1, 8, 4, recompute=False), [30 * 3 + 5 * 32 + 2 * 8, 300 + 50 * 32])

    def test_recompute_keeps_only_the_inputs(self):
        self.assertEqual(costs.pipeline_memory(self.PARTS, 1, 8, 4, recompute=True), [30 * 3 + 5 * 8 + 2 * 8, 300 + 7 * 32 + 50 * 8])


class Plans(unittest.TestCase):
    """The published profiles, with plans that are made up."""

    def setUp(self):
        self.addCleanup(setattr, parallelism, "plan_workers", parallelism.plan_workers)
        parallelism.plan_workers = self.plan
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in parallelism.PROFILES:
            pathlib.Path(folder.name, name + ".txt").touch()
        self.rows = parallelism.plans_of_profiles(None, folder.name)

    def plan(self, options, path, workers, cluster, *more):
        number = math.prod(int(each) for each in workers.split("x"))
        configuration = "straight" if more or number == 4 else f"{number - 1}-1"
        return {"configuration": configuration, "workers": number, "speed_up": 1.5 if more else 2.0, "bytes_per_batch": 3 * MB,
                "stages": [{"layers": 15}], "data_parallel": {"bytes_per_batch": 30 * MB}}  # fmt: skip

    def test_there_is_a_row_for_each_published_configuration(self):
        self.assertEqual(len(self.rows), 12)
        first = self.rows[0]
        self.assertEqual((first["model"], first["topology"], first["cluster"]), ("vgg16", "4x4", "A"))
        self.assertEqual((first["published"], first["published_speed_up"]), ("15-1", 5.28))

    def test_a_straight_pipeline_is_predicted_where_the_plan_is_another_one(self):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in parallelism.plans_table(self.rows).splitlines()[2:]]
        found = {(line[0], line[1]): line[3:] for line in lines}
        self.assertEqual(found["vgg16", "4x4 A"], ["15-1", "5.28", "2.00", "2.00", "5.28"])
        self.assertEqual(found["gnmt", "3x4 A"], ["11-1", "2.95", "2.00", "1.50", "2.95"])
        self.assertEqual(found["gnmt_large", "4x4 A"][-2], "")  # 15 layers cannot use 16 workers
        self.assertEqual(found["gnmt", "2x8 B"], ["15-1", "1.00", "2.00", "1.00", "1.00"])  # published: data parallel

    def test_bytes_are_those_of_the_first_cluster(self):
        rows = {row["model"]: row for row in parallelism.bytes_of_profiles(self.rows)}
        self.assertEqual(list(rows), list(parallelism.PROFILES))
        self.assertEqual((rows["gnmt"]["devices"], rows["gnmt"]["batch"], rows["gnmt"]["partition"]), (4, 128, "straight"))
        self.assertAlmostEqual(rows["vgg16"]["pipeline_bytes"], 3 * MB / 64)
        self.assertAlmostEqual(rows["vgg16"]["ratio"], 0.1)


class FakeLab(parallelism.Lab):
    """All programs have the same made-up figures."""

    def profile(self, model, cuts):
        return profile([*cuts, "(rest)"] if parallelism.MODELS[model].exported else [f"block {n}" for n in range(24)])

    def alone(self, model):
        return ALONE

    def simulate(self, row, speed):
        return 10 / speed

    def plan(self, row):
        return {"parts": [{"parameter_bytes": 100 * MB}] * 2, "step": {"up_bytes": 3 * MB * row.batch, "down_bytes": 1 * MB * row.batch}}

    def pipeline(self, row, steps):
        return {"seconds": 8.0, "steps": steps, "peak_bytes": [1 << 30, 2 << 30]}

    def data_parallel(self, row, steps):
        return {"seconds": 4.0, "steps": steps, "peak_bytes": [3 << 30] * row.devices}


class Tables(unittest.TestCase):
    busy = 0.1  # cores

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(setattr, parallelism, "Lab", parallelism.Lab)
        parallelism.Lab = FakeLab
        self.said = []
        for name, value in (("available_memory", lambda: 1 << 40), ("busy_cores", lambda: self.busy), ("say", self.said.append)):
            self.addCleanup(setattr, parallelism, name, getattr(parallelism, name))
            setattr(parallelism, name, value)
        self.addCleanup(setattr, os, "sched_getaffinity", os.sched_getaffinity)
        os.sched_getaffinity = lambda process: {0, 1}
        self.addCleanup(os.environ.update, {name: os.environ.pop(name) for name in ["CLEAVE_PIPEDREAM"] if name in os.environ})

    def compare(self, *arguments):
        return parallelism.compare(parallelism.parse(["--folder", self.folder, *arguments]))

    def rows(self, found, **values):
        return [row for row in found["rows"] if all(row[name] == value for name, value in values.items())]

    def test_a_machine_with_two_cores_measures_two_devices(self):
        found = self.compare("--only", "mobilenet_v2")
        self.assertEqual(len(found["rows"]), 7)
        for row in found["rows"]:
            self.assertEqual("measured" in row, row["devices"] == 2, row)
        parallel, pipeline = self.rows(found, method="data parallel")[0], self.rows(found, cuts="f4l3")[0]
        self.assertEqual((parallel["speed_up"], parallel["speed_up_is"]), (1, "measured"))
        self.assertEqual((pipeline["speed_up"], pipeline["speed_up_is"]), (0.5, "measured"))
        self.assertAlmostEqual(pipeline["published_speed_up"], 0.85, delta=0.005)
        four = self.rows(found, devices=4, method="pipeline")[0]
        self.assertEqual(four["speed_up_is"], "predicted")
        self.assertAlmostEqual(four["speed_up"], 25.6 / self.rows(found, devices=2)[0]["predicted"]["samples_per_second"])

    def test_measurements_are_kept(self):
        self.compare("--only", "mobilenet_v2")
        self.addCleanup(setattr, FakeLab, "pipeline", FakeLab.pipeline)
        FakeLab.pipeline = lambda *arguments: self.fail("measured again")
        self.assertIn("measured", self.rows(self.compare("--only", "mobilenet_v2", "--table"), cuts="f2l2")[0])

    def test_other_work_during_a_measurement_is_reported(self):
        self.compare("--only", "mobilenet_v2", "--max-seconds", "15")
        self.assertFalse(any("unreliable" in text for text in self.said))
        self.busy = 1.5
        self.compare("--only", "mobilenet_v2")  # measures the pipelines too
        self.busy = 0.1
        found = self.compare("--only", "mobilenet_v2", "--table")
        self.assertEqual(found["busy_cores"], 1.5)
        self.assertIn("unreliable", self.said[-1])

    def test_rows_that_take_too_long_are_predicted(self):
        found = self.compare("--only", "mobilenet_v2", "--max-seconds", "15")
        self.assertFalse(any("measured" in row for row in self.rows(found, method="pipeline")))

    def test_predictions_for_other_devices_are_not_compared_with_measurements(self):
        self.compare("--only", "mobilenet_v2")
        found = self.compare("--only", "mobilenet_v2", "--device-speed", "10")
        self.assertFalse(any("measured" in row for row in found["rows"]))
        self.assertAlmostEqual(self.rows(found, cuts="f4l3")[0]["predicted"]["samples_per_second"], 64)

    def test_rows_without_memory_are_marked(self):
        # The whole model: 12 MB of parameters and 3 MB per sample. 4096 samples on 4 devices need 3.1 GB, in the pipeline far less.
        found = self.compare("--only", "resnet101", "--memory-gib", "2")
        out = [(row["method"], row["devices"], row["batch"]) for row in self.rows(found, out_of_memory=True)]
        self.assertEqual(out, [("data parallel", 2, 4096), ("data parallel", 4, 4096)])
        for row in self.rows(found, out_of_memory=True):
            self.assertNotIn("predicted", row)
            self.assertNotIn("speed_up", row)
        self.assertIn("out of memory", parallelism.speed_table(found["rows"]))

    def test_bytes_per_sample(self):
        found = self.compare("--only", "bytes")
        self.assertEqual(found["rows"], [])
        row = next(row for row in found["bytes"] if row["model"] == "roberta_base" and row["devices"] == 2)
        self.assertEqual(row["pipeline_bytes"], 4 * MB)
        self.assertEqual(row["data_parallel_bytes"], 200 * MB / 16)
        self.assertAlmostEqual(row["ratio"], 0.32)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            parallelism.print_tables(json.loads(json.dumps(found)))
        self.assertIn("for 0 of 3 models: none.", printed.getvalue())

    def test_everything_is_printed(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            parallelism.print_tables(self.compare())
        lines = printed.getvalue().splitlines()
        self.assertEqual(sum(line.startswith(("| data parallel", "| pipeline")) for line in lines), len(parallelism.ROWS))


class Wrong(unittest.TestCase):
    def test_wrong_use_is_refused(self):
        for arguments in (["--rate", "fast"], ["--rate", "0bit/s"], ["--latency", "5"], ["--device-speed", "0"], ["--only", "vgg"]):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                parallelism.parse(arguments)
            self.assertEqual(ended.exception.code, 2, arguments)

    def test_a_failed_program_is_named_with_its_error(self):
        with self.assertRaises(parallelism.Failure) as failed:
            parallelism.run([sys.executable, "-c", "import sys; sys.exit('no such model')"], "the measurement")
        self.assertIn("the measurement failed with exit code 1:\nno such model", str(failed.exception))
        self.assertEqual(failed.exception.code, 1)

    def test_missing_programs_are_wrong_use(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(parallelism.Failure) as failed:
            parallelism.check_requirements(parallelism.parse(["--programs", folder, "--table"]))
        self.assertEqual(failed.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
