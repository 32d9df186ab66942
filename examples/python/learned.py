"""Learned schedulers on recorded links: training, and runs with the trained models.

``train_learned.py`` trains one, on pairs of the tuned half; ``evaluate_learned.py`` compares all with built-in
schedulers on the judged half. A model is a file of some kilobytes that can be reproduced from the method, the load,
the number of episodes, and the number of the training, which is the seed of its random numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import linucb
import marline
import marline.gym
import numpy as np
from dqn import Dqn
from olaps import Olaps
from recorded import Load, Pair

METHODS = ("olaps", "dqn", "dqn-copies", "linucb")
STEP_S = 0.05
"""Time between two decisions of step-wise learners. Messages start at the beginning of a step."""
COPY_COST_S = 0.01
"""Minimum average saving in seconds that justifies the bytes of a copy of a whole message."""
EPISODES = {"olaps": 40, "dqn": 1_000, "dqn-copies": 1_000, "linucb": 200}
GRID = [{"gamma": gamma, "drop": drop} for gamma in (0.1, 0.2, 0.4) for drop in (0.3, 0.6)]
"""Candidate parameters of OLAPS, which learns again in each connection."""


@dataclasses.dataclass
class Played:
    """Results of a run: latencies in seconds of the messages after the warm-up (infinite for missing ones), and
    bytes sent again."""

    latencies_s: list[float]
    repeated_bytes: int


def finished(load: Load, latencies_s: Sequence[float], repeated_bytes: int) -> Played:
    """Adds the missing messages and removes those of the warm-up."""
    missing = [math.inf] * (load.count - len(latencies_s))
    return Played([*latencies_s, *missing][load.left_out :], repeated_bytes)


class Steps:
    """A step-wise learner: a network, or LinUCB."""

    def __init__(self, method: str, seed: int = 1) -> None:
        self.method = method
        self.network = Dqn(copies=method == "dqn-copies", seed=seed) if method != "linucb" else None
        self.agent = linucb.Agent(2)
        self.bandit = linucb.LinUcb(len(self.agent.arms), self.agent.features)

    @property
    def actions(self) -> str:
        """The environment's kind of actions."""
        return self.network.actions if self.network else "path"

    def play(self, env: marline.gym.MarlineEnv, load: Load, seed: int, explore: float | None = None) -> Played:
        """Makes a run, and learns from it with ``explore``."""
        observation, _ = env.reset(seed=seed)
        latencies: list[float] = []
        repeated, over = 0, False
        # Normalizes the reward if a step has several messages.
        scale = max(1.0, 1e3 * STEP_S / load.every_ms)
        cost = COPY_COST_S / load.bytes
        if self.network:
            self.network.begin()
            self.network.explore = explore or 0.0
        seen = self._see(observation)
        while not over:
            choice = self._choose(seen, explore is not None)
            observation, reward, terminated, truncated, info = env.step(self._action(choice))
            latencies += info["latencies_s"]
            over = terminated or truncated
            after = self._see(observation)
            if explore is not None:
                before, repeated = repeated, env.repeated_bytes
                # Without waiting messages, the choice had no effect.
                if reward < 0.0:
                    waits = observation[-2] > 0.0 and not over
                    self._learn(seen, choice, (reward - cost * (repeated - before)) / scale, after, waits)
            seen = after
        return finished(load, latencies, env.repeated_bytes)

    def _see(self, observation: np.ndarray) -> np.ndarray:
        return self.network.look(observation) if self.network else self.agent.see(observation)

    def _choose(self, seen: np.ndarray, explore: bool) -> int:
        return self.network.choose(seen) if self.network else self.bandit.choose(seen, explore)

    def _action(self, choice: int) -> np.ndarray:
        return self.network.action(choice) if self.network else np.array(self.agent.arms[choice])

    def _learn(self, seen: np.ndarray, choice: int, reward: float, after: np.ndarray, waits: bool) -> None:
        if self.network:
            # In tenths of a second, so that most errors are within Huber's bound and few are tiny.
            self.network.learn(seen, choice, 10.0 * reward, after, waits)
        else:
            self.bandit.learn(choice, seen, reward)

    def save(self, path: Path) -> None:
        """Writes the model to a file."""
        self.network.save(path) if self.network else self.bandit.save(path)

    def load(self, path: Path) -> None:
        """Reads a model from a file."""
        if self.network:
            self.network.load(path)
        else:
            self.bandit = linucb.LinUcb.load(path)


def environment(load: Load, links: dict[str, str], traces: Path, actions: str) -> marline.gym.MarlineEnv:
    """The environment on these links, from the point of view of the sending server."""
    return marline.gym.MarlineEnv(load.experiment(links, traces), step=STEP_S, actions=actions, reward="waiting")


def kept(models: Path, method: str, load: Load, training: int = 1) -> Path:
    """The file of a model."""
    which = "" if training == 1 else f"-{training}"
    return models / f"{method}-{load.name}{which}.{'json' if method == 'olaps' else 'npz'}"


@dataclasses.dataclass(frozen=True)
class Training:
    """A training: method, messages, number of runs, and its number, which seeds its pairs, places, links and
    exploration."""

    method: str
    load: Load
    episodes: int
    number: int = 1

    def drawn(self) -> random.Random:
        """The random numbers that select pairs."""
        name = f"train/{self.method}/{self.load.name}"
        return random.Random(name if self.number == 1 else f"{name}/{self.number}")

    def links(self, pair: Pair, episode: int) -> dict[str, str]:
        """The links of a pair in an episode."""
        return pair.links("train" if self.number == 1 else f"train/{self.number}", episode)

    def seed(self, episode: int) -> int:
        """The seed of an episode."""
        return 1_000 * self.number + episode


def train(
    training: Training, tuned: Sequence[Pair], traces: Path, models: Path, say: Callable[[str], None]
) -> None:
    """Trains a method on places of pairs of the tuned half."""
    wrong = [pair.name for pair in tuned if pair.half != "tuned"]
    if wrong or not tuned:
        raise ValueError(f"training needs at least one pair, and only pairs of the tuned half, not {wrong}")
    models.mkdir(parents=True, exist_ok=True)
    method, load, episodes = training.method, training.load, training.episodes
    file = kept(models, method, load, training.number)
    if method == "olaps":
        best = min(GRID, key=lambda values: _tried(values, training, tuned, traces, say))
        file.write_text(json.dumps({**best, "seed": training.number}))
        return
    learner, drawn = Steps(method, training.number), training.drawn()
    means: list[float] = []
    for episode in range(episodes):
        pair = drawn.choice(tuned)
        env = environment(load, training.links(pair, episode), traces, learner.actions)
        played = learner.play(env, load, training.seed(episode), explore=_explored(episode / episodes))
        came = [latency for latency in played.latencies_s if math.isfinite(latency)]
        means.append(1e3 * float(np.mean(came)) if came else math.nan)
        if (episode + 1) % max(1, episodes // 10) == 0:
            last = means[-max(1, episodes // 10) :]
            mean = np.nanmean(last)
            say(f"{file.stem}: {episode + 1} episodes, mean of the last {len(last)}: {mean:.1f} ms")
    learner.save(file)


def _explored(done: float) -> float:
    """The probability of exploring: 1 at first, 0.05 in the second half."""
    return max(0.05, 1.0 - 1.9 * done)


def _tried(
    values: dict[str, float], training: Training, tuned: Sequence[Pair], traces: Path, say: Callable[[str], None]
) -> float:
    """The mean latency of OLAPS with these parameters."""
    drawn, load = {**values, "seed": training.number}, training.load
    played = [
        olaps(drawn, load, training.links(tuned[place % len(tuned)], place), traces, training.seed(place))
        for place in range(training.episodes)
    ]
    mean = float(np.mean([min(latency, 15.0) for run in played for latency in run.latencies_s]))
    say(f"olaps {load.name}, training {training.number}: {values}: mean {1e3 * mean:.1f} ms")
    return mean


def olaps(values: dict[str, float], load: Load, links: dict[str, str], traces: Path, seed: int) -> Played:
    """A run of OLAPS with these parameters."""
    parameters = "".join(f",{key}={value}" for key, value in values.items())
    return built_in([f"olaps{parameters}"], load, links, traces, seed)[0][0]


def built_in(
    schedulers: Sequence[str], load: Load, links: dict[str, str], traces: Path, seed: int
) -> tuple[list[Played], list[float]]:
    """A run of each of these schedulers, and the clairvoyant bounds of the latencies in seconds."""
    experiment = load.experiment(links, traces, schedulers, {"olaps": Olaps})
    results = experiment.run(seeds=[seed], jobs=1)
    messages, runs = results.messages.to_dict(), results.runs.to_dict()
    by_variant: dict[str, list[float]] = {name: [] for name in schedulers}
    bounds: dict[int, float] = {}
    columns = ("variant", "index", "latency_ms", "least_ms", "counted")
    for variant, index, latency, least, counts in zip(*(messages[column] for column in columns)):
        if counts:
            by_variant[variant].append(latency / 1e3)
            bounds[index] = least / 1e3
    wanted = load.count - load.left_out
    played = []
    for variant, repeated in zip(runs["variant"], runs["reinjected_bytes"]):
        came = by_variant[variant]
        played.append(Played(came + [math.inf] * (wanted - len(came)), repeated))
    return played, [bounds[index] for index in sorted(bounds)]


def learned(file: Path, method: str, load: Load, links: dict[str, str], traces: Path, seed: int) -> Played:
    """A run of a trained model from its file."""
    if method == "olaps":
        return olaps(json.loads(file.read_text()), load, links, traces, seed)
    learner = Steps(method)
    learner.load(file)
    return learner.play(environment(load, links, traces, learner.actions), load, seed)
