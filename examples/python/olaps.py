"""A scheduler class that learns online how much data to send twice.

*Source.* Xing, Xue, Zhang, Han, Li, Wei: An Online Learning Assisted Packet Scheduler for MPTCP in Mobile Networks
(IEEE/ACM ToN 2023), from its description: the choice of a policy is a bandit problem without assumptions about the
network, played in intervals; the reward of an interval is its throughput; a monitor of the reward detects that the
network has changed, and then learning restarts. The arms are the shares of each subflow's window for copies of other
subflows' data: all, two thirds, a third, none, as in the authors' Linux module. The bandit is EXP3 (Auer,
Cesa-Bianchi, Freund, Schapire, SIAM J. Comput. 2002). Written only from that description.

*Ours.* With messages, the connection is idle most of the time, and the application would determine an interval's
throughput. So an interval is at least 100 ms with unacknowledged or unsent data, and its throughput refers to that
time. The description does not specify the path of new data; here it is the one with the lowest smoothed round trip
that accepts it.
"""

from __future__ import annotations

import math
import random

import marline

SHARES = (1.0, 2.0 / 3.0, 1.0 / 3.0, 0.0)
"""The arms: shares of a window for copies."""
INTERVAL_US = 100e3


class Exp3:
    """A bandit without assumptions about its rewards, which are from 0 to 1."""

    def __init__(self, arms: int, gamma: float, rng: random.Random) -> None:
        self.gamma, self.rng = gamma, rng
        self.weights = [1.0] * arms
        self.arm = 0

    def chances(self) -> list[float]:
        """The probability of each arm."""
        total, arms = sum(self.weights), len(self.weights)
        return [(1.0 - self.gamma) * weight / total + self.gamma / arms for weight in self.weights]

    def pull(self) -> int:
        """Draws an arm."""
        self.arm = self.rng.choices(range(len(self.weights)), self.chances())[0]
        return self.arm

    def learn(self, reward: float) -> None:
        """Learns the reward of the last arm pulled."""
        estimate = reward / self.chances()[self.arm]
        self.weights[self.arm] *= math.exp(self.gamma * estimate / len(self.weights))
        largest = max(self.weights)
        self.weights = [weight / largest for weight in self.weights]

    def forget(self) -> None:
        """Discards everything learned."""
        self.weights = [1.0] * len(self.weights)


class Monitor:
    """Detects a lasting drop of the rewards below their usual level."""

    def __init__(self, drop: float, patience: int) -> None:
        self.drop, self.patience = drop, patience
        self.usual: float | None = None
        self.low = 0

    def fits(self, reward: float) -> bool:
        """Returns false if the network seems to have changed."""
        if self.usual is None:
            self.usual = reward
            return True
        self.low = self.low + 1 if reward < (1.0 - self.drop) * self.usual else 0
        self.usual += 0.1 * (reward - self.usual)
        if self.low < self.patience:
            return True
        self.usual, self.low = None, 0
        return False


class Olaps(marline.Scheduler):
    """``gamma``: exploration; ``drop`` and ``patience``: learning restarts after ``patience`` intervals in a row with
    a reward more than the share ``drop`` below the usual one; ``seed``: seed of its random numbers."""

    wants_outstanding = True

    def __init__(self, gamma: float = 0.2, drop: float = 0.5, patience: int = 3, seed: int = 1) -> None:
        self.bandit = Exp3(len(SHARES), gamma, random.Random(seed))
        self.monitor = Monitor(drop, patience)
        self.share = SHARES[self.bandit.pull()]
        self.most_bits_per_s = 1.0
        # Copies and new segments that each subflow may still send before its next window.
        self.quotas: dict[int, list[float]] = {}
        self.asked_us: float | None = None
        self.busy_us = 0.0
        self.acked = 0
        self.owed = False

    def next_send(self, cx: marline.SchedulerContext) -> marline.policies.Decision:
        self._look(cx)
        usable = [view for view in cx.subflows if view.active and view.health == "usable"]
        ready = [view for view in usable or cx.subflows if view.ready]
        for view in sorted(ready, key=lambda view: view.srtt_us or 0.0):
            decision = self._on(view, cx)
            if decision is not None:
                return decision
        opens = [view.opens_at_us for view in usable if view.opens_at_us is not None]
        return marline.WaitUntil(min(opens)) if opens else None

    def _on(self, view: marline.SubflowView, cx: marline.SchedulerContext) -> marline.Send | None:
        copies, fresh = self.quotas.get(view.id, [0.0, 0.0])
        if copies < 1.0 and fresh < 1.0:
            window = max(2.0, view.cwnd_bytes / view.mss_bytes)
            copies, fresh = copies + self.share * window, fresh + (1.0 - self.share) * window
        self.quotas[view.id] = [copies, fresh]
        repeat = None
        if copies >= 1.0:
            repeat = next((one for one in cx.outstanding if view.id not in one.carried_by), None)
        if repeat is not None:
            self.quotas[view.id][0] -= 1.0
            return marline.Send(view.id, repeat.start, repeat.end)
        if cx.unsent_bytes:
            # Without enough data to copy, new data uses the window.
            self.quotas[view.id][1] = max(0.0, fresh - 1.0)
            return marline.Send(view.id)
        return None

    def _look(self, cx: marline.SchedulerContext) -> None:
        """Counts the time with unacknowledged or unsent data, and ends intervals."""
        if self.asked_us is not None and self.owed:
            self.busy_us += cx.now_us - self.asked_us
        self.asked_us, self.owed = cx.now_us, bool(cx.outstanding) or cx.unsent_bytes > 0
        if self.busy_us < INTERVAL_US:
            return
        bits_per_s = 8e6 * (cx.data_una - self.acked) / self.busy_us
        self.acked, self.busy_us = cx.data_una, 0.0
        # Lets the maximum decay.
        self.most_bits_per_s = max(bits_per_s, 0.99 * self.most_bits_per_s)
        reward = bits_per_s / self.most_bits_per_s
        self.bandit.learn(reward)
        if not self.monitor.fits(reward):
            self.bandit.forget()
        self.share = SHARES[self.bandit.pull()]
