"""Experiment: paths, a workload on them, and the compared variants."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from . import _native
from ._toml import dumps
from .policies import CongestionControl, PathManager, Scheduler
from .results import Results, RunFailed

_KINDS: tuple[tuple[str, type], ...] = (
    ("scheduler", Scheduler),
    ("path_manager", PathManager),
    ("congestion", CongestionControl),
)
_WORDS = {bool: "bool", int: "int", float: "float", str: "str"}


class Experiment:
    """A checked experiment. It runs in virtual time, and equal seeds give equal runs.

    The arguments are those of an experiment file (docs/research/lab.md): ``paths`` maps names to links, or to tables
    of a ``[[path]]``; ``workload``, ``variants``, ``faults`` and ``events`` are tables; other keys of a file
    (``warm_up``, ``patience``, ``seed``, ``title``) are keyword arguments.

    A variant's ``scheduler``, ``path_manager`` or ``congestion`` is a name, or a class derived from
    :class:`marline.Scheduler`, :class:`marline.PathManager` or :class:`marline.CongestionControl`. Keyword
    arguments of its ``__init__`` that have a default are its parameters.

    Raises :class:`marline.ExperimentError` with the error and its position.
    """

    def __init__(
        self,
        paths: Mapping[str, str | Mapping[str, Any]],
        workload: Mapping[str, Any],
        variants: Sequence[Mapping[str, Any]] = (),
        *,
        faults: Sequence[Mapping[str, Any]] = (),
        events: Sequence[Mapping[str, Any]] = (),
        trace_dir: str | PathLike[str] | None = None,
        policies: Mapping[str, type] | None = None,
        name: str = "experiment",
        **more: Any,
    ) -> None:
        classes = dict(policies or {})
        tables: list[dict[str, Any]] = []
        for variant in variants:
            table = dict(variant)
            for kind, _ in _KINDS:
                if isinstance(table.get(kind), type):
                    table[kind] = _named(classes, table[kind])
            tables.append(table)
        document: dict[str, Any] = dict(more)
        document["workload"] = dict(workload)
        document["path"] = [
            {"name": key, **({"link": path} if isinstance(path, str) else path)}
            for key, path in paths.items()
        ]
        document["variant"] = tables
        document["fault"] = [dict(fault) for fault in faults]
        document["event"] = [dict(event) for event in events]
        self._open(name, dumps(document), trace_dir, classes)

    @classmethod
    def from_toml(
        cls,
        source: str | PathLike[str],
        *,
        trace_dir: str | PathLike[str] | None = None,
        policies: Mapping[str, type] | None = None,
    ) -> Experiment:
        """Reads a file, or a text with line breaks.

        ``policies`` are classes by their names in the file.
        """
        if isinstance(source, str) and "\n" in source:
            name, text = "experiment", source
        else:
            path = Path(source)
            name, text = str(path), path.read_text(encoding="utf-8")
        made = cls.__new__(cls)
        made._open(name, text, trace_dir, dict(policies or {}))
        return made

    @property
    def _has_classes(self) -> bool:
        return bool(self._arguments[3])

    def _open(
        self,
        name: str,
        text: str,
        trace_dir: str | PathLike[str] | None,
        classes: dict[str, type],
    ) -> None:
        directory = None if trace_dir is None else Path(trace_dir)
        described = [_described(name, policy) for name, policy in classes.items()]
        self._plan = _native.Plan(name, text, directory, described)
        self._arguments = (name, text, directory, classes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopened, self._arguments)

    def __repr__(self) -> str:
        return f"<Experiment {self.title or self._arguments[0]!r}: {', '.join(self.variants)}>"

    @property
    def title(self) -> str:
        """Title."""
        return self._plan.title

    @property
    def paths(self) -> list[str]:
        """Names of the paths."""
        return self._plan.paths

    @property
    def variants(self) -> list[str]:
        """Names of the variants that run in virtual time."""
        return self._plan.variants

    def to_toml(self) -> str:
        """The experiment as a file for ``marline-lab run``, which does not know policies written in Python."""
        return self._plan.text

    def run(
        self,
        seeds: int | Iterable[int] = 10,
        *,
        variants: Sequence[str] | None = None,
        jobs: int = 0,
        progress: bool = False,
        timelines: float | None = None,
        pcap: str | PathLike[str] | None = None,
        qlog: str | PathLike[str] | None = None,
        on_error: str = "raise",
    ) -> Results:
        """Runs every variant once with each seed, in virtual time.

        ``seeds``: a number of seeds starting with the experiment's own, or the seeds. ``jobs``: number of threads, 0:
        one per processor; results do not depend on it. ``progress``: shows a progress bar, if tqdm is installed.
        ``timelines``: also record the subflows, with this sample interval in seconds. ``pcap``, ``qlog``:
        directories, created if necessary, for a capture of each end of each run (``VARIANT-SEED-END.pcapng``) and a
        trace of each (``.sqlog``, with a drawing, ``.svg``): the files of ``marline-lab run --pcap --qlog``, byte for
        byte. Runs are repeated for them. Omitted files cause a warning.

        An exception of a policy written in Python ends all runs and is raised here. Other failures raise
        :class:`marline.RunFailed`; with ``on_error="keep"`` they are in the table ``runs``. Ctrl-C abandons runs in
        progress.
        """
        if on_error not in ("raise", "keep"):
            raise ValueError(f"on_error={on_error!r}: expected 'raise' or 'keep'")
        if isinstance(seeds, int):
            seeds = range(self._plan.seed, self._plan.seed + seeds)
        interval = None if timelines is None else round(timelines * 1e6)
        chosen = None if variants is None else list(variants)
        files = (None if pcap is None else Path(pcap), None if qlog is None else Path(qlog))
        running = self._plan.start(list(seeds), jobs, chosen, interval, files)
        try:
            _watch(running, progress)
        except BaseException:
            running.cancel()
            raise
        for cut in running.cut():
            warnings.warn(cut, stacklevel=2)
        results = Results(running.results())
        error = results.error
        if error is not None and on_error == "raise":
            raise RunFailed(error)
        return results


def _reopened(name: str, text: str, directory: Path | None, classes: dict[str, type]) -> Experiment:
    made = Experiment.__new__(Experiment)
    made._open(name, text, directory, classes)
    return made


def _watch(running: _native.Running, progress: bool) -> None:
    """Waits for the end in short intervals, so that Python can handle Ctrl-C."""
    bar = None
    if progress:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            pass
        else:
            bar = tqdm(total=running.progress()[1], unit="run")
    try:
        over = False
        while not over:
            over = running.wait(0.1)
            if bar is not None:
                bar.update(running.progress()[0] - bar.n)
    finally:
        if bar is not None:
            bar.close()


def _named(classes: dict[str, type], policy: type) -> str:
    """Adds a class to the document and returns its name."""
    base = "".join("-" + c.lower() if c.isupper() else c for c in policy.__name__).strip("-")
    base = "py-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in base)
    name, number = base, 1
    while classes.get(name, policy) is not policy:
        number += 1
        name = f"{base}-{number}"
    classes[name] = policy
    return name


def _described(
    name: str, policy: type
) -> tuple[str, str, type, list[tuple[str, str, str]]]:
    """Kind, name, class and parameters of a policy."""
    kind = next((kind for kind, base in _KINDS if issubclass(policy, base)), None)
    if kind is None:
        raise TypeError(
            f"{policy!r} is not derived from marline.Scheduler, marline.PathManager or "
            "marline.CongestionControl"
        )
    parameters = []
    for parameter in inspect.signature(policy).parameters.values():
        word = _WORDS.get(type(parameter.default))
        if word is not None:
            default = parameter.default
            text = ("on" if default else "off") if word == "bool" else str(default)
            parameters.append((parameter.name, text, word))
    return kind, name, policy, parameters
