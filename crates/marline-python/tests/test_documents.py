"""What is told to readers runs: notebooks, the page, the examples, what stands in docstrings."""

from __future__ import annotations

import doctest
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import marline
import marline.gym

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/python"


class Documents(unittest.TestCase):
    def setUp(self) -> None:
        # Whatever they write is not the repository's.
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place.name)

    def test_notebooks_run_from_top_to_bottom(self) -> None:
        notebooks = sorted(EXAMPLES.glob("*.ipynb"))
        self.assertGreaterEqual(len(notebooks), 2)
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
        rows = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines()}
        self.assertEqual({name: row[0] for name, row in rows.items() if name in ("auto", "min-rtt")},
                         {"auto": "40", "min-rtt": "40"})
        self.assertLessEqual(int(rows["linucb"][0]), 40)
        # Trained again it is the same model.
        first = Path("linucb.npz").read_bytes()
        sys.path.insert(0, str(EXAMPLES))
        self.addCleanup(sys.path.remove, str(EXAMPLES))
        before, sys.argv = sys.argv, ["train.py", "--episodes", "3", "--messages", "20"]
        try:
            runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
        finally:
            sys.argv = before
        import numpy as np

        once, twice = np.load(io_bytes(first)), np.load("linucb.npz")
        np.testing.assert_array_equal(once["sums"], twice["sums"])


def io_bytes(content: bytes) -> object:
    """A file in memory."""
    import io

    return io.BytesIO(content)


if __name__ == "__main__":
    unittest.main()
