"""Sweep: every combination of an experiment's values, run by threads or by a Ray cluster with a store on disk."""

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

# Number of runs in a batch. At its end, a thread may wait for the others.
_AT_ONCE = 4_096


class Swept:
    """Results of a sweep. The tables are files: ``runs``, ``messages`` and, for the combinations, ``sweep``."""

    def __init__(
        self, directory: Path, rows: list[list[str]], warnings: list[str], warned: int, failed: int
    ) -> None:
        self.directory = directory
        """Directory of the tables."""
        self.rows = rows
        """The table that ``marline-lab sweep`` prints, header first."""
        self.warnings = warnings
        """The first hundred warnings about unreliable or failed runs."""
        self.warnings_count = warned
        """Number of warnings."""
        self.failed = failed
        """Number of failed runs."""

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
        """The plan, with the store of this process's build of Marline."""
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

    ``experiment``: an experiment, or its file. ``seeds``: a number of seeds starting with the experiment's own, or
    the seeds. ``store``: a directory for the tables of ``marline-lab sweep --out``, byte for byte, in ``formats``
    (``csv``, ``parquet``). Runs are stored in its subdirectory ``runs`` and never repeated, so an interrupted sweep
    continues, and a retried task makes only the missing runs.

    ``engine``: ``"local"``, native threads (``jobs``, 0: one per processor), or ``"ray"``, tasks of one variant and
    many seeds on the Ray cluster at ``address`` (default: one found by Ray, or a local one). All its machines
    need the same build of this package, and the same path of ``store``.

    A store cannot detect changes to Python classes. An experiment with your own policies therefore needs
    ``policies``, a text that changes with their code, such as the commit.

    Failed runs raise :class:`marline.RunFailed` after all others are made; with ``on_error="keep"`` they are in the
    tables with their error. Ctrl-C loses only runs in progress.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine={engine!r}: expected 'local' or 'ray'")
    if address is not None and engine != "ray":
        raise ValueError("address needs engine='ray'")
    if on_error not in ("raise", "keep"):
        raise ValueError(f"on_error={on_error!r}: expected 'raise' or 'keep'")
    if not isinstance(experiment, Experiment):
        experiment = Experiment.from_toml(experiment)
    if experiment._has_classes and not policies:
        raise ValueError(
            "this experiment has policies written in Python, so results are only valid for one version of their code: "
            "name the version, such as policies='commit 1f0c'"
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
    """Makes all runs. Yields the number of newly completed runs."""
    for start in range(0, plan.runs, _AT_ONCE):
        end = min(start + _AT_ONCE, plan.runs)
        make(plan, start, end, jobs)
        yield end - start


def make(plan: _native.Sweep, start: int, end: int, jobs: int) -> None:
    """Makes the missing runs of a range."""
    running = plan.start(start, end, jobs)
    try:
        _watch(running, False)
    except BaseException:
        running.cancel()
        raise


def _counted(made: Iterator[int], runs: int, progress: bool) -> Iterator[int]:
    """Adds a progress bar, if tqdm is installed."""
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
