"""A notebook draws the same figure as `marline-lab paper raiciu2012`, number for number, at full length on two of the
published roots. It takes the program (MARLINE_PROGRAM) half a minute; `cargo xtask ci python` runs it."""

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
TO_MS = 3_000.0


def ticks(figure: str, held: str) -> list[tuple[float, float]]:
    """Positions and values of the ticks of an axis, whose numbers are anchored at the middle or at the end."""
    place = "x" if held == "middle" else "y"
    text = r'<text ([^>]*)text-anchor="%s"([^>]*fill="#666666"[^>]*)>\n([0-9.]+)\n' % held
    found = re.findall(text, figure)
    return [(float(re.search(rf'\b{place}="(\d+)"', head)[1]), float(value)) for head, _, value in found]


def scale(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    """The position of zero, and the value per unit of the drawing."""
    (first, low), (last, high) = ticks[0], ticks[-1]
    worth = (high - low) / (last - first)
    return first - low / worth, worth


def drawn(figure: str) -> list[list[tuple[float, float]]]:
    """Latencies, ms, and shares on the lines of the figure. Lines with two points are samples in the legend."""
    (x0, ms), (y0, share) = scale(ticks(figure, "middle")), scale(ticks(figure, "end"))
    lines = re.findall(r'<polyline [^>]*stroke-width="20" points="([^"]*)"', figure)
    points = [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]
    return [[((x - x0) * ms, (y - y0) * share) for x, y in line] for line in points if len(line) > 2]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [os.environ["MARLINE_PROGRAM"], "paper", "raiciu2012", "--master", "101"]
        # Rejected rows are not a failure here.
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
    lines = drawn(figure)
    assert len(lines) == len(JOBS)
    for line, (at, share) in zip(lines, names["curves"].values(), strict=True):
        ours = [(x, y) for x, y in zip(at, share) if x <= TO_MS]
        assert len(ours) == len(line)
        # Positions, also of ticks, are multiples of a tenth of a pixel: 0.48 ms, and less than 0.0001.
        assert all(abs(x - a) < 1.0 and abs(y - b) < 3e-4 for (x, y), (a, b) in zip(ours, line))
    print(f"{len(kept)} roots, {len(lines)} curves: the notebook's figure is the lab's")


if __name__ == "__main__":
    main()
