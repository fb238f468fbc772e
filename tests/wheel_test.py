#!/usr/bin/env python3
"""Tests scripts/wheel.py: which versions of symbols a wheel may need, and how they are bound to older ones."""
import ctypes
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import wheel

# Needs std::condition_variable::wait(std::unique_lock<std::mutex>&) of libstdc++ 12 and, if the C library is new enough, hypot of glibc 2.35.
SOURCE = """
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
extern "C" double run(double x) {
  std::mutex mutex;
  std::condition_variable changed;
  bool isDone = false;
  std::thread other([&] { std::lock_guard lock(mutex); isDone = true; changed.notify_one(); });
  std::unique_lock lock(mutex);
  while (!isDone) changed.wait(lock);
  lock.unlock();
  other.join();
  return std::hypot(x, 4.0) + std::sin(0 * x);
}
"""


class Symbols(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def library(self, source):
        (self.folder / "source.cpp").write_text(source)
        library = self.folder / "library.so"
        subprocess.run(["c++", "-shared", "-fPIC", "-o", library, self.folder / "source.cpp"], check=True)
        return library

    def test_what_is_too_new(self):
        self.assertEqual(wheel.too_new({"GLIBC_2.34", "GLIBC_2.4", "GLIBCXX_3.4.29", "CXXABI_1.3.13", "GCC_3.0"}), [])
        newer = {"GLIBC_2.35", "GLIBCXX_3.4.30", "CXXABI_1.3.14", "GCC_12.0.0"}
        self.assertEqual(wheel.too_new(newer | {"GLIBC_2.17"}), sorted(newer))

    def test_symbols_are_bound_to_older_versions_and_work(self):
        library = self.library(SOURCE)
        before = set(wheel.too_new(wheel.needed_versions(library)))
        self.assertLessEqual(before, set(wheel.OLDER))
        self.assertTrue(before, "this compiler's library needs no newer version")
        wheel.bind_older(library)
        self.assertEqual(wheel.too_new(wheel.needed_versions(library)), [])
        run = ctypes.CDLL(str(library)).run
        run.argtypes, run.restype = [ctypes.c_double], ctypes.c_double
        self.assertEqual(run(3), 5)

    def test_other_symbols_stay(self):
        """A version is not renamed if a symbol that is not in the list needs it."""
        library = self.library(SOURCE)
        whole = dict(wheel.OLDER)
        self.addCleanup(wheel.OLDER.update, whole)
        for newest, (older, _) in whole.items():
            wheel.OLDER[newest] = (older, {"another"})
        before = library.read_bytes()
        wheel.bind_older(library)
        self.assertEqual(library.read_bytes(), before)

    def test_a_path_of_this_machine_is_refused(self):
        package = self.folder / "package"
        package.mkdir()
        (package / "text").write_text(f"{ROOT}/file")
        with self.assertRaisesRegex(wheel.WheelError, "text contains"):
            wheel.check(package)
        (package / "text").unlink()
        shutil.copy(self.library(SOURCE), package)
        with self.assertRaisesRegex(wheel.WheelError, "library.so needs"):
            wheel.check(package)


class Metadata(unittest.TestCase):
    def test_the_requirement_allows_the_versions_with_programs_only(self):
        project = {"name": "n", "version": "1", "description": "d", "license": {"text": "l"}, "requires-python": ">=3.9",
                   "optional-dependencies": {"pandas": ["pandas"]}}  # fmt: skip
        self.assertIn("Requires-Dist: torch>=2.11,<2.16,!=2.12.*,!=2.13.*\n", wheel.metadata(project, [(2, 11), (2, 14), (2, 15)]))
        self.assertIn("Requires-Dist: torch>=2.11,<2.12\n", wheel.metadata(project, [(2, 11)]))
        self.assertIn("Requires-Dist: pandas ; extra == 'pandas'\n", wheel.metadata(project, [(2, 11)]))


if __name__ == "__main__":
    unittest.main()
