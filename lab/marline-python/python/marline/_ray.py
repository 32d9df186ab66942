"""Runs as tasks of a Ray cluster, which schedules, repeats and places them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _native
from ._sweep import Task, make as make_here

# Most runs of a task; and so many tasks for each processor, so that none waits long at the end.
_MOST_RUNS = 1_000
_TASKS_EACH = 4
# A task goes on where the one before it was killed. What kills each of so many is a fault of the cluster.
_RETRIES = 10

# The plan of the task before, in a worker: the next is most likely of the same.
_open: dict[str, _native.Sweep] = {}


def _task(token: str, task: Task, start: int, end: int) -> int:
    """One task: the runs from one to another, on one processor."""
    if token not in _open:
        _open.clear()
        _open[token] = task.open()
    make_here(_open[token], start, end, 1)
    return end - start


def make(task: Task, plan: _native.Sweep, address: str | None) -> Iterator[int]:
    """Makes all runs; how many more are made, again and again."""
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
            # As many as keep the cluster busy: a million runs are not a million tasks that wait.
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
