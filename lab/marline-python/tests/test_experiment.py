"""Experiments from Python: the same runs as the program's, errors, tables, Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import marline
import nanoarrow
from support import BURSTS, PATHS, experiment

PROGRAM = os.environ.get("MARLINE_PROGRAM")

FILE = """
title = "bursts over WiFi and LTE"
seed = 4

[[path]]
name = "wifi"
link = "rate=20M,delay=10ms,queue=50ms,loss=1%"

[[path]]
name = "lte"
link = "rate=10M,delay=40ms,queue=100ms"

[workload]
kind = "bursts"
bytes = "20kB"
gap = "100ms"
count = 10

[[variant]]
name = "auto"

[[variant]]
name = "min, rtt"
scheduler = "min-rtt"
"""


def words_of_variant(table: str, variant: str) -> set[str]:
    """Words in the rows of a variant. The program wraps cells and tables at 80 columns."""
    words: set[str] = set()
    inside = False
    for line in table.splitlines():
        cells = line.split()
        if not cells:
            inside = False
        elif cells[0] == "sim":
            inside = cells[1] == variant.split()[0]
        if inside:
            words.update(cells)
    return words


class Experiments(unittest.TestCase):
    @unittest.skipUnless(PROGRAM, "SKIPPED: MARLINE_PROGRAM does not name the program")
    def test_tables_are_those_of_the_program_byte_for_byte(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "bursts.toml")
            file.write_text(FILE)
            command = [str(PROGRAM), "run", str(file), "--seeds", "3", "--timelines"]
            command += ["--out", str(Path(place, "out"))]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            results = marline.Experiment.from_toml(file).run(seeds=3, timelines=0.01)
            tables = {
                "messages": results.messages,
                "runs": results.runs,
                "subflows": results.timelines,
                "copies": results.copies,
            }
            for name, table in tables.items():
                written = Path(place, "out", f"{name}.csv").read_bytes()
                self.assertEqual(written.decode(), table.to_csv(), name)
            for row in results.summary()[1:]:
                printed = words_of_variant(ran.stdout, row[1])
                for word in " ".join(filter(None, row)).split():
                    self.assertIn(word, printed)

    @unittest.skipUnless(PROGRAM, "SKIPPED: MARLINE_PROGRAM does not name the program")
    def test_captures_and_traces_are_those_of_the_program_byte_for_byte(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "bursts.toml")
            file.write_text(FILE)
            command = [str(PROGRAM), "run", str(file), "--seeds", "2", "--pcap", "--qlog"]
            subprocess.run([*command, "--out", place], capture_output=True, check=True)
            pcap, qlog = Path(place, "of/python/pcap"), Path(place, "of/python/qlog")
            plain = marline.Experiment.from_toml(file).run(seeds=2)
            results = marline.Experiment.from_toml(file).run(seeds=2, pcap=pcap, qlog=str(qlog))
            self.assertEqual(results.digests, plain.digests)
            for mine, theirs, count in (pcap, "pcap", 8), (qlog, "qlog", 8 + 4):
                names = sorted(file.name for file in mine.iterdir())
                self.assertEqual(names, sorted(os.listdir(Path(place, theirs))))
                self.assertEqual(len(names), count, names)
                for name in names:
                    theirs_bytes = Path(place, theirs, name).read_bytes()
                    self.assertEqual((mine / name).read_bytes(), theirs_bytes, name)

    def test_policies_of_python_have_files_and_a_directory_that_cannot_be_is_an_error(self) -> None:
        class First(marline.Scheduler):
            def next_send(self, cx: marline.SchedulerContext) -> int | None:
                return cx.subflows[0].id if cx.unsent_bytes else None

        mine = marline.Experiment(PATHS, BURSTS, [{"name": "mine", "scheduler": First}])
        with tempfile.TemporaryDirectory() as place:
            mine.run(seeds=[7], pcap=place)
            self.assertEqual(
                sorted(os.listdir(place)), ["mine-7-client.pcapng", "mine-7-server.pcapng"]
            )
            self.assertGreater(Path(place, "mine-7-server.pcapng").stat().st_size, 10_000)
            blocked = Path(place, "mine-7-client.pcapng", "below")
            with self.assertRaises(OSError):
                mine.run(seeds=[7], pcap=blocked)

    def test_a_document_built_here_is_the_file(self) -> None:
        here = marline.Experiment(
            paths=PATHS,
            workload=BURSTS,
            variants=[{"name": "auto"}, {"name": "min, rtt", "scheduler": "min-rtt"}],
            seed=4,
            title="bursts over WiFi and LTE",
        )
        there = marline.Experiment.from_toml(FILE)
        self.assertEqual(there.title, here.title)
        self.assertEqual(there.variants, ["auto", "min, rtt"])
        self.assertEqual(here.paths, ["wifi", "lte"])
        digests = there.run(seeds=2).digests
        self.assertEqual(here.run(seeds=range(4, 6)).digests, digests)
        self.assertEqual(marline.Experiment.from_toml(here.to_toml()).run(2).digests, digests)
        self.assertEqual(len(set(digests)), 4, "all runs differ")

    def test_the_number_of_threads_changes_nothing_and_a_pickle_is_the_experiment(self) -> None:
        one = experiment().run(seeds=4, jobs=1)
        self.assertEqual(one.messages.to_csv(), experiment().run(seeds=4, jobs=3).messages.to_csv())
        again = pickle.loads(pickle.dumps(experiment()))
        self.assertEqual(again.run(seeds=4).digests, one.digests)

    def test_time_lines_change_no_run(self) -> None:
        self.assertEqual(
            experiment().run(seeds=2, timelines=0.005).digests, experiment().run(seeds=2).digests
        )

    def test_errors_say_what_and_where(self) -> None:
        bad = FILE.replace('"min-rtt"', '"min-rt"').replace("delay=40ms", "dely=40ms")
        with self.assertRaises(marline.ExperimentError) as caught:
            marline.Experiment.from_toml(bad)
        text = str(caught.exception)
        self.assertIn("experiment:11:", text)
        self.assertIn("did you mean `delay`?", text)
        self.assertIn("did you mean `min-rtt`?", text)
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(FileNotFoundError):
            marline.Experiment.from_toml("there/is/none.toml")
        with self.assertRaisesRegex(marline.ExperimentError, "unknown variant `ato`; known: auto"):
            marline.Experiment.from_toml(FILE).run(variants=["ato"])
        with self.assertRaisesRegex(marline.ExperimentError, "must be at least 10"):
            experiment().run(seeds=1, timelines=1e-6)
        with self.assertRaisesRegex(TypeError, "object"):
            marline.Experiment(paths=PATHS, workload={**BURSTS, "gap": object()})

    def test_a_run_that_fails_is_raised_or_kept(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            trace = Path(place, "up.trace")
            trace.write_text("1\n2\n3\n")
            whole = marline.Experiment(
                paths={"wifi": "trace=up.trace,delay=10ms"}, workload=BURSTS, trace_dir=place
            )
            trace.unlink()
            with self.assertRaisesRegex(marline.RunFailed, "default seed 1: .*up.trace"):
                whole.run(seeds=2)
            kept = whole.run(seeds=2, on_error="keep")
        self.assertEqual(len(nanoarrow.Array(kept.runs)), 2)
        self.assertEqual(len(nanoarrow.Array(kept.messages)), 0)
        self.assertIn("up.trace", kept.runs.to_csv() or "")

    def test_tables_are_read_through_arrows_stream(self) -> None:
        results = experiment().run(seeds=2)
        stream = nanoarrow.c_array_stream(results.messages)
        names = [child.name for child in nanoarrow.Schema(stream.get_schema()).fields]
        self.assertEqual(names[:3], ["stack", "variant", "seed"])
        latency = names.index("latency_ms")
        rows = nanoarrow.Array(results.messages).to_pylist()
        column = [row["latency_ms"] for row in rows]
        lines = (results.messages.to_csv() or "").splitlines()[1:]
        self.assertEqual(column, [float(line.split(",")[latency]) for line in lines])
        self.assertEqual({row["counted"] for row in rows}, {True})
        # A table can be read again.
        self.assertEqual(nanoarrow.Array(results.messages).to_pylist(), rows)

    def test_a_bar_is_drawn_where_tqdm_is_installed(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            seen = experiment().run(seeds=3, progress=True)
        self.assertRegex(said.getvalue(), r"100%.* 3/3 ")
        said = io.StringIO()
        with contextlib.redirect_stderr(said), mock.patch.dict(sys.modules, {"tqdm.auto": None, "tqdm": None}):
            unseen = experiment().run(seeds=3, progress=True)
        self.assertEqual((said.getvalue(), unseen.digests), ("", seen.digests))

    def test_other_threads_of_python_go_on_meanwhile(self) -> None:
        over, turns = threading.Event(), [0]

        def turn() -> None:
            while not over.wait(0.002):
                turns[0] += 1

        other = threading.Thread(target=turn)
        bulk = marline.Experiment(paths=PATHS, workload={"kind": "bulk", "lasts": "20s"})
        begun = time.monotonic()
        other.start()
        try:
            while time.monotonic() - begun < 1.0:
                bulk.run(seeds=8, jobs=1)
        finally:
            over.set()
            other.join()
        # A waiting thread that kept the interpreter's lock would hold it for a tenth of a second at a time.
        self.assertGreater(turns[0], 30 * (time.monotonic() - begun))

    def test_ctrl_c_ends_it_at_once(self) -> None:
        program = """
            import marline
            endless = marline.Experiment(
                paths={"wifi": "rate=100M,delay=1ms"}, workload={"kind": "bulk", "lasts": "600s"}
            )
            try:
                print("begun", flush=True)
                endless.run(seeds=1000)
            except KeyboardInterrupt:
                print("ended", flush=True)
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        # The tests' parent may ignore the signal, like background jobs of a shell.
        heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heeds) as child:
            assert child.stdout is not None
            self.assertEqual(child.stdout.readline(), "begun\n")
            child.send_signal(signal.SIGINT)
            try:
                said, _ = child.communicate(timeout=60)
            finally:
                child.kill()
            self.assertEqual((said, child.returncode), ("ended\n", 0))


if __name__ == "__main__":
    unittest.main()
