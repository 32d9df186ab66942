"""Steps of an environment per second of CPU time, including a policy: ``python speed.py [--mbit N]``.

By default 50 Mbit/s of bulk data over two paths, with steps of 10 ms and a policy in NumPy that weights paths by their
forecasts. Counts the CPU time of all threads, so that other load on the machine matters little."""

from __future__ import annotations

import argparse
import time

import marline
import marline.gym
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=float, default=50.0, help="total rate of both paths in Mbit/s")
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    wifi, lte = 0.6 * options.mbit, 0.4 * options.mbit
    experiment = marline.Experiment(
        paths={"wifi": f"rate={wifi}M,delay=10ms,queue=50ms", "lte": f"rate={lte}M,delay=30ms,queue=50ms"},
        workload={"kind": "bulk", "lasts": "60s"},
    )
    env = marline.gym.MarlineVectorEnv(experiment, options.envs, threads=options.threads)
    width = len(marline.gym.FEATURES_OF_PATH)
    p90 = marline.gym.FEATURES_OF_PATH.index("forecast_p90_s")
    seen, _ = env.reset(seed=1)
    for _ in range(50):
        seen, *_ = env.step(np.ones((options.envs, 2), np.float32))
    begin, steps = time.process_time(), 0
    while time.process_time() - begin < options.seconds:
        forecasts = seen[:, : 2 * width].reshape(-1, 2, width)[:, :, p90]
        seen, *_ = env.step((1.0 / (0.001 + forecasts) / 1000.0).astype(np.float32))
        steps += options.envs
    took = time.process_time() - begin
    print(f"{steps / took:.0f} steps of 10 ms per second of CPU time, {1e6 * took / steps:.0f} us each")


if __name__ == "__main__":
    main()
