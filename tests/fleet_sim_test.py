#!/usr/bin/env python3
"""Tests scripts/fleet_sim.py against cases whose results are known, and the table in docs/fleet.md."""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import fleet_sim  # noqa: E402

# (clients, --client-seconds, --body-seconds, median seconds of a step)
REAL_STEPS = [(1, 0.2, 0.2, 0.403), (4, 0.2, 0.2, 0.803), (8, 0.2, 0.2, 1.605), (12, 0.2, 0.04, 0.485), (4, 0.04, 0.04, 0.162)]


def simulate(servers, *arguments):
    return fleet_sim.simulate(servers, fleet_sim.parse(["--warm-up", "20", "--seconds", "50", *arguments]))


class FleetSim(unittest.TestCase):
    def test_a_client_alone_takes_the_sum_of_its_times(self):
        row = simulate(1, "--clients", "1", "--jitter", "0", "--client-seconds", "1", "--body-seconds", "0.25", "--latency", "0.125")
        self.assertAlmostEqual(row["median_seconds"], 1 + 0.25 + 4 * 0.125)
        self.assertAlmostEqual(row["mean_busy"], 0.25 / 1.75, delta=0.01)

    def test_a_full_server_is_always_busy(self):
        row = simulate(1, "--clients", "100", "--client-seconds", "1", "--body-seconds", "0.05", "--jitter", "0", "--latency", "0")
        self.assertAlmostEqual(row["median_seconds"], 100 * 0.05, delta=0.01)
        self.assertAlmostEqual(row["mean_busy"], 1, delta=0.01)

    def test_the_real_server_takes_as_long(self):
        """Against the medians of real programs whose configuration sets `wait`: docs/fleet.md."""
        for clients, client_seconds, body_seconds, measured in REAL_STEPS:
            row = simulate(1, "--clients", str(clients), "--client-seconds", str(client_seconds), "--body-seconds", str(body_seconds),
                           "--latency", "0.0005", "--jitter", "0.02")  # fmt: skip
            self.assertAlmostEqual(row["median_seconds"], measured, delta=0.06 * measured)

    def test_a_balancer_keeps_a_client_at_its_server(self):
        load = [3, 2, 5, 0]
        self.assertEqual(fleet_sim.choose_server("hash", 17, load), fleet_sim.choose_server("hash", 17, [0, 0, 0, 9]))
        self.assertEqual(fleet_sim.choose_server("least", 17, load), 3)

    def test_every_client_has_one_server(self):
        for servers in (1, 3, 16):
            self.assertEqual(sum(fleet_sim.balance("hash", 1000, servers)), 1000)
            load = fleet_sim.balance("least", 1000, servers)
            self.assertLessEqual(max(load) - min(load), 1)

    def test_a_server_refuses_clients_beyond_its_sessions(self):
        self.assertEqual(simulate(2, "--clients", "100", "--balancer", "least", "--sessions", "30")["refused"], 40)

    def test_the_result_repeats(self):
        self.assertEqual(simulate(4, "--clients", "50"), simulate(4, "--clients", "50"))

    def test_the_page_has_the_table_that_its_command_prints(self):
        text = (ROOT / "docs/fleet.md").read_text()
        found = re.findall(r"^(scripts/fleet_sim\.py.*)\n```\n\n((?:\|.*\n)+)", text, re.M)
        self.assertTrue(found)
        for command, table in found:
            printed = subprocess.run([sys.executable, ROOT / command.split()[0], *command.split()[1:]], check=True, capture_output=True,
                                     text=True).stdout  # fmt: skip
            self.assertEqual(printed, table, command)


if __name__ == "__main__":
    unittest.main()
