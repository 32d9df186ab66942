"""A notebook draws a paper's figure from the lab's own runs by the lab's own rule. Tests of marline-papers
(raiciu2012/curves.rs) check that the experiment file equals the paper's, and that the seeds are the published
ones."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("MARLINE_PROGRAM")


def notebook(seeds: int, seconds: int) -> dict[str, Any]:
    """The variables of the notebook's cells after runs with this number of seeds and seconds."""
    small = {"MARLINE_SOURCE": str(ROOT), "MARLINE_SEEDS": str(seeds), "MARLINE_SECONDS": str(seconds)}
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads((ROOT / "examples/python/figure_of_a_paper.ipynb").read_text())["cells"]
    said = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with mock.patch.dict(os.environ, small), said[0], said[1]:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    return names


class Figure(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.names = notebook(seeds=1, seconds=12)

    @unittest.skipUnless(PROGRAM, "SKIPPED: MARLINE_PROGRAM does not name the program")
    def test_the_latencies_are_those_of_the_program(self) -> None:
        names = self.names
        seed = names["SEEDS"][0]
        text = (ROOT / "scenarios/block-latency.toml").read_text().replace('lasts = "40s"', 'lasts = "12s"')
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "figure.toml")
            file.write_text(f"seed = {seed}\n{text}")
            command = [str(PROGRAM), "run", str(file), "--seeds", "1", "--out", place]
            subprocess.run(command, capture_output=True, check=True)
            with Path(place, "messages.csv").open(newline="") as table:
                rows = [row for row in csv.DictReader(table) if row["counted"] == "1"]
        theirs: dict[str, list[float]] = {}
        for row in rows:
            theirs.setdefault(row["variant"], []).append(float(row["latency_ms"]))
        self.assertEqual(len(theirs), 4)
        self.assertEqual({name: runs[seed] for name, runs in names["latencies"].items()}, theirs)

    def test_a_line_is_smoothed_as_the_lab_does(self) -> None:
        # The numbers in the tests of density.rs for the same values.
        at, share = self.names["line"]([[300.0 + number for number in range(500)]] * 2)
        self.assertEqual((at[0], at[1] - at[0]), (2.5, 5.0))
        for place, wanted in [(60, 0.021670029), (100, 0.041817229), (150, 0.033759830)]:
            self.assertAlmostEqual(share[place], wanted, places=8)


if __name__ == "__main__":
    unittest.main()
