"""Environments: Gymnasium's checks, episodes that repeat, rewards that are latencies."""

from __future__ import annotations

import os
import unittest
import warnings

import marline
import marline.gym
import numpy as np
from gymnasium.utils.env_checker import check_env
from support import BURSTS, PATHS

EXPERIMENT = marline.Experiment(paths=PATHS, workload=BURSTS)


def episode(seed: int, actions: str = "weights", reward: str = "latency") -> tuple[object, ...]:
    env = marline.gym.MarlineEnv(EXPERIMENT, actions=actions, reward=reward)
    env.action_space.seed(1)
    env.reset(seed=seed)
    total, latencies, steps = 0.0, [], 0
    while True:
        seen, gained, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(seen)
        total, steps = total + gained, steps + 1
        latencies += info["latencies_s"]
        if terminated or truncated:
            assert terminated and len(latencies) == 10, (steps, latencies)
            return total, latencies, steps, env.digest


class Environments(unittest.TestCase):
    def test_gymnasium_finds_nothing_wrong(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for actions in ("weights", "path", "copies"):
                for reward in ("latency", "waiting"):
                    env = marline.gym.MarlineEnv(EXPERIMENT, actions=actions, reward=reward)
                    check_env(env, skip_render_check=True)

    def test_a_seed_repeats_an_episode_exactly(self) -> None:
        for actions in ("weights", "path", "copies"):
            self.assertEqual(episode(3, actions), episode(3, actions))
            self.assertNotEqual(episode(3, actions), episode(4, actions))

    def test_copies_go_where_they_are_told_and_are_counted(self) -> None:
        def played(actions: str, action: list[float]) -> tuple[int, int]:
            env = marline.gym.MarlineEnv(EXPERIMENT, actions=actions)
            env.reset(seed=3)
            over = False
            while not over:
                *_, over, truncated, _ = env.step(np.array(action, env.action_space.dtype))
                over = over or truncated
            return env.digest, env.repeated_bytes

        payload = 10 * 20_000
        plain = played("weights", [1.0, 0.0])
        self.assertEqual(played("copies", [1.0, 0.0, 0.0, 0.0]), plain)
        self.assertLess(plain[1], payload // 4)
        copied = played("copies", [1.0, 0.0, 0.0, 1.0])
        self.assertEqual(played("path", [0, 1]), copied)
        self.assertGreater(copied[1], payload // 4)
        both = played("copies", [0.5, 0.5, 1.0, 1.0])
        self.assertNotIn(both, (plain, copied))
        self.assertGreater(both[1], payload // 4)

    def test_rewards_are_latencies(self) -> None:
        total, latencies, _, digest = episode(5)
        self.assertAlmostEqual(float(total), -sum(latencies))  # type: ignore[arg-type,call-overload]
        waited, same, _, again = episode(5, reward="waiting")
        self.assertEqual((latencies, digest), (same, again), "the kind of reward does not change the run")
        self.assertAlmostEqual(float(waited), float(total))  # type: ignore[arg-type]

    def test_a_vector_is_so_many_single_ones_on_any_number_of_threads(self) -> None:
        def run(threads: int) -> tuple[list[int], list[float]]:
            env = marline.gym.MarlineVectorEnv(EXPERIMENT, 5, threads=threads, actions="path")
            env.action_space.seed(2)
            env.reset(seed=11)
            gained = np.zeros(5)
            for _ in range(60):
                _, rewards, *_ = env.step(env.action_space.sample())
                gained += rewards
            return env.digests, list(gained)

        self.assertEqual(run(1), run(3))
        single = marline.gym.MarlineEnv(EXPERIMENT, actions="path")
        vector = marline.gym.MarlineVectorEnv(EXPERIMENT, 2, actions="path")
        single.reset(seed=12)
        vector.reset(seed=11)
        for _ in range(30):
            single.step(np.array([0, 2]))
            vector.step(np.array([[1, 0], [0, 2]]))
        self.assertEqual(vector.digests[1], single.digest)

    def test_environments_are_small(self) -> None:
        def resident_bytes() -> int:
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        paths = {"wifi": "rate=30M,delay=10ms,queue=50ms", "lte": "rate=20M,delay=30ms,queue=50ms"}
        bulk = marline.Experiment(paths=paths, workload={"kind": "bulk", "lasts": "60s"})

        def run(count: int) -> marline.gym.MarlineVectorEnv:
            env = marline.gym.MarlineVectorEnv(bulk, count, threads=1)
            env.reset(seed=1)
            for _ in range(100):
                env.step(np.ones((count, 2), np.float32))
            return env

        # Allocate shared memory first.
        run(1)
        before, count = resident_bytes(), 16
        env = run(count)
        each = (resident_bytes() - before) / count
        # 2.0 MB was measured, and 4.6 with copies of all payloads.
        self.assertLess(each, 2.6e6)
        self.assertEqual(len(set(env.digests)), count)

    def test_a_vector_restarts_by_itself_and_a_single_one_does_not(self) -> None:
        vector = marline.gym.MarlineVectorEnv(EXPERIMENT, 2)
        vector.reset(seed=1)
        everything = np.ones((2, 2), np.float32)
        over = np.zeros(2, bool)
        while not over.any():
            *_, over, _, _ = vector.step(everything)
        which = int(np.argmax(over))
        _, rewards, again, _, info = vector.step(everything)
        self.assertFalse(again[which])
        self.assertEqual((rewards[which], info["latencies_s"][which]), (0.0, []))
        fresh = marline.gym.MarlineEnv(EXPERIMENT)
        fresh.reset(seed=1 + which + 2)
        self.assertEqual(vector.digests[which], fresh.digest)
        single = marline.gym.MarlineEnv(EXPERIMENT)
        with self.assertRaisesRegex(RuntimeError, "reset the environment"):
            single.step(np.ones(2, np.float32))

    def test_what_can_not_be_learned_from_is_refused(self) -> None:
        exchange = marline.Experiment(paths=PATHS, workload={"kind": "exchange", "bytes": "1MB"})
        with self.assertRaisesRegex(marline.ExperimentError, "an exchange has no messages"):
            marline.gym.MarlineEnv(exchange)
        with self.assertRaisesRegex(ValueError, "expected latency or waiting"):
            marline.gym.MarlineEnv(EXPERIMENT, reward="fame")
        with self.assertRaisesRegex(marline.ExperimentError, "unknown variant `x`"):
            marline.gym.MarlineEnv(EXPERIMENT, variant="x")


if __name__ == "__main__":
    unittest.main()
