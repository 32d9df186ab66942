"""Trains LinUCB on some seeds and stores the model: ``python train.py [--episodes N] [--out FILE]``."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from linucb import Agent, LinUcb, environment

FIRST_SEED = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=60, help="number of runs of 100 messages each")
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("linucb.npz"))
    options = parser.parse_args()
    env = environment(options.messages)
    agent = Agent(2)
    model = LinUcb(len(agent.arms), agent.features)
    means = []
    for episode in range(options.episodes):
        latencies, copies = agent.play(env, model, FIRST_SEED + episode, learn=True)
        means.append(1e3 * np.mean(latencies))
        if (episode + 1) % 10 == 0:
            print(f"{episode + 1:4} episodes: mean {np.mean(means[-10:]):.1f} ms, {copies} copies in the last")
    model.save(options.out)
    print(f"{options.out}: {options.episodes} episodes, starting with seed {FIRST_SEED}")


if __name__ == "__main__":
    main()
