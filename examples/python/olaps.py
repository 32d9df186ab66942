"""An online learner of how much to send twice, as a scheduler class.

*Source.* Xing, Xue, Zhang, Han, Li, Wei: An Online Learning Assisted Packet Scheduler for MPTCP in Mobile Networks
(IEEE/ACM ToN 2023), from its description: the choice of a policy is a bandit problem without assumptions on the
network, played in intervals; the reward of an interval is its throughput; a monitor of the reward notices that what was
learned no longer fits, and then learning begins again. The arms are shares of each subflow's window that repeat what
others carry: all, two thirds, a third, none, as the authors' module for Linux has them. The bandit is EXP3 (Auer,
Cesa-Bianchi, Freund, Schapire, SIAM J. Comput. 2002). Written from that alone.

*Ours.* Messages leave the connection idle most of the time, and an interval's throughput would be that of the
application. So an interval is 100 ms or more in which data was owed an answer, and its throughput is over that time.
New data goes on the path of the lowest smoothed round trip that takes it, as the description does not say otherwise.
"""

from __future__ import annotations

import math
import random

import marline

SHARES = (1.0, 2.0 / 3.0, 1.0 / 3.0, 0.0)
"""Of a window, the arms."""
INTERVAL_US = 100e3


class Exp3:
    """A bandit whose rewards, from 0 to 1, may be anything."""

    def __init__(self, arms: int, gamma: float, rng: random.Random) -> None:
        self.gamma, self.rng = gamma, rng
        self.weights = [1.0] * arms
        self.arm = 0

    def chances(self) -> list[float]:
        """Of each arm, to be pulled."""
        total, arms = sum(self.weights), len(self.weights)
        return [(1.0 - self.gamma) * weight / total + self.gamma / arms for weight in self.weights]

    def pull(self) -> int:
        """Draws an arm."""
        self.arm = self.rng.choices(range(len(self.weights)), self.chances())[0]
        return self.arm

    def learn(self, reward: float) -> None:
        """What came of the arm that was pulled last."""
        estimate = reward / self.chances()[self.arm]
        self.weights[self.arm] *= math.exp(self.gamma * estimate / len(self.weights))
        largest = max(self.weights)
        self.weights = [weight / largest for weight in self.weights]

    def forget(self) -> None:
        """Begins again."""
        self.weights = [1.0] * len(self.weights)


class Monitor:
    """Notices that rewards have left the level that they had."""

    def __init__(self, drop: float, patience: int) -> None:
        self.drop, self.patience = drop, patience
        self.usual: float | None = None
        self.low = 0

    def fits(self, reward: float) -> bool:
        """Whether this reward is no sign of another network."""
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
    """``gamma``: how much it explores; ``drop`` and ``patience``: so many intervals in a row with a reward lower by
    such a share make it begin again; ``seed``: of its draws."""

    wants_outstanding = True

    def __init__(self, gamma: float = 0.2, drop: float = 0.5, patience: int = 3, seed: int = 1) -> None:
        self.bandit = Exp3(len(SHARES), gamma, random.Random(seed))
        self.monitor = Monitor(drop, patience)
        self.share = SHARES[self.bandit.pull()]
        self.most_bits_per_s = 1.0
        # Segments that each subflow may still send of either kind before the next window's worth.
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
            # Where there is nothing to repeat, or too little for the quota, new data has the window.
            self.quotas[view.id][1] = max(0.0, fresh - 1.0)
            return marline.Send(view.id)
        return None

    def _look(self, cx: marline.SchedulerContext) -> None:
        """Counts the time in which an answer is owed, and ends intervals."""
        if self.asked_us is not None and self.owed:
            self.busy_us += cx.now_us - self.asked_us
        self.asked_us, self.owed = cx.now_us, bool(cx.outstanding) or cx.unsent_bytes > 0
        if self.busy_us < INTERVAL_US:
            return
        bits_per_s = 8e6 * (cx.data_una - self.acked) / self.busy_us
        self.acked, self.busy_us = cx.data_una, 0.0
        # What is the most may become less again.
        self.most_bits_per_s = max(bits_per_s, 0.99 * self.most_bits_per_s)
        reward = bits_per_s / self.most_bits_per_s
        self.bandit.learn(reward)
        if not self.monitor.fits(reward):
            self.bandit.forget()
        self.share = SHARES[self.bandit.pull()]
