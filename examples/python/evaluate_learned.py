"""Compares learned schedulers with built-in ones on the judged half of the recorded pairs, after training missing
models: ``python evaluate_learned.py [--trace-dir DIR] [--trainings N] [--places N] [--models DIR] [--docs FILE]``.

Every variant runs at the same places of the same pairs with the same seeds. Intervals are 95 % bootstraps over the
places, with all pairs and variants of a place kept together. A separate table compares the trainings.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learned import EPISODES, METHODS, Training, built_in, kept, learned, train
from recorded import Load, Pair, halves, loads, trace_directory

TRAININGS = 3
"""Number of trainings of each method for each message size."""
BUILT_IN = ("auto", "min-rtt", "redundant", "peekaboo")
QUANTILES = (0.5, 0.95, 0.99)
RESAMPLES = 1_000
MARK = "<!-- results: made by examples/python/evaluate_learned.py --docs, not by hand -->"
END = "<!-- end of results -->"


@dataclasses.dataclass
class Case:
    """Results of a pair at a place: latencies in seconds of each variant and of the bound, and bytes sent again."""

    pair: str
    place: int
    latencies_s: dict[str, list[float]]
    repeated_bytes: dict[str, int]


def variant_name(method: str, number: int) -> str:
    """The name of a training's variant."""
    return method if number == 1 else f"{method}, training {number}"


@dataclasses.dataclass(frozen=True)
class Match:
    """A pair at a place, with its variants: the built-in schedulers, and the models of these trainings."""

    load: Load
    pair: Pair
    place: int
    traces: Path
    models: Path
    trainings: Sequence[tuple[str, int]]
    before: Case | None = None

    def play(self) -> Case:
        """Makes the missing runs and returns them with the earlier ones."""
        links, seed = self.pair.links("judge", self.place), self.place + 1
        case = self.before
        if case is None:
            runs, bounds = built_in(BUILT_IN, self.load, links, self.traces, seed)
            by_name = dict(zip(BUILT_IN, runs))
            latencies = {name: run.latencies_s for name, run in by_name.items()} | {"bound": bounds}
            repeated = {name: run.repeated_bytes for name, run in by_name.items()}
            case = Case(self.pair.name, self.place, latencies, repeated)
        for method, number in self.trainings:
            name = variant_name(method, number)
            if name not in case.latencies_s:
                file = kept(self.models, method, self.load, number)
                run = learned(file, method, self.load, links, self.traces, seed)
                case.latencies_s[name], case.repeated_bytes[name] = run.latencies_s, run.repeated_bytes
        return case


class Judged:
    """All cases of a load."""

    def __init__(self, load: Load, cases: Sequence[Case]) -> None:
        self.load, self.cases = load, cases
        self.places = sorted({case.place for case in cases})
        rng = np.random.default_rng(1)
        draws = [rng.choice(self.places, len(self.places)) for _ in range(RESAMPLES)]
        self.drawn = [np.array(self.places), *draws]
        self.by_place = {place: [case for case in cases if case.place == place] for place in self.places}
        self._quantiles: dict[str, np.ndarray] = {}

    def quantiles(self, name: str) -> np.ndarray:
        """:data:`QUANTILES` of all messages together, s: each of the original sample, then of each resample. By the
        nearest rank, because a missing message has an infinite latency."""
        if name not in self._quantiles:
            self._quantiles[name] = self._found(name)
        return self._quantiles[name]

    def _found(self, name: str) -> np.ndarray:
        pooled = np.concatenate([case.latencies_s[name] for case in self.cases])
        places = np.repeat([case.place for case in self.cases], [len(case.latencies_s[name]) for case in self.cases])
        order = np.argsort(pooled, kind="stable")
        pooled, places = pooled[order], places[order]
        # The number of messages of each place up to each message, and how often each resample contains each place.
        counts = np.cumsum(places == np.array(self.places)[:, None], axis=1, dtype=np.int32)
        weights = np.array([[np.count_nonzero(drawn == place) for place in self.places] for drawn in self.drawn])
        total, found = weights @ counts[:, -1], []
        for share in QUANTILES:
            wanted = np.ceil(share * total)
            low, high = np.zeros(len(weights), int), np.full(len(weights), len(pooled) - 1)
            # Binary search for the message of this rank, for all resamples at once.
            while (low < high).any():
                middle = (low + high) // 2
                enough = (weights * counts[:, middle].T).sum(axis=1) >= wanted
                low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
            found.append(pooled[low])
        return np.array(found)

    def within_cases(self, of: str, over: str, share: float) -> np.ndarray:
        """The median over the cases of the ratio of two variants' quantiles: original, then each resample."""
        ratios = {}
        for place, cases in self.by_place.items():
            ratios[place] = [
                nearest_rank(case.latencies_s[of], share) / nearest_rank(case.latencies_s[over], share)
                for case in cases
            ]
        return np.array([np.median(np.concatenate([ratios[place] for place in drawn])) for drawn in self.drawn])

    def extra_percent(self, name: str) -> float:
        """Bytes sent again as a percentage of the payload."""
        payload = self.load.bytes * self.load.count * len(self.cases)
        return 100.0 * sum(case.repeated_bytes[name] for case in self.cases) / payload

    def missing(self, name: str) -> int:
        """Number of missing messages."""
        return sum(int(np.isinf(case.latencies_s[name]).sum()) for case in self.cases)


def nearest_rank(values: Sequence[float], share: float) -> float:
    """A quantile by the nearest rank."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def bounds(values: np.ndarray) -> tuple[float, float]:
    """Bounds of the middle 95 % of the resamples. One may be infinite."""
    low, high = np.quantile(values[1:], [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def interval(values: np.ndarray, scale: float = 1.0) -> str:
    """A value and its interval, as text."""
    low, high = bounds(values)
    return f"{scale * values[0]:.3g} [{scale * low:.3g}, {scale * high:.3g}]"


def beside(ratios: np.ndarray) -> str:
    """A ratio to ``auto`` as text: bold if better, marked with a word if worse."""
    low, high = bounds(ratios)
    text = interval(ratios)
    return f"**{text}**" if high < 1.0 else f"{text}, worse" if low > 1.0 else text


def table(judged: Judged, names: Sequence[str]) -> list[str]:
    """All quantiles of a load, in Markdown."""
    load = judged.load
    lines = [
        f"**{load.bytes:,} bytes every {load.every_ms} ms**: {len(judged.cases)} cases, "
        f"{len(judged.cases) * (load.count - load.left_out):,} messages",
        "",
        "| | p50 (ms) | p95 (ms) | p99 (ms) | p50, ratio to `auto` | p95, ratio to `auto` | p99, ratio to `auto` "
        "| p99, ratio to `auto`, median case | p99, ratio to bound, median case | extra bytes (%) | missing |",
        "|---" * 11 + "|",
    ]
    auto = judged.quantiles("auto")
    for name in [*names, "bound"]:
        quantiles = judged.quantiles(name)
        cells = [name if name == "bound" else f"`{name}`", *(interval(values, 1e3) for values in quantiles)]
        if name in ("auto", "bound"):
            cells += [""] * 4
        else:
            cells += [beside(ratios) for ratios in quantiles / auto]
            cells += [beside(judged.within_cases(name, "auto", 0.99))]
        if name == "bound":
            cells += [""] * 3
        else:
            cells += [interval(judged.within_cases(name, "bound", 0.99))]
            cells += [f"{judged.extra_percent(name):.0f}", str(judged.missing(name))]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def trainings_of(judged: Judged, method: str) -> list[str]:
    """The names of all results of a method, in order."""
    number = 1
    while all(variant_name(method, number) in case.latencies_s for case in judged.cases):
        number += 1
    return [variant_name(method, each) for each in range(1, number)]


def by_training(judged: Judged, methods: Sequence[str]) -> list[str]:
    """Ratios to ``auto`` of every training, in Markdown."""
    columns = [f"p{100 * share:.0f}, ratio to `auto`" for share in QUANTILES]
    columns += ["p99, ratio to `auto`, median case", "extra bytes (%)", "missing"]
    lines = [
        f"**{judged.load.bytes:,} bytes, training by training**: median (minimum to maximum) of the trainings, and "
        "how many of them are *better* or *worse* than `auto`",
        "",
        "| | trainings | " + " | ".join(columns) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    auto = judged.quantiles("auto")
    for method in methods:
        names = trainings_of(judged, method)
        ratios = np.array([judged.quantiles(name) / auto for name in names])
        cells = [spread(ratios[:, at]) for at in range(len(QUANTILES))]
        cells += [spread(np.array([judged.within_cases(name, "auto", 0.99) for name in names]))]
        extra = [judged.extra_percent(name) for name in names]
        cells += [f"{min(extra):.0f} to {max(extra):.0f}", ", ".join(str(judged.missing(name)) for name in names)]
        lines.append(f"| `{method}` | {len(names)} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def spread(ratios: np.ndarray) -> str:
    """Summary of one row of ratios per training: the original ratio, then that of each resample."""
    plain = ratios[:, 0]
    better = sum(bounds(row)[1] < 1.0 for row in ratios)
    worse = sum(bounds(row)[0] > 1.0 for row in ratios)
    words = [f"{count} {word}" for count, word in ((better, "better"), (worse, "worse")) if count]
    middle = nearest_rank(plain, 0.5)
    reach = f" ({plain.min():.3g} to {plain.max():.3g})" if len(plain) > 1 else ""
    return ", ".join([f"{middle:.3g}{reach}", *words])


def by_pair(judged: Judged, methods: Sequence[str]) -> list[str]:
    """The pairs with a quantile better than that of ``auto`` over all places, for each method."""
    better: dict[str, list[str]] = {method: [] for method in methods}
    for pair in sorted({case.pair for case in judged.cases}):
        alone = Judged(judged.load, [case for case in judged.cases if case.pair == pair])
        auto = alone.quantiles("auto")
        for method in methods:
            names = trainings_of(judged, method)
            words = []
            for at, share in enumerate(QUANTILES):
                ratios = [alone.quantiles(name)[at] / auto[at] for name in names]
                below = [f"{ratio[0]:.2f}" for ratio in ratios if bounds(ratio)[1] < 1.0]
                words += [f"p{100 * share:.0f} {' and '.join(below)} in {len(below)} of {len(names)}"] if below else []
            better[method] += [f"{pair} ({'; '.join(words)})"] if words else []
    lines = [f"- `{method}`: {', '.join(where) or 'on no pair'}" for method, where in better.items()]
    head = "Pairs with ratios to `auto` below 1, and in how many trainings (95 %, not corrected for their number):"
    return [head, "", *lines, ""]


def trained(task: tuple[Any, ...]) -> None:
    """Runs a training in a worker process."""
    train(*task)


def played(match: Match) -> Case:
    """Plays a match in a worker process."""
    return match.play()


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[Callable[..., list[Any]]]:
    """A parallel ``map`` with this number of processes."""
    if jobs == 1:
        yield lambda work, tasks: [work(task) for task in tasks]
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield lambda work, tasks: pool.map(work, tasks, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace-dir", type=Path, help="directory of traces; default: MARLINE_TRACE_DIR")
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory of models")
    parser.add_argument("--places", type=int, default=20, help="number of places of each pair")
    parser.add_argument("--trainings", type=int, default=TRAININGS, help="number of trainings of each method")
    parser.add_argument("--method", choices=METHODS, action="append", help="learned method; default: all")
    parser.add_argument("--episodes", type=int, help="number of episodes of a training")
    parser.add_argument("--pairs", type=int, help="maximum number of pairs of each half, for a quick test")
    parser.add_argument("--load", choices=list(loads()), action="append", help="kind of messages; default: all")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="number of processes")
    parser.add_argument("--docs", type=Path, help="page whose results are replaced")
    parser.add_argument("--raw", type=Path, help="file of all latencies, whose runs are not repeated")
    options = parser.parse_args()
    traces = trace_directory(options.trace_dir)
    pairs = {half: found[: options.pairs] for half, found in halves(traces).items()}
    methods = options.method or METHODS
    wanted = [(method, number) for number in range(1, options.trainings + 1) for method in methods]
    raw = Raw(options.raw)
    lines, page = [], []
    with workers(options.jobs) as each:
        for load in [loads()[name] for name in options.load or loads()]:
            lacking = [
                Training(method, load, options.episodes or EPISODES[method], number)
                for method, number in wanted
                if not kept(options.models, method, load, number).is_file()
            ]
            each(trained, [(training, pairs["tuned"], traces, options.models, say) for training in lacking])
            places = [(pair, place) for place in range(options.places) for pair in pairs["judged"]]
            before = raw.cases(load)
            cases = each(
                played,
                [
                    Match(load, pair, place, traces, options.models, wanted, before.get((pair.name, place)))
                    for pair, place in places
                ],
            )
            raw.keep(load, cases)
            judged = Judged(load, cases)
            lines += tables(judged)
            page += summary(judged, [method for method in METHODS if trainings_of(judged, method)])
    print("\n".join(lines))
    if options.docs:
        write_between_marks(options.docs, page)


def summary(judged: Judged, methods: Sequence[str]) -> list[str]:
    """A row per variant in Markdown, for the page."""
    lines = [
        f"**{judged.load.bytes:,} bytes every {judged.load.every_ms} ms**, {len(judged.cases)} cases",
        "",
        "| | p99 (ms) | p99, ratio to `auto` | extra bytes (%) |",
        "|---" * 4 + "|",
    ]
    auto = judged.quantiles("auto")[-1]
    for name in [*BUILT_IN, *methods]:
        worst = judged.quantiles(name)[-1]
        ratio = "" if name == "auto" else beside(worst / auto)
        lines.append(f"| `{name}` | {worst[0] * 1e3:.3g} | {ratio} | {judged.extra_percent(name):.0f} |")
    return [*lines, f"| bound | {judged.quantiles('bound')[-1][0] * 1e3:.3g} | | |", ""]


def tables(judged: Judged) -> list[str]:
    """All tables of a load."""
    methods = [method for method in METHODS if trainings_of(judged, method)]
    return table(judged, [*BUILT_IN, *methods]) + by_training(judged, methods) + by_pair(judged, methods)


class Raw:
    """All results, stored in a file if given. Results of another build of the package are rejected."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        module = importlib.util.find_spec("marline._native")
        self.module = hashlib.sha256(Path(module.origin).read_bytes()).hexdigest()
        self.kept: dict[str, list[dict[str, Any]]] = {}
        if path and path.is_file():
            content = json.loads(path.read_text())
            if content["module"] != self.module:
                raise SystemExit(f"{path} has runs of another build of the package: choose another file")
            self.kept = content["cases"]

    def cases(self, load: Load) -> dict[tuple[str, int], Case]:
        """The cases of a load by pair and place."""
        return {(case["pair"], case["place"]): Case(**case) for case in self.kept.get(load.name, [])}

    def keep(self, load: Load, cases: Sequence[Case]) -> None:
        """Adds cases of a load."""
        all_of_it = self.cases(load) | {(case.pair, case.place): case for case in cases}
        self.kept[load.name] = [dataclasses.asdict(case) for case in all_of_it.values()]
        if self.path:
            self.path.write_text(json.dumps({"module": self.module, "cases": self.kept}))


def write_between_marks(docs: Path, lines: Sequence[str]) -> None:
    """Replaces the results in a page."""
    page = docs.read_text()
    before, _, rest = page.partition(MARK)
    after = rest.partition(END)[2]
    docs.write_text(f"{before}{MARK}\n" + "\n".join(lines) + f"\n{END}{after}")


def say(line: str) -> None:
    """Prints the progress of a training."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
