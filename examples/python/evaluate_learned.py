"""Holds learned schedulers against built-in ones on the judged half of the recorded pairs, and trains first what is not
trained: ``python evaluate_learned.py [--trace-dir DIR] [--places N] [--models DIR] [--docs FILE]``.

Every contestant plays the same places of the same pairs with the same seeds. Intervals are 95 % bootstraps over the
places, with all pairs and contestants of a place kept together.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learned import EPISODES, METHODS, built_in, kept, learned, train
from recorded import Load, Pair, halves, loads, trace_directory

BUILT_IN = ("auto", "min-rtt", "redundant", "peekaboo")
QUANTILES = (0.5, 0.95, 0.99)
RESAMPLES = 1_000
MARK = "<!-- results: made by examples/python/evaluate_learned.py --docs, not by hand -->"
END = "<!-- end of results -->"


@dataclasses.dataclass
class Case:
    """A pair at a place: latencies of each contestant and of the bound, s, and bytes that were sent again."""

    pair: str
    place: int
    latencies_s: dict[str, list[float]]
    repeated_bytes: dict[str, int]


def played(task: tuple[Load, Pair, int, Path, Path, Sequence[str]]) -> Case:
    """All contestants."""
    load, pair, place, traces, models, methods = task
    links = pair.links("judge", place)
    runs, bounds = built_in(BUILT_IN, load, links, traces, place + 1)
    by_name = dict(zip(BUILT_IN, runs))
    for method in methods:
        by_name[method] = learned(method, models, load, links, traces, place + 1)
    latencies = {name: run.latencies_s for name, run in by_name.items()} | {"bound": bounds}
    return Case(pair.name, place, latencies, {name: run.repeated_bytes for name, run in by_name.items()})


class Judged:
    """All cases of a load."""

    def __init__(self, load: Load, cases: Sequence[Case]) -> None:
        self.load, self.cases = load, cases
        self.places = sorted({case.place for case in cases})
        rng = np.random.default_rng(1)
        draws = [rng.choice(self.places, len(self.places)) for _ in range(RESAMPLES)]
        self.drawn = [np.array(self.places), *draws]
        self.by_place = {place: [case for case in cases if case.place == place] for place in self.places}

    def quantiles(self, name: str) -> np.ndarray:
        """:data:`QUANTILES` of all messages together, s: of each as it is, then of each resample. By the nearest rank,
        for a message that did not come has an infinite latency."""
        pooled = np.concatenate([case.latencies_s[name] for case in self.cases])
        places = np.repeat([case.place for case in self.cases], [len(case.latencies_s[name]) for case in self.cases])
        order = np.argsort(pooled, kind="stable")
        pooled, places = pooled[order], places[order]
        found = []
        for drawn in self.drawn:
            # How often each message is there, and how many up to each.
            ranks = np.cumsum(np.bincount(drawn, minlength=max(self.places) + 1)[places])
            wanted = np.ceil(np.array(QUANTILES) * ranks[-1])
            found.append(pooled[np.searchsorted(ranks, wanted)])
        return np.array(found).T

    def within_cases(self, of: str, over: str, share: float) -> np.ndarray:
        """The median over the cases of the ratio of two contestants' quantiles: as it is, then of each resample."""
        ratios = {}
        for place, cases in self.by_place.items():
            ratios[place] = [
                nearest_rank(case.latencies_s[of], share) / nearest_rank(case.latencies_s[over], share)
                for case in cases
            ]
        return np.array([np.median(np.concatenate([ratios[place] for place in drawn])) for drawn in self.drawn])

    def extra_percent(self, name: str) -> float:
        """Bytes that were sent again, of the payload."""
        payload = self.load.bytes * self.load.count * len(self.cases)
        return 100.0 * sum(case.repeated_bytes[name] for case in self.cases) / payload

    def missing(self, name: str) -> int:
        """Messages that did not come."""
        return sum(int(np.isinf(case.latencies_s[name]).sum()) for case in self.cases)


def nearest_rank(values: Sequence[float], share: float) -> float:
    """A quantile."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def bounds(values: np.ndarray) -> tuple[float, float]:
    """Between these 95 % of the resamples lie; one of them may be infinite."""
    low, high = np.quantile(values[1:], [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def interval(values: np.ndarray, scale: float = 1.0) -> str:
    """A value and its interval."""
    low, high = bounds(values)
    return f"{scale * values[0]:.3g} [{scale * low:.3g}, {scale * high:.3g}]"


def beside(ratios: np.ndarray) -> str:
    """A ratio to ``auto``'s: bold where it is better, and a word where it is worse."""
    low, high = bounds(ratios)
    text = interval(ratios)
    return f"**{text}**" if high < 1.0 else f"{text}, worse" if low > 1.0 else text


def table(judged: Judged, names: Sequence[str]) -> list[str]:
    """Markdown."""
    load = judged.load
    lines = [
        f"**{load.bytes:,} bytes every {load.every_ms} ms**: {len(judged.cases)} cases, "
        f"{len(judged.cases) * (load.count - load.left_out):,} messages",
        "",
        "| | p50 (ms) | p95 (ms) | p99 (ms) | p50 over `auto`'s | p95 over `auto`'s | p99 over `auto`'s "
        "| p99 over `auto`'s, median case | p99 over the bound's, median case | extra bytes (%) | missing |",
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


def by_pair(judged: Judged, names: Sequence[str]) -> list[str]:
    """On which pairs a learned one has the better quantile, of all places together."""
    better = {name: [] for name in names}
    for pair in sorted({case.pair for case in judged.cases}):
        alone = Judged(judged.load, [case for case in judged.cases if case.pair == pair])
        auto = alone.quantiles("auto")
        for name in names:
            ratios = alone.quantiles(name) / auto
            below = [(share, ratio[0]) for share, ratio in zip(QUANTILES, ratios) if bounds(ratio)[1] < 1.0]
            words = [f"p{100 * share:.0f} {ratio:.2f}" for share, ratio in below]
            better[name] += [f"{pair} ({', '.join(words)})"] if words else []
    lines = [f"- `{name}`: {'; '.join(where) or 'on no pair'}" for name, where in better.items()]
    return ["Better than `auto` pair by pair, ratios (95 %, not corrected for their number):", "", *lines, ""]


def trained(task: tuple[Any, ...]) -> None:
    """A training."""
    train(*task)


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[Callable[..., list[Any]]]:
    """What does something with each of a list, in so many processes."""
    if jobs == 1:
        yield lambda work, tasks: [work(task) for task in tasks]
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield lambda work, tasks: pool.map(work, tasks, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace-dir", type=Path, help="directory of traces; MARLINE_TRACE_DIR without")
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory of what was learnt")
    parser.add_argument("--places", type=int, default=20, help="of each pair")
    parser.add_argument("--episodes", type=int, help="of training, where it is needed")
    parser.add_argument("--pairs", type=int, help="only so many of each half, for a look")
    parser.add_argument("--load", choices=list(loads()), action="append", help="messages; all kinds without")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes")
    parser.add_argument("--docs", type=Path, help="a page whose results are replaced")
    parser.add_argument("--raw", type=Path, help="a file for all latencies, JSON")
    parser.add_argument("--again", type=Path, help="such a file: the tables of what was played before")
    options = parser.parse_args()
    if options.again:
        shown(options.docs, [line for judged in kept_before(options.again) for line in tables(judged)])
        return
    traces = trace_directory(options.trace_dir)
    pairs = {half: found[: options.pairs] for half, found in halves(traces).items()}
    chosen = [loads()[name] for name in options.load or loads()]
    lacking = [
        (method, load, pairs["tuned"], traces, options.models, options.episodes or EPISODES[method], say)
        for method in METHODS
        for load in chosen
        if not kept(options.models, method, load).is_file()
    ]
    lines, raw = [], []
    with workers(options.jobs) as each:
        each(trained, lacking)
        for load in chosen:
            places = [(pair, place) for place in range(options.places) for pair in pairs["judged"]]
            cases = each(played, [(load, pair, place, traces, options.models, METHODS) for pair, place in places])
            lines += tables(Judged(load, cases))
            raw += [dataclasses.asdict(case) | {"load": load.name} for case in cases]
    if options.raw:
        options.raw.write_text(json.dumps(raw))
    shown(options.docs, lines)


def tables(judged: Judged) -> list[str]:
    """Of a load."""
    return table(judged, [*BUILT_IN, *METHODS]) + by_pair(judged, METHODS)


def kept_before(raw: Path) -> Iterator[Judged]:
    """What ``--raw`` wrote."""
    cases = json.loads(raw.read_text())
    for name in dict.fromkeys(case["load"] for case in cases):
        mine = [{key: value for key, value in case.items() if key != "load"} for case in cases if case["load"] == name]
        yield Judged(loads()[name], [Case(**case) for case in mine])


def shown(docs: Path | None, lines: Sequence[str]) -> None:
    """Prints, and writes into a page."""
    print("\n".join(lines))
    if docs:
        page = docs.read_text()
        before, _, rest = page.partition(MARK)
        after = rest.partition(END)[2]
        docs.write_text(f"{before}{MARK}\n" + "\n".join(lines) + f"\n{END}{after}")


def say(line: str) -> None:
    """Of a training."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
