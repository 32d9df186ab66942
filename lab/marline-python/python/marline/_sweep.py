"""Sweep: every combination of an experiment's values, made into a store on disk by threads or by a Ray cluster."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from . import _native
from .experiment import Experiment, _watch
from .results import RunFailed, aligned

# Runs that are planned at once; a thread may wait for the others at their end.
_AT_ONCE = 4_096


class Swept:
    """What a sweep showed. Its tables are files: ``runs``, ``messages`` and, of combinations, ``sweep``."""

    def __init__(
        self, directory: Path, rows: list[list[str]], warnings: list[str], warned: int, failed: int
    ) -> None:
        self.directory = directory
        """Where the tables are."""
        self.rows = rows
        """The table that ``marline-lab sweep`` prints, its head first."""
        self.warnings = warnings
        """What makes runs doubtful or failed, the first hundred of it."""
        self.warnings_count = warned
        """How many warnings there are."""
        self.failed = failed
        """Runs that failed."""

    def __str__(self) -> str:
        return aligned(self.rows)


@dataclasses.dataclass(frozen=True)
class Task:
    """Description of the runs to make."""

    experiment: Experiment
    place: Path
    policies: str
    count: int
    seeds: list[int] | None

    def open(self) -> _native.Sweep:
        """The plan, with the store of this process' build of Marline."""
        program = _identity() + self.policies
        return _native.Sweep(self.experiment._plan, self.place, program, self.count, self.seeds)


def sweep(
    experiment: Experiment | str | PathLike[str],
    seeds: int | Iterable[int] = 10,
    *,
    store: str | PathLike[str],
    engine: str = "local",
    address: str | None = None,
    jobs: int = 0,
    formats: Sequence[str] = ("csv",),
    policies: str | None = None,
    progress: bool = False,
    on_error: str = "raise",
) -> Swept:
    """Runs every variant with each seed at every combination of the file's table ``[sweep]``, in virtual time.

    ``experiment``: one, or its file. ``seeds``: a number of seeds from the experiment's own on, or the seeds.
    ``store``: a directory, which has the tables of ``marline-lab sweep --out`` afterwards, byte for byte, in
    ``formats`` (``csv``, ``parquet``). Each run is kept in its subdirectory ``runs``: what is there is not made again,
    so what was interrupted goes on, and a task that is repeated costs what it had not done.

    ``engine``: ``"local"``, native threads (``jobs``, 0 for as many as there are processors), or ``"ray"``, tasks of
    one variant and many seeds on the Ray cluster at ``address`` (none: the one that Ray finds, else a local one).
    All its machines have the same build of this package, and see ``store`` under the same name.

    A store can not see what a class in Python does. An experiment with policies of yours needs ``policies``, a text
    that is another whenever their code is, as the commit that it is at.

    Runs that fail raise :class:`marline.RunFailed` once all others are made; with ``on_error="keep"`` they are in the
    tables with their error. What is under way when it ends by Ctrl-C is lost, and nothing else.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine={engine!r}: expected 'local' or 'ray'")
    if address is not None and engine != "ray":
        raise ValueError("address is of engine='ray'")
    if on_error not in ("raise", "keep"):
        raise ValueError(f"on_error={on_error!r}: expected 'raise' or 'keep'")
    if not isinstance(experiment, Experiment):
        experiment = Experiment.from_toml(experiment)
    if experiment._has_classes and not policies:
        raise ValueError(
            "this experiment has policies written in Python, and what was run with one state of their code is no "
            "result of another: name the state, as policies='commit 1f0c'"
        )
    place = Path(store).resolve()
    place.mkdir(parents=True, exist_ok=True)
    count, given = (seeds, None) if isinstance(seeds, int) else (0, list(seeds))
    task = Task(experiment, place, f" {policies}" if policies else "", count, given)
    plan = task.open()
    if engine == "ray":
        from . import _ray

        made = _ray.make(task, plan, address)
    else:
        made = _made_here(plan, jobs)
    for _ in _counted(made, plan.runs, progress):
        pass
    swept = Swept(place, *plan.collect(list(formats)))
    if swept.failed and on_error == "raise":
        raise RunFailed(f"{swept.failed} of {plan.runs} runs; {swept.warnings[0]}")
    return swept


@functools.cache
def _identity() -> str:
    return _native.identity(str(_native.__file__))  # type: ignore[attr-defined,unused-ignore]


def _made_here(plan: _native.Sweep, jobs: int) -> Iterator[int]:
    """Makes all runs; how many more are made, again and again."""
    for start in range(0, plan.runs, _AT_ONCE):
        end = min(start + _AT_ONCE, plan.runs)
        make(plan, start, end, jobs)
        yield end - start


def make(plan: _native.Sweep, start: int, end: int, jobs: int) -> None:
    """Makes the runs from one to another that are missing."""
    running = plan.start(start, end, jobs)
    try:
        _watch(running, False)
    except BaseException:
        running.cancel()
        raise


def _counted(made: Iterator[int], runs: int, progress: bool) -> Iterator[int]:
    """The same with a bar, if tqdm is installed."""
    bar: Any = None
    if progress:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            pass
        else:
            bar = tqdm(total=runs, unit="run")
    for more in made:
        if bar is not None:
            bar.update(more)
        yield more
    if bar is not None:
        bar.close()
