"""LinUCB: a contextual bandit that chooses, for each message, its path and whether the other path carries a copy.

*Source.* Li, Chu, Langford and Schapire (WWW 2010) choose by the upper confidence bound of one linear model per arm;
Peekaboo (Wu, Alay, Brunstrom, Ferlin, Caso, JSAC 2020) schedules Multipath TCP in this way. Written from the papers'
descriptions. Peekaboo decides for each segment and adds a stochastic stage; this code decides for each step of the
environment, which is one message long.

*Reward.* Minus the time, in seconds, that messages waited in the step, and minus a cost for a copy.
"""

from __future__ import annotations

from pathlib import Path

import marline
import marline.gym
import numpy as np

GAP_S = 0.1
COPY_COST_S = 0.002
"""Minimum average gain in seconds that justifies the bytes of a copy."""


def experiment(messages: int) -> marline.Experiment:
    """Bursts of 30 kB over WiFi with losses and short outages, and a slower, steady LTE."""
    return marline.Experiment(
        paths={
            "wifi": "rate=40M,delay=8ms,jitter=4ms,queue=80ms,loss=1%,flap=3s:400ms",
            "lte": "rate=15M,delay=35ms,queue=150ms",
        },
        workload={"kind": "bursts", "bytes": "30kB", "gap": f"{GAP_S * 1e3:.0f}ms", "count": messages},
        variants=[
            {"name": "auto"},
            {"name": "min-rtt", "scheduler": "min-rtt"},
            {"name": "redundant", "scheduler": "redundant"},
        ],
        patience="10s",
        title="bursts of 30 kB over flapping WiFi and LTE",
    )


class LinUcb:
    """One linear model of the reward per arm; chooses the arm with the highest upper confidence bound."""

    def __init__(self, arms: int, features: int, alpha: float = 0.3, ridge: float = 1.0) -> None:
        self.alpha = alpha
        self.inverse = np.stack([np.eye(features) / ridge] * arms)
        self.sums = np.zeros((arms, features))

    def choose(self, seen: np.ndarray, explore: bool = True) -> int:
        """The arm for these features."""
        theta = np.einsum("aij,aj->ai", self.inverse, self.sums)
        bound = theta @ seen
        if explore:
            bound = bound + self.alpha * np.sqrt(np.einsum("i,aij,j->a", seen, self.inverse, seen))
        return int(np.argmax(bound))

    def learn(self, arm: int, seen: np.ndarray, reward: float) -> None:
        """Learns a reward (updates the inverse by Sherman and Morrison's formula)."""
        inverse = self.inverse[arm]
        step = inverse @ seen
        self.inverse[arm] = inverse - np.outer(step, step) / (1.0 + seen @ step)
        self.sums[arm] += reward * seen

    def save(self, path: Path) -> None:
        """Writes the model to a file."""
        np.savez(path, inverse=self.inverse, sums=self.sums)

    @classmethod
    def load(cls, path: Path) -> LinUcb:
        """Reads a model from a file."""
        kept = np.load(path)
        arms, features = kept["sums"].shape
        model = cls(arms, features)
        model.inverse, model.sums = kept["inverse"], kept["sums"]
        return model


class Agent:
    """Arms and features of an environment with ``actions="path"``."""

    def __init__(self, paths: int) -> None:
        others = [(path, copy) for path in range(paths) for copy in range(paths) if copy != path]
        self.arms = [(path, paths) for path in range(paths)] + others
        self.paths = paths

    @property
    def features(self) -> int:
        """Number of the model's inputs."""
        return 1 + 6 * self.paths

    def see(self, observation: np.ndarray) -> np.ndarray:
        """A one, followed by features of each path that predict its latency, scaled to about 0 to 1."""
        width = len(marline.gym.FEATURES_OF_PATH)
        rows = observation[: width * self.paths].reshape(self.paths, width)
        at = marline.gym.FEATURES_OF_PATH.index
        chosen = [
            rows[:, at("usable")] * rows[:, at("active")],
            np.minimum(rows[:, at("forecast_p50_s")] * 5.0, 2.0),
            np.minimum(rows[:, at("forecast_p90_s")] * 5.0, 2.0),
            np.minimum(rows[:, at("in_flight_64kib")], 2.0),
            np.minimum(rows[:, at("queued_s")] * 5.0, 2.0),
            np.minimum(rows[:, at("risk_in_100ms")], 1.0),
        ]
        return np.concatenate([[1.0], *chosen])

    def play(
        self, env: marline.gym.MarlineEnv, model: LinUcb, seed: int, learn: bool
    ) -> tuple[list[float], int]:
        """Runs an episode. Returns the latencies in seconds, and the number of requested copies."""
        observation, _ = env.reset(seed=seed)
        latencies: list[float] = []
        copies = 0
        while True:
            seen = self.see(observation)
            arm = model.choose(seen, explore=learn)
            copied = self.arms[arm][1] != self.paths
            copies += copied
            observation, reward, terminated, truncated, info = env.step(np.array(self.arms[arm]))
            if learn:
                model.learn(arm, seen, reward - COPY_COST_S * copied)
            latencies += info["latencies_s"]
            if terminated or truncated:
                return latencies, copies


def environment(messages: int) -> marline.gym.MarlineEnv:
    """The environment, with one message per step."""
    return marline.gym.MarlineEnv(experiment(messages), step=GAP_S, actions="path", reward="waiting")
