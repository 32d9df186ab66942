"""Gymnasium environments: a scheduler's decision for each step of virtual time. Needs ``marline[gym]``.

>>> import marline, marline.gym
>>> experiment = marline.Experiment(
...     paths={"wifi": "rate=20M,delay=10ms", "lte": "rate=10M,delay=40ms"},
...     workload={"kind": "bursts", "bytes": "20kB", "gap": "100ms", "count": 3},
... )
>>> env = marline.gym.MarlineEnv(experiment)
>>> observation, info = env.reset(seed=1)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

**Observations** are :data:`FEATURES_OF_PATH` for each path in the experiment's order, as the sender's policies see
them (all 0 for a path without a subflow), and then :data:`FEATURES_OF_ALL`.

**Actions** ``weights``: shares of new data by path, each from 0 to 1. ``path``: the only path for new data, and the
path for copies (the number of paths means none). ``copies``: shares of new data by path, and then for each path a value
that allows copies on it if above 0.5. If no chosen path works, all working paths are used.

**Reward** ``latency``: minus the latencies, in seconds, of the messages that arrived in the step. ``waiting``: minus
the time, in seconds, that messages waited in the step; the sum over an episode equals the sum of all latencies,
including those of messages that never arrived.

An episode is a run of the experiment. It terminates when all messages have arrived (blocks: at the workload's end)
and is truncated at the end of the experiment's patience. Equal seeds and actions give equal episodes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from . import _native
from .experiment import Experiment

FEATURES_OF_PATH, FEATURES_OF_ALL = _native.Environments.features()

Floats = npt.NDArray[np.float32]


class _Runs:
    """Parallel runs, and the arrays exchanged with the native side."""

    def __init__(
        self,
        experiment: Experiment,
        count: int,
        threads: int,
        step: float,
        actions: str,
        reward: str,
        variant: str | None,
        end: str,
    ) -> None:
        if actions not in ("weights", "path", "copies"):
            raise ValueError(f"actions={actions!r}: expected 'weights', 'path' or 'copies'")
        if end not in ("server", "client"):
            raise ValueError(f"end={end!r}: expected 'server' or 'client'")
        at_client = end == "client"
        self.native = _native.Environments(
            experiment._plan, variant, count, threads, round(step * 1e6), reward, at_client
        )
        self.paths = self.native.paths
        self.by_path = actions == "path"
        self.features = self.paths * len(FEATURES_OF_PATH) + len(FEATURES_OF_ALL)
        self.orders = np.zeros((count, 2 * self.paths), np.float32)
        self.observations = np.zeros((count, self.features), np.float32)
        self.rewards = np.zeros(count, np.float64)
        self.over = np.zeros((count, 2), np.uint8)
        self.observation_space = spaces.Box(0.0, np.inf, (self.features,), np.float32)
        self.action_space: spaces.Space[Any]
        if self.by_path:
            self.action_space = spaces.MultiDiscrete([self.paths, self.paths + 1])
        else:
            self.numbers = self.paths if actions == "weights" else 2 * self.paths
            self.action_space = spaces.Box(0.0, 1.0, (self.numbers,), np.float32)

    def order(self, actions: npt.NDArray[Any]) -> None:
        """Writes actions, one row per run, in the format of the native side."""
        if self.by_path:
            self.orders[:] = 0.0
            runs, copies = np.arange(len(actions)), actions[:, 1]
            self.orders[runs, actions[:, 0]] = 1.0
            some = copies < self.paths
            self.orders[runs[some], self.paths + copies[some]] = 1.0
        else:
            self.orders[:, : self.numbers] = actions

    def step(self, renew: bool) -> list[list[float]]:
        return self.native.step(
            self.orders, self.observations, self.rewards, self.over, renew
        )


class MarlineEnv(gymnasium.Env[Floats, Any]):
    """One connection. ``step``: seconds of virtual time between two actions; ``variant``: the variant with the paths,
    buffers and other policies (default: the first); ``end``: the observed end (default: the sender of the measured
    data)."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        experiment: Experiment,
        *,
        step: float = 0.01,
        actions: str = "weights",
        reward: str = "latency",
        variant: str | None = None,
        end: str = "server",
    ) -> None:
        self._runs = _Runs(experiment, 1, 1, step, actions, reward, variant, end)
        self.observation_space = self._runs.observation_space
        self.action_space = self._runs.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Starts a run with this seed, or with a random one."""
        super().reset(seed=seed)
        run_seed = int(self.np_random.integers(1 << 32)) if seed is None else seed
        self._runs.native.reset([run_seed], self._runs.observations)
        return self._runs.observations[0].copy(), {"seed": run_seed}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advances by one step. ``info["latencies_s"]`` has the latencies of the messages that arrived."""
        runs = self._runs
        runs.order(np.asarray(action)[None])
        latencies = runs.step(False)
        terminated, truncated = bool(runs.over[0, 0]), bool(runs.over[0, 1])
        info = {"latencies_s": latencies[0]}
        return runs.observations[0].copy(), float(runs.rewards[0]), terminated, truncated, info

    @property
    def digest(self) -> int:
        """A hash over the run so far. Equal runs have equal hashes."""
        return self._runs.native.counts()[0][0]

    @property
    def repeated_bytes(self) -> int:
        """Bytes that both ends have also sent on another path so far: the cost of copies."""
        return self._runs.native.counts()[0][1]


class MarlineVectorEnv(gymnasium.vector.VectorEnv[Floats, Any, Any]):
    """Many connections at once, on native threads. As in Gymnasium's own vectors, a finished run restarts with the
    next step, whose action and reward are ignored. Its seed is the previous one plus the number of environments."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        experiment: Experiment,
        num_envs: int,
        *,
        threads: int = 0,
        step: float = 0.01,
        actions: str = "weights",
        reward: str = "latency",
        variant: str | None = None,
        end: str = "server",
    ) -> None:
        self._runs = _Runs(experiment, num_envs, threads, step, actions, reward, variant, end)
        self.num_envs = num_envs
        self.single_observation_space = self._runs.observation_space
        self.single_action_space = self._runs.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Floats, dict[str, Any]]:
        """Starts all runs: with consecutive seeds starting at a number, with a list of seeds, or with random ones."""
        first = seed if isinstance(seed, int) else None
        super().reset(seed=first)
        if isinstance(seed, int):
            seeds = [seed + number for number in range(self.num_envs)]
        else:
            given = list(seed) if seed is not None else [None] * self.num_envs
            drawn = self.np_random.integers(1 << 32, size=self.num_envs)
            seeds = [int(draw) if own is None else own for own, draw in zip(given, drawn)]
        self._runs.native.reset(seeds, self._runs.observations)
        return self._runs.observations.copy(), {"seed": np.array(seeds)}

    def step(self, actions: Any) -> tuple[Floats, Any, Any, Any, dict[str, Any]]:
        """Advances by one step. ``info["latencies_s"]`` has a list for each run."""
        runs = self._runs
        runs.order(np.asarray(actions))
        latencies = runs.step(True)
        over = runs.over.astype(bool)
        info = {"latencies_s": latencies}
        return runs.observations.copy(), runs.rewards.copy(), over[:, 0], over[:, 1], info

    @property
    def digests(self) -> list[int]:
        """A hash over the events so far, for each run."""
        return [digest for digest, _ in self._runs.native.counts()]

    @property
    def repeated_bytes(self) -> list[int]:
        """Bytes that both ends have also sent on another path so far, for each run."""
        return [repeated for _, repeated in self._runs.native.counts()]
