"""The base class of tests that export models and run them with Cleave, and what they share.

GRAPH_RUNNER is the path of the program graph_runner.
"""

import json
import os
import struct
import subprocess
import tempfile
import unittest
import warnings

import torch

from cleave_split.safetensors_file import read_safetensors, write_safetensors

RUNNER = os.environ.get("GRAPH_RUNNER", "build/release/bin/graph_runner")


class GraphCase(unittest.TestCase):
    """A temporary folder for each test, in which the exported model is model.pt2."""

    def setUp(self):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_graph(self, inputs, *arguments):
        """Runs model.pt2 with graph_runner; returns the tensors that it writes."""
        write_safetensors(inputs, self.path("inputs.safetensors"))
        command = [RUNNER, self.path("model.pt2"), self.path("inputs.safetensors"), self.path("out.safetensors"), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return read_safetensors(self.path("out.safetensors"))
