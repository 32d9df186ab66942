"""Shared code of the tests."""

from __future__ import annotations

import marline

PATHS = {"wifi": "rate=20M,delay=10ms,queue=50ms,loss=1%", "lte": "rate=10M,delay=40ms,queue=100ms"}
BURSTS = {"kind": "bursts", "bytes": "20kB", "gap": "100ms", "count": 10}


def experiment(scheduler: object = None, **more: object) -> marline.Experiment:
    """A small experiment with one variant."""
    variant: dict[str, object] = {"name": "it", "scheduler": scheduler, **more}
    return marline.Experiment(paths=PATHS, workload=BURSTS, variants=[variant])


class Fastest(marline.Scheduler):
    """The fastest subflow that accepts data; others only while it is full."""

    probe_patience_us = None

    def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
        if not cx.unsent_bytes:
            return None
        usable = [view for view in cx.subflows if view.active and view.health == "usable"]
        ready = [view for view in usable or cx.subflows if view.ready]
        if ready:
            best = min(ready, key=lambda view: (view.srtt_us is None, view.srtt_us or 0.0))
            return marline.Send(best.id, run=True)
        opens = [view.opens_at_us for view in usable if view.opens_at_us is not None]
        return marline.WaitUntil(min(opens)) if opens else None
