"""Compares a trained LinUCB with built-in schedulers, on seeds not used in training:
``python evaluate.py [--model FILE] [--seeds N]``. Links, losses and outages are the same for all."""

from __future__ import annotations

import argparse
from pathlib import Path

import marline
import numpy as np
from linucb import Agent, LinUcb, environment, experiment

FIRST_SEED = 1


def row(name: str, latencies_ms: np.ndarray) -> str:
    quantiles = np.quantile(latencies_ms, [0.5, 0.95, 0.99])
    cells = [latencies_ms.mean(), *quantiles, latencies_ms.max()]
    return f"{name:10} {len(latencies_ms):8}" + "".join(f"{cell:9.1f}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("linucb.npz"))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--messages", type=int, default=100)
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    env, agent, model = environment(options.messages), Agent(2), LinUcb.load(options.model)
    played = [agent.play(env, model, seed, learn=False) for seed in seeds]
    print(f"{'ms':10} {'messages':>8}" + "".join(f"{word:>9}" for word in ("mean", "p50", "p95", "p99", "max")))
    print(row("linucb", 1e3 * np.concatenate([latencies for latencies, _ in played])))
    results: marline.Results = experiment(options.messages).run(seeds=seeds)
    messages = results.messages.to_dict()
    variants, latencies = np.array(messages["variant"]), np.array(messages["latency_ms"])
    for variant in dict.fromkeys(messages["variant"]):
        print(row(variant, latencies[variants == variant]))
    share = sum(copies for _, copies in played) / sum(len(latencies) for latencies, _ in played)
    print(f"linucb requested copies of {100 * share:.0f} % of the messages")


if __name__ == "__main__":
    main()
