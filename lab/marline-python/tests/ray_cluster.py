"""A sweep on a Ray cluster of two nodes, where a worker and then a whole node are killed: the tables equal those of
one process, byte for byte, and so do those of `marline-lab sweep --engine ray`. It needs Ray and the program
(MARLINE_PROGRAM): `cargo xtask ci ray` has them, in a separate environment, because Ray is large."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import marline
import ray
from ray.cluster_utils import Cluster
from test_sweep import FILE, tables

SEEDS = 60
# Long enough that a task is always in progress when the test looks.
TEXT = FILE.replace("count = 5", "count = 200")


def workers() -> list[int]:
    """Ids of this process's descendants that run a task."""
    parents: dict[int, int] = {}
    busy = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                title = (place / "cmdline").read_bytes()
                stat = (place / "stat").read_text()
            except OSError:
                continue
            parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
            if title.startswith(b"ray::_task"):
                busy.append(int(place.name))

    def is_ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return [process for process in busy if is_ours(process)]


def wait_for(what: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            raise TimeoutError("nothing was seen of the sweep")
        time.sleep(0.01)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        file = place / "delays.toml"
        file.write_text(TEXT)
        small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=small)
        second = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        ray.init(address=cluster.address, logging_level="WARNING")
        runs, whole = place / "many/runs", 4 * 2 * SEEDS
        made = lambda: len(list(runs.glob("*.json"))) if runs.is_dir() else 0
        struck: list[str] = []

        def strike() -> None:
            wait_for(lambda: made() > whole // 10 and bool(workers()))
            victim = workers()[0]
            os.kill(victim, signal.SIGKILL)
            struck.append(f"worker {victim} killed after {made()} of {whole} runs")
            wait_for(lambda: made() > whole // 2)
            cluster.remove_node(second, allow_graceful=False)
            struck.append(f"a node killed after {made()} of {whole} runs")

        striker = threading.Thread(target=strike)
        striker.start()
        begun = time.monotonic()
        marline.sweep(file, SEEDS, store=place / "many", engine="ray")
        took = time.monotonic() - begun
        striker.join()
        print("; ".join(struck))
        assert len(struck) == 2 and made() == whole, (struck, made())
        ray.shutdown()
        cluster.shutdown()
        one = place / "one"
        begun = time.monotonic()
        marline.sweep(file, SEEDS, store=one, jobs=1)
        alone = time.monotonic() - begun
        for table, content in tables(one).items():
            assert (place / "many" / table).read_bytes() == content, table
        few, alike = place / "few", place / "alike"
        command = [os.environ["MARLINE_PROGRAM"], "sweep", str(file), "--seeds", "3", "--engine", "ray"]
        env = {**os.environ, "MARLINE_PYTHON": sys.executable}
        subprocess.run([*command, "--out", str(few)], check=True, env=env)
        marline.sweep(file, 3, store=alike)
        assert tables(few) == tables(alike)
        print(f"byte-identical to one process: {took:.1f} s with Ray, {alone:.1f} s alone on one thread")


if __name__ == "__main__":
    main()
