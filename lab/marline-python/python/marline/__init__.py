"""Multipath TCP in virtual time: Marline's lab as a Python package.

>>> import marline
>>> experiment = marline.Experiment(
...     paths={"wifi": "rate=20M,delay=10ms", "lte": "rate=10M,delay=40ms"},
...     workload={"kind": "bursts", "bytes": "20kB", "gap": "100ms", "count": 5},
...     variants=[{"name": "auto"}, {"name": "min-rtt", "scheduler": "min-rtt"}],
... )
>>> results = experiment.run(seeds=range(1, 3))
>>> [row[1] for row in results.summary()[1:]]
['auto', 'min-rtt']
"""

from ._native import ExperimentError, Forecast
from .experiment import Experiment
from .policies import (
    AckSample,
    Announce,
    CloseSubflow,
    CongestionControl,
    LocalAddress,
    Mapping,
    OpenSubflow,
    PathContext,
    PathEvent,
    PathManager,
    Penalize,
    ProbeSubflow,
    Reinject,
    Reinjection,
    RemoteAddress,
    Repair,
    Scheduler,
    SchedulerContext,
    SchedulerEvent,
    Send,
    SetBackup,
    SubflowPath,
    SubflowView,
    Suspect,
    WaitUntil,
    Withdraw,
)
from ._sweep import Swept, sweep
from .results import Results, RunFailed, Table

__all__ = [
    "AckSample",
    "Announce",
    "CloseSubflow",
    "CongestionControl",
    "Experiment",
    "ExperimentError",
    "Forecast",
    "LocalAddress",
    "Mapping",
    "OpenSubflow",
    "PathContext",
    "PathEvent",
    "PathManager",
    "Penalize",
    "ProbeSubflow",
    "Reinject",
    "Reinjection",
    "RemoteAddress",
    "Repair",
    "Results",
    "RunFailed",
    "Scheduler",
    "SchedulerContext",
    "SchedulerEvent",
    "Send",
    "SetBackup",
    "SubflowPath",
    "SubflowView",
    "Suspect",
    "Swept",
    "Table",
    "WaitUntil",
    "Withdraw",
    "sweep",
]
