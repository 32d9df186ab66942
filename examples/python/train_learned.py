"""Trains a learned scheduler on the tuned half of the recorded pairs:
``python train_learned.py METHOD [--load NAME] [--training N] [--trace-dir DIR] [--models DIR] [--episodes N]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from learned import EPISODES, METHODS, Training, kept, train
from recorded import halves, loads, trace_directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=[*METHODS, "all"], help="learned method, or all")
    parser.add_argument("--load", choices=list(loads()), action="append", help="kind of messages; default: all")
    parser.add_argument("--trace-dir", type=Path, help="directory of traces; default: MARLINE_TRACE_DIR")
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory of models")
    parser.add_argument("--training", type=int, default=1, help="number of the training: seed of its random numbers")
    parser.add_argument("--episodes", type=int, help="number of runs; OLAPS: for each set of parameters")
    options = parser.parse_args()
    traces = trace_directory(options.trace_dir)
    tuned = halves(traces)["tuned"]
    for method in METHODS if options.method == "all" else [options.method]:
        for name in options.load or loads():
            load = loads()[name]
            episodes = options.episodes or EPISODES[method]
            training = Training(method, load, episodes, options.training)
            train(training, tuned, traces, options.models, lambda said: print(said, flush=True))
            file = kept(options.models, method, load, options.training)
            print(f"{file}: {episodes} episodes on {len(tuned)} pairs")


if __name__ == "__main__":
    main()
