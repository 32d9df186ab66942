"""Sweeps from Python: the program's tables, a resumed store, and pieces like those of a cluster."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

import marline
from marline import _native, _ray, _sweep
from support import Fastest, experiment

PROGRAM = os.environ.get("MARLINE_PROGRAM")
TABLES = ("messages.csv", "runs.csv", "sweep.csv")

FILE = """
[[path]]
name = "wifi"
link = "rate=20M,delay=10ms,loss=1%"
[[path]]
name = "lte"
link = "rate=10M,delay=40ms"
[workload]
kind = "bursts"
bytes = "20kB"
gap = "100ms"
count = 5
[[variant]]
name = "auto"
[[variant]]
name = "min-rtt"
scheduler = "min-rtt"
[sweep]
"path.lte.delay" = ["20ms", "80ms"]
"path.wifi.loss" = ["0", "5%"]
"""


def tables(place: Path) -> dict[str, bytes]:
    return {name: (place / name).read_bytes() for name in TABLES}


class Sweeps(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.file = self.place / "delays.toml"
        self.file.write_text(FILE)

    def swept(self, out: str, **more: object) -> dict[str, bytes]:
        swept = marline.sweep(self.file, seeds=3, store=self.place / out, **more)
        self.assertEqual((len(swept.rows), swept.failed), (1 + 4 * 2, 0))
        return tables(self.place / out)

    @unittest.skipUnless(PROGRAM, "SKIPPED: MARLINE_PROGRAM does not name the program")
    def test_tables_are_those_of_the_program_byte_for_byte(self) -> None:
        here = self.swept("here")
        command = [str(PROGRAM), "sweep", str(self.file), "--seeds", "3", "--out"]
        subprocess.run([*command, str(self.place / "there")], capture_output=True, check=True)
        self.assertEqual(tables(self.place / "there"), here)
        # Python's part of the program's sweep, except for the engine.
        theirs = [sys.executable, "-m", "marline", "sweep", str(self.file), "--seeds", "3", "--engine", "local"]
        theirs += ["--format", "csv,parquet", "--out", str(self.place / "theirs")]
        said = subprocess.run(theirs, capture_output=True, text=True, check=True).stdout
        self.assertIn("messages, runs and sweep (csv,parquet) in ", said)
        self.assertEqual(tables(self.place / "theirs"), here)
        self.assertTrue((self.place / "theirs/messages.parquet").read_bytes().startswith(b"PAR1"))
        # Without Ray, the program says what is missing.
        env = {**os.environ, "MARLINE_PYTHON": str(self.place / "python")}
        ray = [*command, str(self.place / "none"), "--engine", "ray"]
        refused = subprocess.run(ray, capture_output=True, text=True, env=env)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("pip install './lab/marline-python[ray]'", refused.stderr)

    def test_what_was_made_is_not_made_again_and_what_is_missing_is(self) -> None:
        whole = self.swept("store", jobs=1)
        runs = sorted((self.place / "store/runs").iterdir())
        self.assertEqual(len(runs), 4 * 2 * 3)
        at = {run: run.stat().st_mtime_ns for run in runs}
        runs[3].unlink()
        runs[7].write_text('{"mess')
        self.assertEqual(self.swept("store", jobs=3), whole)
        again = {run for run in runs if run.stat().st_mtime_ns != at[run]}
        self.assertEqual(again, {runs[3], runs[7]})

    def test_another_build_makes_runs_of_its_own(self) -> None:
        identity = _native.identity(_native.__file__)
        copy = self.place / "module.so"
        shutil.copy(_native.__file__, copy)
        self.assertEqual(_native.identity(str(copy)), identity)
        with copy.open("ab") as module:
            module.write(b"x")
        self.assertNotEqual(_native.identity(str(copy)), identity)
        self.assertNotEqual(_native.identity(sys.executable), identity)
        whole = self.swept("store")
        with mock.patch.object(_sweep, "_identity", lambda: _native.identity(str(copy))):
            self.assertEqual(self.swept("store"), whole)
        self.assertEqual(len(list((self.place / "store/runs").iterdir())), 2 * 4 * 2 * 3)
        with self.assertRaisesRegex(marline.ExperimentError, "nowhere.so"):
            _native.identity("nowhere.so")

    def test_pieces_in_any_order_some_of_them_twice_are_the_whole(self) -> None:
        whole = self.swept("whole")
        parsed = marline.Experiment.from_toml(self.file)
        place = self.place / "pieces"
        task = pickle.loads(pickle.dumps(_sweep.Task(parsed, place, "", 3, None)))
        plan = task.open()
        pieces = plan.pieces(2)
        self.assertEqual(pieces[:3], [(0, 2), (2, 3), (3, 5)])
        for start, end in [*reversed(pieces[1:]), *pieces[4:6]]:
            self.assertEqual(_ray._task("token", task, start, end), end - start)
        with self.assertRaisesRegex(marline.ExperimentError, "2 runs of this combination are not in"):
            plan.collect(["csv"])
        _ray._task("token", task, *pieces[0])
        plan.collect(["csv"])
        self.assertEqual(tables(place), whole)
        # A failed sweep keeps earlier tables and leaves no files.
        next((place / "runs").iterdir()).unlink()
        before = sorted(path.name for path in place.iterdir())
        with self.assertRaisesRegex(marline.ExperimentError, "1 runs of this combination are not in"):
            plan.collect(["csv"])
        self.assertEqual(tables(place), whole)
        self.assertEqual(sorted(path.name for path in place.iterdir()), before)

    def test_a_sweep_that_is_killed_goes_on(self) -> None:
        whole = self.swept("whole")
        program = f"""
            import marline
            marline.sweep({str(self.file)!r}, seeds=3, store={str(self.place / "part")!r}, jobs=1)
        """
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)]) as child:
            runs, until = self.place / "part/runs", time.monotonic() + 60
            while not (runs.is_dir() and any(runs.glob("*.json"))) and time.monotonic() < until:
                time.sleep(0.002)
            child.send_signal(signal.SIGKILL)
        self.assertFalse((self.place / "part/sweep.csv").exists(), "killed too late to show anything")
        self.assertEqual(self.swept("part"), whole)

    def test_policies_in_python_are_told_apart_by_their_users_word(self) -> None:
        mine, place = experiment(Fastest), self.place / "mine"
        with self.assertRaisesRegex(ValueError, "policies written in Python"):
            marline.sweep(mine, seeds=2, store=place)
        marline.sweep(mine, seeds=2, store=place, policies="first")
        # Without a table [sweep], the results are those of the experiment's `run`.
        self.assertEqual((place / "runs.csv").read_text(), mine.run(seeds=2).runs.to_csv())
        self.assertFalse((place / "sweep.csv").exists())
        marline.sweep(mine, seeds=2, store=place, policies="second")
        self.assertEqual(len(list((place / "runs").iterdir())), 4)

        class Broken(Fastest):
            def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
                raise KeyError("broken")

        with self.assertRaisesRegex(KeyError, "broken"):
            marline.sweep(experiment(Broken), seeds=2, store=self.place / "bad", policies="x")
        self.assertEqual(list((self.place / "bad/runs").iterdir()), [], "the failed run is not stored")

    def test_errors_say_what_is_wrong(self) -> None:
        place = self.place / "none"
        for wanted, arguments in [
            ("expected 'local' or 'ray'", {"engine": "slurm"}),
            ("address needs engine='ray'", {"address": "auto"}),
            ("expected 'raise' or 'keep'", {"on_error": "ignore"}),
        ]:
            with self.assertRaisesRegex(ValueError, wanted):
                marline.sweep(self.file, store=place, **arguments)
        with self.assertRaisesRegex(marline.ExperimentError, "unknown format `xls`"):
            marline.sweep(self.file, seeds=1, store=place, formats=["xls"])
        with mock.patch.dict(sys.modules, {"ray": None}):
            with self.assertRaisesRegex(ImportError, r"pip install './lab/marline-python\[ray\]'"):
                marline.sweep(self.file, store=place, engine="ray")
        from marline import __main__ as command

        said = io.StringIO()
        arguments = ["marline", "sweep", str(self.place / "there-is-none.toml"), "--out", str(place)]
        with redirect_stderr(said), mock.patch.object(sys, "argv", arguments):
            self.assertEqual(command.main(), 1)
        self.assertIn("there-is-none.toml", said.getvalue())


if __name__ == "__main__":
    unittest.main()
