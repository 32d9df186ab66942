"""Runs all documented Python: notebooks, the page, the examples and docstrings."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

os.environ.setdefault("MPLBACKEND", "Agg")

import marline
import marline.gym
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/python"


def named(text: str) -> list[tuple[str, str]]:
    """The packages that a text installs with pip: each name, and its directory in the repository, if any."""
    found = []
    for arguments in re.findall(r"pip install((?: +(?:'[^']+'|[\w./-][\w./=>\[\]-]*))+)", text):
        for name in arguments.replace("'", "").split():
            found.append((name, name.partition("[")[0] if name.startswith("./") else ""))
    return found


class Documents(unittest.TestCase):
    def setUp(self) -> None:
        # Keep their files out of the repository and their output out of the test's.
        for said in (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())):
            self.enterContext(said)
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place.name)
        # Notebooks import the modules next to them, as in Jupyter, and train briefly.
        sys.path.insert(0, str(EXAMPLES))
        self.addCleanup(sys.path.remove, str(EXAMPLES))
        small = {"MARLINE_EPISODES": "12", "MARLINE_SOURCE": str(ROOT), "MARLINE_SEEDS": "1", "MARLINE_SECONDS": "6"}
        environment = mock.patch.dict(os.environ, small)
        environment.start()
        self.addCleanup(environment.stop)

    def test_notebooks_run_from_top_to_bottom(self) -> None:
        notebooks = sorted(EXAMPLES.glob("*.ipynb"))
        self.assertGreaterEqual(len(notebooks), 4)
        for notebook in notebooks:
            names: dict[str, object] = {"__name__": "__main__"}
            for cell in json.loads(notebook.read_text())["cells"]:
                self.assertFalse(cell.get("outputs"), f"{notebook.name} is kept without outputs")
                if cell["cell_type"] == "code":
                    source = compile("".join(cell["source"]), f"{notebook.name}:{cell['id']}", "exec")
                    with self.subTest(notebook=notebook.name, cell=cell["id"]):
                        exec(source, names)

    def test_the_page_runs(self) -> None:
        page = (ROOT / "docs/research/python.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        self.assertGreaterEqual(len(blocks), 4)
        names: dict[str, object] = {}
        for number, block in enumerate(blocks):
            exec(compile(block, f"python.md, block {number}", "exec"), names)

    def test_what_is_to_be_installed_is_there(self) -> None:
        told = [*EXAMPLES.glob("*"), *(ROOT / "lab/marline-python").rglob("python/marline/*.py")]
        told.append(ROOT / "docs/research/python.md")
        words = [(file.name, *found) for file in told if file.is_file() for found in named(file.read_text())]
        self.assertGreater(len(words), 8)
        for file, name, folder in words:
            # The package is not published; one with this name in a registry would be someone else's.
            self.assertNotRegex(name, r"^marline\b", file)
            self.assertTrue(not folder or (ROOT / folder).exists(), f"{file}: {folder}")

    def test_what_costs_are_measured_with_runs(self) -> None:
        for script, arguments, said in [
            ("speed.py", ["--envs", "2", "--seconds", "0.2"], r"\d+ steps of 10 ms per second of CPU time"),
            ("many.py", ["--runs", "100"], r"100 runs made: \d+ .*\n100 runs read: \d+ "),
        ]:
            ran = subprocess.run([sys.executable, EXAMPLES / script, *arguments], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertRegex(ran.stdout, said)

    def test_what_stands_in_docstrings_holds(self) -> None:
        for module in (marline, marline.gym):
            failed, tried = doctest.testmod(module)
            self.assertEqual(failed, 0)
            self.assertGreater(tried, 2)

    def test_a_scheduler_is_trained_and_evaluated(self) -> None:
        for script, arguments in [
            ("train.py", ["--episodes", "3", "--messages", "20"]),
            ("evaluate.py", ["--seeds", "2", "--messages", "20"]),
        ]:
            command = [sys.executable, str(EXAMPLES / script), *arguments]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr)
        words = [line.split() for line in ran.stdout.splitlines()]
        came = {row[0]: int(row[1]) for row in words if row[1].isdigit()}
        self.assertEqual(set(came), {"linucb", "auto", "min-rtt", "redundant"})
        self.assertEqual((came["auto"], came["min-rtt"]), (40, 40))
        self.assertEqual(came["linucb"], 40, "bad choices lose no messages")
        # Training again gives the same model.
        first = Path("linucb.npz").read_bytes()
        before, sys.argv = sys.argv, ["train.py", "--episodes", "3", "--messages", "20"]
        try:
            runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
        finally:
            sys.argv = before
        once, twice = np.load(io.BytesIO(first)), np.load("linucb.npz")
        np.testing.assert_array_equal(once["sums"], twice["sums"])


if __name__ == "__main__":
    unittest.main()
