"""A deep Q-network in NumPy that divides data between paths and may copy it.

*Source.* Zhang, Li, Gao, Wang, Ye: ReLeS, a neural adaptive multipath scheduler based on deep reinforcement learning
(INFOCOM 2019), from its description: in each scheduling interval, a network reads the state of the subflows in the
last intervals and outputs each subflow's share of the data; experience is replayed. Its network is recurrent and its
action continuous. Here a feed-forward network gets the last intervals side by side and chooses from a few shares, as
a DQN must (Mnih et al., Nature 2015). Targets are van Hasselt's (double Q-learning, AAAI 2016), the optimizer is
Adam.

*Reward.* ReLeS rewards goodput minus delay and loss. This evaluation is about messages, so the reward is minus their
waiting time in the interval and, with copies, minus a cost for each byte sent again.
"""

from __future__ import annotations

from pathlib import Path

import marline.gym
import numpy as np

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Choices for the share of the first of two paths."""
COPIES = (
    (0.5, 0.5, 1.0, 1.0),
    (1.0, 0.0, 0.0, 1.0),
    (0.0, 1.0, 1.0, 0.0),
    (0.5, 0.5, 0.0, 1.0),
    (0.5, 0.5, 1.0, 0.0),
)
"""Shares of both paths, then for each path a value above 0.5 if it also carries copies of the other's data."""
LOOKS = 3
"""Number of intervals in the network's input."""

_SCALES = {
    "room_64kib": 1.0,
    "cwnd_64kib": 1.0,
    "in_flight_64kib": 1.0,
    "lost_64kib": 4.0,
    "srtt_s": 10.0,
    "rttvar_s": 20.0,
    "delivery_100mbit_per_s": 5.0,
    "forecast_p50_s": 10.0,
    "forecast_p90_s": 10.0,
    "forecast_p99_s": 5.0,
    "queued_s": 10.0,
    "unsent_mb": 20.0,
    "messages_under_way": 0.3,
    "oldest_s": 5.0,
}


def scales(paths: int) -> np.ndarray:
    """Factors that scale most of an observation's numbers to between 0 and 2."""
    names = list(marline.gym.FEATURES_OF_PATH) * paths + list(marline.gym.FEATURES_OF_ALL)
    return np.array([_SCALES.get(name, 1.0) for name in names])


class Network:
    """Two hidden layers with rectifiers."""

    def __init__(self, inputs: int, outputs: int, hidden: int, rng: np.random.Generator) -> None:
        sizes = [inputs, hidden, hidden, outputs]
        self.weights = [
            rng.normal(0.0, np.sqrt(2.0 / before), (before, after)) for before, after in zip(sizes, sizes[1:])
        ]
        # Before training, all choices have equal values.
        self.weights[-1][:] = 0.0
        self.biases = [np.zeros(after) for after in sizes[1:]]

    @property
    def parameters(self) -> list[np.ndarray]:
        """All learned parameters."""
        return [*self.weights, *self.biases]

    def layers(self, inputs: np.ndarray) -> list[np.ndarray]:
        """The inputs, followed by the output of each layer."""
        given = [inputs]
        for number, (weights, biases) in enumerate(zip(self.weights, self.biases)):
            sums = given[-1] @ weights + biases
            given.append(sums if number + 1 == len(self.weights) else np.maximum(sums, 0.0))
        return given

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """The estimated value of each choice."""
        return self.layers(inputs)[-1]

    def gradients(self, given: list[np.ndarray], wrong: np.ndarray) -> list[np.ndarray]:
        """Gradients of half the squared error in the order of the parameters; ``wrong`` is its derivative by the
        outputs."""
        weights, biases = [], []
        for number in range(len(self.weights) - 1, -1, -1):
            weights.append(given[number].T @ wrong)
            biases.append(wrong.sum(axis=0))
            wrong = (wrong @ self.weights[number].T) * (given[number] > 0.0)
        return weights[::-1] + biases[::-1]


class Adam:
    """Adam, the optimizer of Kingma and Ba (2015)."""

    def __init__(self, parameters: list[np.ndarray], rate: float) -> None:
        self.rate, self.steps = rate, 0
        self.means = [np.zeros_like(parameter) for parameter in parameters]
        self.squares = [np.zeros_like(parameter) for parameter in parameters]

    def step(self, parameters: list[np.ndarray], gradients: list[np.ndarray]) -> None:
        """Updates the parameters in place."""
        self.steps += 1
        size = self.rate * np.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
        for parameter, gradient, mean, square in zip(parameters, gradients, self.means, self.squares):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            parameter -= size * mean / (np.sqrt(square) + 1e-8)


class Replay:
    """A ring buffer of the latest steps."""

    def __init__(self, size: int, inputs: int) -> None:
        self.before = np.zeros((size, inputs), np.float32)
        self.after = np.zeros((size, inputs), np.float32)
        self.choices = np.zeros(size, np.int64)
        self.rewards = np.zeros(size)
        self.goes_on = np.zeros(size)
        self.count = 0

    def add(self, before: np.ndarray, choice: int, reward: float, after: np.ndarray, goes_on: bool) -> None:
        """Adds a step and overwrites the oldest if full."""
        at = self.count % len(self.rewards)
        self.before[at], self.after[at] = before, after
        self.choices[at], self.rewards[at], self.goes_on[at] = choice, reward, goes_on
        self.count += 1

    def some(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Indices of steps, drawn uniformly."""
        return rng.integers(min(self.count, len(self.rewards)), size=count)


class Dqn:
    """Learns the values of shares (and copies), with ``actions="weights"`` or ``"copies"`` over two paths."""

    BATCH, EVERY, TARGET_EVERY, WARM_UP = 64, 2, 500, 500
    LEARNING_RATE, FUTURE, HIDDEN, KEPT = 5e-4, 0.95, 48, 50_000

    def __init__(self, copies: bool = False, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        plain = [(share, 1.0 - share) for share in SHARES]
        self.choices = [(*pair, 0.0, 0.0) for pair in plain] + list(COPIES) if copies else plain
        self.actions = "copies" if copies else "weights"
        self.scales = scales(2)
        inputs = LOOKS * len(self.scales)
        self.network = Network(inputs, len(self.choices), self.HIDDEN, self.rng)
        self.target = Network(inputs, len(self.choices), self.HIDDEN, self.rng)
        self._follow()
        self.adam = Adam(self.network.parameters, self.LEARNING_RATE)
        self.replay = Replay(self.KEPT, inputs)
        self.explore = 0.0
        self.begin()

    def begin(self) -> None:
        """Starts an episode."""
        self.looks = np.zeros((LOOKS, len(self.scales)))

    def look(self, observation: np.ndarray) -> np.ndarray:
        """Adds an observation and returns the network's input."""
        self.looks[:-1] = self.looks[1:]
        self.looks[-1] = np.log1p(self.scales * observation)
        return self.looks.ravel().copy()

    def choose(self, seen: np.ndarray) -> int:
        """The index of the best choice, or with probability ``explore`` that of a random one."""
        if self.explore and self.rng.random() < self.explore:
            return int(self.rng.integers(len(self.choices)))
        return int(np.argmax(self.network.values(seen[None])[0]))

    def action(self, choice: int) -> np.ndarray:
        """The environment's action for a choice."""
        return np.array(self.choices[choice], np.float32)

    def learn(self, before: np.ndarray, choice: int, reward: float, after: np.ndarray, goes_on: bool) -> None:
        """Records a step and trains regularly."""
        self.replay.add(before, choice, reward, after, goes_on)
        count = self.replay.count
        if count >= self.WARM_UP and count % self.EVERY == 0:
            self._step()
        if count % self.TARGET_EVERY == 0:
            self._follow()

    def _step(self) -> None:
        at, rows = self.replay.some(self.BATCH, self.rng), np.arange(self.BATCH)
        after = self.replay.after[at]
        best = self.network.values(after).argmax(axis=1)
        future = self.target.values(after)[rows, best]
        wanted = self.replay.rewards[at] + self.FUTURE * self.replay.goes_on[at] * future
        given = self.network.layers(self.replay.before[at].astype(float))
        wrong = np.zeros_like(given[-1])
        chosen = self.replay.choices[at]
        # Huber's loss, so that one message that waited for seconds does not outweigh a thousand others.
        wrong[rows, chosen] = np.clip(given[-1][rows, chosen] - wanted, -1.0, 1.0) / self.BATCH
        self.adam.step(self.network.parameters, self.network.gradients(given, wrong))

    def _follow(self) -> None:
        for to, of in zip(self.target.parameters, self.network.parameters):
            to[:] = of

    def save(self, path: Path) -> None:
        """Writes the parameters to a file."""
        np.savez(path, *self.network.parameters)

    def load(self, path: Path) -> None:
        """Reads the parameters from a file."""
        with np.load(path) as kept:
            for number, parameter in enumerate(self.network.parameters):
                parameter[:] = kept[f"arr_{number}"]
