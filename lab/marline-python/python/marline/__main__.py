"""``python -m marline sweep FILE``, which ``marline-lab sweep --engine`` starts."""

from __future__ import annotations

import argparse
import sys

from . import Experiment, ExperimentError, sweep


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m marline")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sweep", help="run every combination of an experiment's table [sweep]")
    command.add_argument("file", metavar="FILE", help="the experiment, a TOML file")
    command.add_argument("--seeds", type=int, default=10, metavar="N", help="number of runs of each variant")
    command.add_argument("--out", required=True, metavar="DIR", help="directory of runs and tables")
    command.add_argument("--engine", default="local", metavar="ENGINE", help="local, ray or ray=ADDRESS")
    command.add_argument("--jobs", type=int, default=0, metavar="N", help="number of threads of engine local")
    command.add_argument("--format", default="csv", metavar="FORMAT,..", help="csv, parquet")
    command.add_argument("--trace-dir", metavar="DIR", help="directory of traces")
    asked = parser.parse_args()
    engine, _, address = asked.engine.partition("=")
    try:
        swept = sweep(
            Experiment.from_toml(asked.file, trace_dir=asked.trace_dir),
            asked.seeds,
            store=asked.out,
            engine=engine,
            address=address or None,
            jobs=asked.jobs,
            formats=asked.format.split(","),
            progress=sys.stderr.isatty(),
            on_error="keep",
        )
    except (ExperimentError, ImportError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(swept)
    for warning in swept.warnings[:12]:
        print(f"WARNING: {warning}", file=sys.stderr)
    if swept.warnings_count > 12:
        print(f"WARNING: {swept.warnings_count - 12} more; see the table `runs`", file=sys.stderr)
    print(f"\nmessages, runs and sweep ({asked.format}) in {swept.directory}")
    return 1 if swept.failed else 0


if __name__ == "__main__":
    sys.exit(main())
