"""Runs as tasks of a Ray cluster, which schedules, retries and distributes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _native
from ._sweep import Task, make as make_here

# Maximum number of runs of a task, and number of tasks per processor, so that no processor waits long at the end.
_MOST_RUNS = 1_000
_TASKS_EACH = 4
# A task continues where a killed one stopped. If this many are killed, the cluster counts as faulty.
_RETRIES = 10

# The plan of the worker's previous task: the next task probably has the same plan.
_open: dict[str, _native.Sweep] = {}


def _task(token: str, task: Task, start: int, end: int) -> int:
    """One task: a range of runs on one processor."""
    if token not in _open:
        _open.clear()
        _open[token] = task.open()
    make_here(_open[token], start, end, 1)
    return end - start


def make(task: Task, plan: _native.Sweep, address: str | None) -> Iterator[int]:
    """Makes all runs. Yields the number of newly completed runs."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError("engine='ray' needs Ray: pip install './lab/marline-python[ray]'") from error
    begun_here = not ray.is_initialized()
    if begun_here:
        ray.init(address=address, logging_level="WARNING")
    try:
        yield from _made(ray, task, plan)
    finally:
        if begun_here:
            ray.shutdown()


def _made(ray: Any, task: Task, plan: _native.Sweep) -> Iterator[int]:
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
    pieces = plan.pieces(max(1, min(_MOST_RUNS, plan.runs // (_TASKS_EACH * processors))))
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_task)
    shared = ray.put(task)
    waiting: list[Any] = []
    try:
        for start, end in pieces:
            # Submits only enough tasks to keep the cluster busy, not all tasks of a million runs.
            if len(waiting) >= _TASKS_EACH * processors:
                done, waiting = ray.wait(waiting)
                yield sum(ray.get(done))
            waiting.append(remote.remote(shared.hex(), shared, start, end))
        while waiting:
            done, waiting = ray.wait(waiting)
            yield sum(ray.get(done))
    except BaseException:
        for one in waiting:
            ray.cancel(one)
        raise
