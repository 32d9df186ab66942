"""Policies written in Python: decisions, events, parameters, and exceptions, which end the run."""

from __future__ import annotations

import traceback
import unittest

import marline
import nanoarrow
from support import BURSTS, PATHS, Fastest, experiment

BARE = "lowest-rtt"


class Duplicate(Fastest):
    """Sends everything on both paths."""

    wants_outstanding = True

    def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
        for view in cx.subflows:
            for mapping in cx.outstanding:
                if view.ready and view.id not in mapping.carried_by:
                    return marline.Send(view.id, mapping.start, mapping.end)
        return super().next_send(cx)


class OnlyPath(marline.Scheduler):
    """Uses only one path, by its number."""

    def __init__(self, path: int = 0, share: float = 1.0, loud: bool = False, word: str = "x") -> None:
        self.path, self.parameters = path, (path, share, loud, word)

    def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
        if not cx.unsent_bytes:
            return None
        mine = [view for view in cx.subflows if max(view.local_id, view.remote_id) == self.path]
        return mine[0].id if mine and mine[0].ready else None


class Raises(Fastest):
    """Raises an exception after a while."""

    def __init__(self, after: int = 20) -> None:
        self.left = after

    def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
        self.left -= 1
        if self.left < 0:
            raise LookupError(f"no idea at {cx.now_us}")
        return super().next_send(cx)


def kilobytes(results: marline.Results) -> list[float]:
    rows = nanoarrow.Array(results.runs).to_pylist()
    return [sum(row[f"{path}_down_bytes"] for row in rows) / 1e3 for path in PATHS]


class Schedulers(unittest.TestCase):
    def test_one_decides_what_the_built_in_one_of_its_kind_decides(self) -> None:
        mine, theirs = (experiment(which).run(seeds=3) for which in (Fastest, BARE))
        self.assertEqual(mine.digests, theirs.digests, "the same packets at the same times")
        self.assertNotEqual(mine.digests, experiment("min-rtt").run(seeds=3).digests)
        self.assertEqual(mine.digests, experiment(Fastest).run(seeds=3, jobs=3).digests)

    def test_data_goes_where_it_is_told_to_and_parameters_are_read(self) -> None:
        for path in (0, 1):
            document = experiment(OnlyPath).to_toml().replace('"py-only-path"', f'"mine,path={path}"')
            named = marline.Experiment.from_toml(document, policies={"mine": OnlyPath})
            used = kilobytes(named.run(seeds=2))
            self.assertGreater(used[path], 20 * used[1 - path], used)
        for spec, wrong in [
            ("mine,path=x", "expected a whole number"),
            ("mine,loud=1", "expected on or off"),
            ("mine,pth=1", "known: path, share, loud, word; did you mean `path`?"),
        ]:
            with self.assertRaisesRegex(marline.ExperimentError, wrong):
                document = experiment(OnlyPath).to_toml().replace('"py-only-path"', f'"{spec}"')
                marline.Experiment.from_toml(document, policies={"mine": OnlyPath})

    def test_copies_are_sent(self) -> None:
        used = kilobytes(experiment(Duplicate).run(seeds=2))
        self.assertGreater(min(used), 2 * 10 * 20, "each path carried everything")

    def test_an_exception_ends_the_run_with_its_traceback(self) -> None:
        try:
            experiment(Raises).run(seeds=50)
        except LookupError as error:
            frames = traceback.extract_tb(error.__traceback__)
            self.assertEqual((frames[0].name, frames[-1].name), (self._testMethodName, "next_send"))
            self.assertIn("no idea at", str(error))
        else:
            self.fail("nothing was raised")

    def test_what_is_no_decision_is_refused(self) -> None:
        for answer, wrong in [
            ("wifi", "not 'wifi'"),
            (77, "unknown subflow 77"),
            (9, "unknown subflow 9; known: 0"),
            (-1, "negative|unsigned"),
        ]:
            class Odd(marline.Scheduler):
                def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
                    return answer  # type: ignore[return-value]

            with self.assertRaisesRegex((TypeError, ValueError, OverflowError), wrong):
                experiment(Odd).run(seeds=1)
        with self.assertRaisesRegex(TypeError, "is not derived from"):
            experiment(dict)

    def test_a_full_or_unknown_subflow_does_no_harm(self) -> None:
        class Stubborn(marline.Scheduler):
            def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
                return cx.subflows[0].id

        results = experiment(Stubborn).run(seeds=2)
        self.assertEqual(len(nanoarrow.Array(results.messages)), 20)

        class Repeats(Fastest):
            def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
                if cx.data_una < cx.unsent[0] and cx.subflows[0].ready:
                    return marline.Send(cx.subflows[0].id, cx.data_una)
                return super().next_send(cx)

        with self.assertRaisesRegex(ValueError, "subflow 0 has already carried"):
            experiment(Repeats, paths=["wifi"]).run(seeds=1)

    def test_events_and_reinjections_are_told(self) -> None:
        seen: set[str] = set()

        class Hears(Fastest):
            probe_patience_us = 0.0
            watches_acks = True

            def on_event(self, event: marline.SchedulerEvent, cx: marline.SchedulerContext) -> None:
                seen.add(event.kind)

            def next_reinjection(
                self, item: marline.Reinjection, cx: marline.SchedulerContext
            ) -> marline.policies.Decision:
                seen.add(item.cause)
                assert item.end > item.start and item.carried_by
                return super().next_reinjection(item, cx)

        variant = {"name": "it", "scheduler": Hears}
        fault = {"path": "wifi", "burst": 4, "after": ["5ms", "10ms"], "command": "down"}
        dies = marline.Experiment(paths=PATHS, workload=BURSTS, variants=[variant], faults=[fault])
        results = dies.run(seeds=2)
        self.assertLessEqual({"subflow-up", "acked", "probe-timeout", "UnansweredProbe"}, seen)
        self.assertEqual(len(nanoarrow.Array(results.messages)), 20, "all arrived over the other path")


class SecondPathLate(marline.PathManager):
    """Opens the second path a second and a half after the first."""

    def on_event(self, event: marline.PathEvent, cx: marline.PathContext) -> None:
        if event.kind == "established" and cx.role == "client":
            self.next_timeout_us = cx.now_us + 1.5e6

    def on_timeout(self, cx: marline.PathContext) -> list[marline.OpenSubflow]:
        used = {path.local_id for path in cx.paths}
        return [marline.OpenSubflow(local.id) for local in cx.local if local.id not in used]


class PathManagers(unittest.TestCase):
    def test_subflows_are_opened_when_it_says_so(self) -> None:
        late = experiment(path_manager=SecondPathLate).run(seeds=1, timelines=0.01)
        rows = nanoarrow.Array(late.timelines).to_pylist()
        first = min(row["time_us"] for row in rows if row["path"] == "lte")
        # The run starts a second before the workload.
        self.assertAlmostEqual(first / 1e6, 0.6, delta=0.2)

    def test_its_exception_ends_the_run(self) -> None:
        class Broken(marline.PathManager):
            def on_event(self, event: marline.PathEvent, cx: marline.PathContext) -> None:
                raise KeyError(event.kind)

        with self.assertRaises(KeyError):
            experiment(path_manager=Broken).run(seeds=1)


class Constant(marline.CongestionControl):
    """A constant window in segments."""

    def __init__(self, mss_bytes: int, window_bytes: int, segments: int = 4) -> None:
        super().__init__(mss_bytes, segments * mss_bytes)
        self.segments = segments

    def on_ack(self, ack: marline.AckSample, me: int, group: list[marline.SubflowView]) -> None:
        assert ack.delivered_bytes >= 0 and not group

    def on_signal(self, *_: object) -> None:
        pass

    def on_mss_change(self, mss_bytes: int) -> None:
        self.window_bytes = self.segments * mss_bytes


class CongestionControls(unittest.TestCase):
    def test_the_window_is_the_one_it_says(self) -> None:
        bulk = {"kind": "bulk", "lasts": "3s"}
        variant = {"name": "it", "congestion": Constant, "paths": ["wifi"]}
        whole = marline.Experiment(paths=PATHS, workload=bulk, variants=[variant])
        rows = nanoarrow.Array(whole.run(seeds=1, timelines=0.05).timelines).to_pylist()
        server = [row for row in rows if row["end"] == "server" and row["time_us"] > 500_000]
        self.assertEqual({row["cwnd_bytes"] // row["mss_bytes"] for row in server}, {4})
        self.assertGreater(len(server), 40)


if __name__ == "__main__":
    unittest.main()
