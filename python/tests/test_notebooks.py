"""Executes the notebooks of python/examples, in a temporary folder. CLEAVE_PROGRAMS or PROGRAMS is the folder of the programs."""

import os
import pathlib
import sys
import tempfile
import unittest

try:
    import nbclient
    import nbformat
except ImportError:
    nbclient = None

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@unittest.skipIf(nbclient is None, "nbclient is not installed")
class Notebooks(unittest.TestCase):
    def execute(self, name):
        """Returns the texts of the outputs, by cell. With UPDATE_NOTEBOOKS, keeps the outputs in the notebook."""
        os.environ.setdefault("CLEAVE_PROGRAMS", os.path.abspath(os.environ.get("PROGRAMS", "build/release/bin")))
        path = EXAMPLES / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        if os.environ.get("UPDATE_NOTEBOOKS"):
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # times
            nbformat.write(notebook, path)
        return ["".join(str(output.get("data", {}).get("text/plain", "")) + str(output.get("text", "")) for output in cell.get("outputs", []))
                for cell in notebook.cells]  # fmt: skip

    def test_photos(self):
        texts = self.execute("photos")
        self.assertTrue(any(text.startswith("['first', ") for text in texts))
        self.assertTrue(any("eval_top1" in text for text in texts))
        self.assertTrue(any("recall" in text for text in texts))

    def test_codecs(self):
        texts = self.execute("codecs")
        self.assertTrue(any("topk:ratio=0.1" in text and "best_top1" in text for text in texts))
        self.assertTrue(any("Figure" in text for text in texts))
        self.assertTrue(any("gradient/0" in text for text in texts))


if __name__ == "__main__":
    sys.exit(unittest.main())
