"""The figure that a notebook draws is the one that `marline lab paper raiciu2012` draws, number for number, at full length
on two of the published roots. It takes the program (MARLINE_PROGRAM) a while; `cargo xtask nightly figure` runs it, and
continuous integration what test_figure.py has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from test_figure import notebook

ROOTS = 2
# Jobs of the part `curves`: TCP over WiFi, and of the first jitter TCP over 3G, no M, and M1+M2.
JOBS = {"TCP WiFi": 0, "TCP 3G": 1, "no M": 2, "M1+M2, kernel of the study": 3}
WIDTH, HEIGHT, LEFT, BOTTOM, TO_MS, TO_SHARE = 638.0, 300.0, 64.0, 352.0, 3_000.0, 0.25


def drawn(path: str) -> list[tuple[float, float]]:
    """Latencies, ms, and shares that a path of the figure goes through."""
    points = (tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:])
    return [((x - LEFT) * TO_MS / WIDTH, (BOTTOM - y) * TO_SHARE / HEIGHT) for x, y in points]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [os.environ["MARLINE_PROGRAM"], "lab", "paper", "raiciu2012", "--master", "101"]
        # Rows that are not accepted are no failure here.
        ran = subprocess.run([*command, "--roots", str(ROOTS), "--out", place], capture_output=True, check=False)
        assert ran.returncode in (0, 1), ran.stderr
        results = Path(place, "raiciu2012")
        kept = (results / "roots/101/curves.jsonl").read_text().splitlines()[1:]
        figure = (results / "block-latency.svg").read_text()
    names = notebook(seeds=ROOTS, seconds=40)
    for root in map(json.loads, kept):
        for variant, job in JOBS.items():
            counts = [0] * len(root["sample"][job]["counts"])
            for latency in names["latencies"][variant][root["root"]]:
                counts[int(latency / 5.0)] += 1
            assert counts == root["sample"][job]["counts"], (root["root"], variant)
    lines = [drawn(path) for path in re.findall(r'<path d="([^"]*)" class="l l\d', figure)]
    assert len(lines) == len(JOBS)
    for line, (at, share) in zip(lines, names["curves"].values(), strict=True):
        ours = [(x, y) for x, y in zip(at, share) if x <= TO_MS]
        assert len(ours) == len(line)
        # A drawing has tenths of a unit, which is 0.47 ms, and 0.00008.
        assert all(abs(x - a) < 0.5 and abs(y - b) < 2e-4 for (x, y), (a, b) in zip(ours, line))
    print(f"{len(kept)} roots, {len(lines)} curves: the notebook's figure is the lab's")


if __name__ == "__main__":
    main()
