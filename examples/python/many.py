"""The cost of many tiny runs: ``python many.py [--runs N]``. Prints runs per second of CPU time, first made and
then only read from the store (tables are written in both cases), and the process's maximum memory."""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path

import marline

COMBINATIONS = 25
TEXT = """
[[path]]
name = "wifi"
link = "rate=20M,delay=10ms,loss=1%"
[[path]]
name = "lte"
link = "rate=10M,delay=40ms"
[workload]
kind = "echo"
bytes = 200
gap = "50ms"
count = 10
[[variant]]
name = "auto"
[[variant]]
name = "min-rtt"
scheduler = "min-rtt"
[sweep]
"path.lte.delay" = ["20ms", "30ms", "40ms", "50ms", "60ms"]
"path.wifi.loss" = ["0", "1%", "2%", "3%", "5%"]
"""


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    seeds = max(1, parser.parse_args().runs // (2 * COMBINATIONS))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "tiny.toml")
        file.write_text(TEXT)
        for what in ("made", "read"):
            before = processor_s()
            marline.sweep(file, seeds, store=Path(name, "store"), jobs=1)
            took, runs = processor_s() - before, 2 * COMBINATIONS * seeds
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{runs} runs {what}: {runs / took:.0f} per second of CPU time, memory {most} MB")


if __name__ == "__main__":
    main()
