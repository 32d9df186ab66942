"""Learned schedulers: their parts learn, their scripts run, and training never uses the judged half."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import random
import runpy
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/python"
sys.path.insert(0, str(EXAMPLES))

import dqn
import evaluate_learned
import learned
import marline
import olaps
import recorded


def traces(place: Path) -> Path:
    """Two sessions of pings with three carriers, 30 s each."""
    drawn = random.Random(1)
    for session in ("s1", "s2"):
        rows = ["carrier,seq,t_send_ms,rtt_ms"]
        for carrier, rtt in (("a", 40.0), ("b", 60.0), ("c", 90.0)):
            for number in range(150):
                lost = drawn.random() < 0.02
                answer = "" if lost else f"{rtt + 20.0 * drawn.random():.1f}"
                rows.append(f"{carrier},{number + 1},{200 * number},{answer}")
        (place / f"{session}.csv").write_text("\n".join(rows) + "\n")
    return place


class Parts(unittest.TestCase):
    def test_gradients_are_those_of_the_error(self) -> None:
        rng = np.random.default_rng(3)
        network = dqn.Network(4, 3, 5, rng)
        network.weights[-1][:] = rng.normal(size=network.weights[-1].shape)
        inputs, wanted = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))

        def error() -> float:
            return 0.5 * float(((network.values(inputs) - wanted) ** 2).sum())

        gradients = network.gradients(network.layers(inputs), network.values(inputs) - wanted)
        for parameter, gradient in zip(network.parameters, gradients):
            for at in [0, parameter.size // 2, parameter.size - 1]:
                here = np.unravel_index(at, parameter.shape)
                before, step = parameter[here], 1e-5
                parameter[here] = before + step
                above = error()
                parameter[here] = before - step
                below = error()
                parameter[here] = before
                self.assertAlmostEqual((above - below) / (2 * step), gradient[here], places=4)

    def test_a_network_learns_which_choice_is_worth_more_and_when(self) -> None:
        agent, rng = dqn.Dqn(seed=2), np.random.default_rng(2)
        width = dqn.LOOKS * len(agent.scales)
        for _ in range(3_000):
            seen = rng.integers(2, size=width).astype(float)
            choice = int(rng.integers(len(agent.choices)))
            # The right choice depends on the observation.
            right = 4 if seen[-1] else 1
            agent.learn(seen, choice, 1.0 if choice == right else 0.0, seen, False)
        seen = rng.integers(2, size=(50, width)).astype(float)
        chosen = agent.network.values(seen).argmax(axis=1)
        self.assertGreater((chosen == np.where(seen[:, -1] > 0.0, 4, 1)).mean(), 0.9)

    def test_the_bandit_finds_the_better_arm_and_the_monitor_another_network(self) -> None:
        bandit = olaps.Exp3(4, 0.2, random.Random(1))
        for _ in range(400):
            bandit.learn(0.9 if bandit.pull() == 2 else 0.3)
        self.assertGreater(bandit.chances()[2], 0.7)
        self.assertAlmostEqual(sum(bandit.chances()), 1.0)
        monitor = olaps.Monitor(drop=0.5, patience=3)
        self.assertTrue(all(monitor.fits(0.8) for _ in range(20)))
        self.assertEqual([monitor.fits(0.1) for _ in range(4)], [True, True, False, True])

    def test_halves_are_those_of_the_paper(self) -> None:
        # As in the grid `pairs` of `marline-lab paper auto`.
        tuned = """s042 tmobile + verizon, s048 tmobile + verizon, s051 tmobile + verizon, s114 atnt + tmobile,
            s114 tmobile + verizon, s123 atnt + tmobile, s131 atnt + verizon, s152 atnt + tmobile,
            s152 tmobile + verizon, att-lte + verizon-lte, tmobile-lte + tmobile-umts"""
        judged = """s050 tmobile + verizon, s072 tmobile + verizon, s114 atnt + verizon, s120 tmobile + verizon,
            s140 atnt + tmobile, s141 atnt + verizon, s152 atnt + verizon, att-lte + tmobile-lte,
            att-lte + tmobile-umts, tmobile-lte + verizon-lte, tmobile-umts + verizon-lte, train m3 + u4"""
        for half, names in (("tuned", tuned), ("judged", judged)):
            for name in (name.strip() for name in names.split(",")):
                recording = recorded.Recording("")
                pair = recorded.Pair(name, ("a", "b"), (recording, recording), True)
                self.assertEqual(pair.half, half, name)

    def test_a_place_is_where_the_recording_begins(self) -> None:
        fixed = recorded.Recording("rate=1M,ping=s1:a", ",delay=1ms", period_ms=10_000.0)
        self.assertEqual(fixed.begin(0.25), "rate=1M,ping=s1:a@2500ms,delay=1ms")
        rates = recorded.Recording("up.rate=2M", rates_bits_per_s=(1e6, 2e6, 0.0))
        link = rates.begin(0.5)
        self.assertEqual(link, "down.rate=0ms:2000000+500ms:0+1000ms:1000000/1500ms,up.rate=2M")
        marline.Experiment(paths={"a": link}, workload={"kind": "bulk", "lasts": "1s"})


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        (self.place / "traces").mkdir()
        self.traces = traces(self.place / "traces")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.place)

    def test_training_sees_the_tuned_half_alone_and_repeats(self) -> None:
        found = recorded.pairs(self.traces)
        self.assertEqual(len(found), 6)
        halves = {half: [pair for pair in found if pair.half == half] for half in ("tuned", "judged")}
        self.assertTrue(halves["tuned"] and halves["judged"])
        load = recorded.loads()["10kB"]
        training = learned.Training("dqn-copies", load, 3)
        with self.assertRaisesRegex(ValueError, "only pairs of the tuned half"):
            learned.train(training, found, self.traces, self.place, lambda said: None)
        kept = []
        for folder, number in (("once", 1), ("twice", 1), ("twice", 2)):
            which = dataclasses.replace(training, number=number)
            learned.train(which, halves["tuned"], self.traces, self.place / folder, lambda said: None)
            with np.load(learned.kept(self.place / folder, "dqn-copies", load, number)) as file:
                kept.append([file[name] for name in file.files])
        for one, again, _ in zip(*kept):
            np.testing.assert_array_equal(one, again)
        self.assertFalse(np.array_equal(kept[0][0], kept[2][0]), "trainings differ")

    def test_all_are_held_against_built_in_schedulers(self) -> None:
        page = self.place / "page.md"
        page.write_text(f"before\n{evaluate_learned.MARK}\noutdated\n{evaluate_learned.END}\nafter\n")
        arguments = ["evaluate_learned.py", "--trace-dir", str(self.traces), "--places", "2", "--episodes", "1"]
        arguments += ["--pairs", "2", "--load", "10kB", "--jobs", "1", "--docs", str(page), "--raw", "raw.json"]

        def evaluated(*more: str) -> str:
            said = io.StringIO()
            with mock.patch.object(sys, "argv", [*arguments, *more]), contextlib.redirect_stdout(said):
                runpy.run_path(str(EXAMPLES / "evaluate_learned.py"), run_name="__main__")
            return said.getvalue()

        evaluated("--trainings", "1")
        once = json.loads(Path("raw.json").read_text())["cases"]["10kB"]
        # Finished runs are not repeated, so empty model files do no harm.
        Path("models/dqn-10kB.npz").write_bytes(b"")
        said = evaluated("--trainings", "2")
        twice = json.loads(Path("raw.json").read_text())["cases"]["10kB"]
        for before, after in zip(once, twice, strict=True):
            was, now = before["latencies_s"], after["latencies_s"]
            self.assertEqual({name: now[name] for name in was}, was)
            more = {evaluate_learned.variant_name(method, 2) for method in learned.METHODS}
            self.assertEqual(set(now) - set(was), more)
        text = page.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "outdated" not in text)
        trainings = said.split("training by training")[1]
        rows, counts = (
            {row.split(" | ")[0].strip("| `"): row for row in part.splitlines() if row.startswith("| `")}
            for part in (text.replace("| bound |", "| `bound` |"), trainings)
        )
        numbers = {name: row.split(" | ")[1] for name, row in counts.items()}
        self.assertEqual(numbers, dict.fromkeys(learned.METHODS, "2"))
        everybody = {*evaluate_learned.BUILT_IN, *learned.METHODS, "bound"}
        self.assertLessEqual(everybody, set(rows))
        fastest = float(rows["bound"].split(" | ")[1].split(" ")[0])
        for name in everybody - {"bound"}:
            self.assertGreaterEqual(float(rows[name].split(" | ")[1].split(" ")[0]), fastest, name)


if __name__ == "__main__":
    unittest.main()
