"""Recorded pairs of links and their halves, as ``marline-lab paper auto`` has them (docs/research/papers/auto.md).

A pair belongs to the *tuned* half if the FNV-1a hash of its name is even, to the *judged* half if it is odd. Code that
tunes or trains uses only the tuned half. papers/traces.toml defines how recordings become links, and papers/auto.toml
what runs on them. This module reads both.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import itertools
import math
import os
import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marline

ROOT = Path(__file__).resolve().parents[2]
TRAIN_HEADERS = 72
"""Size in bytes of the headers of a packet recorded on the train: IPv4 and TCP with timestamps and DSS."""
TRAIN_WINDOW_MS = 500
"""Length of the windows for the rates recorded on the train."""
PATIENCE = "15s"
LEFT_OUT = "train"
"""Prefix of the names of omitted pairs: arrivals on the train are a lower bound on its links' capacity, and below
the rate of these messages, so with any scheduler they would only queue."""


def fnv1a(text: str) -> int:
    """The FNV-1a hash with 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def published(paper: str) -> dict[str, Any]:
    """The links and runs in a paper's file."""
    return tomllib.loads((ROOT / f"papers/{paper}.toml").read_text())["published"]


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recording as a link: its description before and after the start time, or its rates."""

    before: str
    after: str = ""
    period_ms: float = 0.0
    rates_bits_per_s: tuple[float, ...] = ()

    def begin(self, share: float) -> str:
        """The link that starts after this share of the recording, which is played in a loop."""
        if not self.rates_bits_per_s:
            return f"{self.before}@{int(share * self.period_ms)}ms{self.after}"
        count = len(self.rates_bits_per_s)
        first = int(share * count)
        rates = self.rates_bits_per_s[first:] + self.rates_bits_per_s[:first]
        steps = "+".join(f"{at * TRAIN_WINDOW_MS}ms:{rate:.0f}" for at, rate in enumerate(rates))
        return f"down.rate={steps}/{count * TRAIN_WINDOW_MS}ms,{self.before}"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two recordings used together. ``together`` is true if they were recorded at the same time, so that both start at
    the same position."""

    name: str
    paths: tuple[str, str]
    recordings: tuple[Recording, Recording]
    together: bool

    @property
    def half(self) -> str:
        """``tuned`` or ``judged``."""
        return "judged" if fnv1a(self.name) % 2 else "tuned"

    def links(self, master: str, place: int) -> dict[str, str]:
        """Both links, which start at random positions derived from a master seed and a number."""
        drawn = random.Random(f"{master}/{self.name}/{place}")
        first, second = drawn.random(), drawn.random()
        shares = (first, first if self.together else second)
        links = (recording.begin(share) for recording, share in zip(self.recordings, shares))
        return dict(zip(self.paths, links))


def pairs(traces: Path) -> list[Pair]:
    """Every pair in a directory of traces."""
    setup = published("traces")
    files = sorted(path for path in traces.rglob("*") if path.is_file())
    found = [pair for file in files for pair in _of_pings(file, setup["ping_link"])]
    return found + _of_rates(files, setup["recording"]) + _of_train(files, setup["train_link"])


def halves(traces: Path) -> dict[str, list[Pair]]:
    """The used pairs of each half."""
    played = [pair for pair in pairs(traces) if not pair.name.startswith(LEFT_OUT)]
    return {half: [pair for pair in played if pair.half == half] for half in ("tuned", "judged")}


def _of_pings(file: Path, link: str) -> list[Pair]:
    """All pairs of carriers in a session of pings."""
    if file.suffix != ".csv":
        return []
    with file.open(newline="") as text:
        rows = csv.DictReader(text)
        if rows.fieldnames != ["carrier", "seq", "t_send_ms", "rtt_ms"]:
            return []
        sent: dict[str, list[float]] = {}
        for row in rows:
            sent.setdefault(row["carrier"], []).append(float(row["t_send_ms"]))

    def recording(carrier: str) -> Recording:
        times = sent[carrier]
        period = times[-1] + (times[-1] - times[0]) / (len(times) - 1)
        return Recording(f"{link},ping={file.stem}:{carrier}", period_ms=period)

    return [
        Pair(f"{file.stem} {a} + {b}", (a, b), (recording(a), recording(b)), True)
        for a, b in itertools.combinations(sorted(sent), 2)
    ]


def _of_rates(files: Sequence[Path], known: Sequence[dict[str, str]]) -> list[Pair]:
    """All pairs of Mahimahi's recordings that have both directions."""
    by_name = {file.name.removesuffix(".gz"): file for file in files}
    there = []
    for one in known:
        name = one["trace"]
        down = by_name.get(f"{name}.down")
        if down is None or f"{name}.up" not in by_name:
            continue
        short = name.removesuffix("-driving").lower().removesuffix("-short")
        period = float(_text(down).split()[-1])
        there.append((short, Recording(f"trace={name}", f",{one['link']}", period)))
    return [
        Pair(f"{a} + {b}", (a, b), (first, second), False)
        for (a, first), (b, second) in itertools.combinations(there, 2)
    ]


def _of_train(files: Sequence[Path], link: str) -> list[Pair]:
    """All pairs of arrivals that were captured at the same time."""
    sets: dict[str, list[tuple[str, Path]]] = {}
    for file in files:
        words = file.name.removesuffix(".arrivals.csv.gz").split("_")
        if file.name.endswith(".arrivals.csv.gz") and len(words) == 5:
            sets.setdefault("-".join(words[:3]), []).append((words[3].lower(), file))
    return [
        Pair(f"train {a} + {b}", (a, b), (_of_arrivals(first, link), _of_arrivals(second, link)), True)
        for members in sets.values()
        for (a, first), (b, second) in itertools.combinations(members, 2)
    ]


def _of_arrivals(file: Path, link: str) -> Recording:
    sums: dict[int, int] = {}
    for row in csv.DictReader(_text(file).splitlines()):
        window = int(float(row["t_ms"]) // TRAIN_WINDOW_MS)
        sums[window] = sums.get(window, 0) + int(row["len_bytes"]) + TRAIN_HEADERS
    rates = (8e3 * sums.get(window, 0) / TRAIN_WINDOW_MS for window in range(max(sums) + 1))
    return Recording(link, rates_bits_per_s=tuple(rates))


def _text(file: Path) -> str:
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()


@dataclasses.dataclass(frozen=True)
class Load:
    """Messages of one size at a fixed interval, from the server."""

    name: str
    bytes: int
    every_ms: int
    seconds: int
    warm_up_ms: int

    @property
    def count(self) -> int:
        """Number of messages of a run."""
        return 1_000 * self.seconds // self.every_ms

    @property
    def left_out(self) -> int:
        """Number of messages that start within the warm-up."""
        return math.ceil(self.warm_up_ms / self.every_ms)

    def experiment(
        self,
        links: dict[str, str],
        traces: Path,
        schedulers: Sequence[str] = ("auto",),
        policies: dict[str, type] | None = None,
    ) -> marline.Experiment:
        """The experiment on these links, with a variant per scheduler."""
        return marline.Experiment(
            paths=links,
            workload={"kind": "bursts", "bytes": self.bytes, "gap": f"{self.every_ms}ms", "count": self.count},
            variants=[{"name": name, "scheduler": name} for name in schedulers],
            policies=policies,
            warm_up=f"{self.warm_up_ms}ms",
            patience=PATIENCE,
            trace_dir=traces,
        )


def loads() -> dict[str, Load]:
    """``small``, ``10kB`` and ``100kB``: the one-way messages of ``marline-lab paper auto``."""
    setup = published("auto")
    bursts = {burst["bytes"]: burst for burst in setup["bursts"]}
    chosen = {"small": setup["small"], "10kB": bursts[10_000], "100kB": bursts[100_000]}
    warm_up_ms = 1_000 * setup["warm_up_seconds"]
    return {name: Load(name=name, warm_up_ms=warm_up_ms, **load) for name, load in chosen.items()}


def trace_directory(given: Path | None) -> Path:
    """The directory of traces: ``given``, ``MARLINE_TRACE_DIR``, or one next to the repository."""
    named = os.environ.get("MARLINE_TRACE_DIR")
    directory = given or (Path(named) if named else ROOT.parent / "shared/traces")
    if not directory.is_dir():
        raise SystemExit(f"{directory} is not a directory: set --trace-dir or MARLINE_TRACE_DIR to the traces")
    return directory.resolve()
