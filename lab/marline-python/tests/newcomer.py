"""A newcomer's steps after installation: the page's Python at once, tables in the libraries that it names, and the
notebooks in Jupyter. It needs those libraries; `cargo xtask nightly newcomer` installs them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import duckdb
import marline
import nbclient
import nbformat
import pandas
import polars
import pyarrow
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/python"
SHARES = [0.5, 0.95, 0.99]
# Limits for notebooks that would take minutes.
SHORT = {"MARLINE_EPISODES": "12", "MARLINE_SEEDS": "1", "MARLINE_SECONDS": "6"}

FILE = """
warm_up = "300ms"
[[path]]
name = "wifi"
link = "rate=20M,delay=10ms,loss=2%"
[[path]]
name = "lte"
link = "rate=10M,delay=40ms"
[workload]
kind = "bursts"
bytes = "20kB"
gap = "100ms"
count = 20
[[variant]]
name = "auto"
[[variant]]
name = "min-rtt"
scheduler = "min-rtt"
[sweep]
"path.lte.delay" = ["20ms", "80ms"]
"""


def page_runs() -> None:
    page = (ROOT / "docs/research/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5, len(blocks)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"python.md, block {number}", "exec"), names)
    print(f"{len(blocks)} blocks of the page run")


def lab_page_reads_results() -> None:
    """Runs the pandas code of docs/research/lab.md on the file that the program would have written."""
    page = (ROOT / "docs/research/lab.md").read_text()
    first = re.search(r"```toml\n(title.*?)```", page, re.DOTALL)
    assert first
    file = Path("target/lab/first/messages.csv")
    file.parent.mkdir(parents=True)
    marline.Experiment.from_toml(first[1]).run(seeds=10).messages.to_csv(file)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1, len(blocks)
    exec(compile(blocks[0], "lab.md", "exec"), {})


def tables_are_read() -> None:
    """Reads tables with every library that the page names and compares quantiles with the program's."""
    results = marline.Experiment.from_toml(FILE.partition("[sweep]")[0]).run(seeds=10)
    plain = results.messages.to_dict()
    frames = {
        "to_pandas": results.messages.to_pandas(),
        "pandas": pandas.DataFrame.from_arrow(results.messages),
        "to_polars": results.messages.to_polars().to_pandas(),
        "polars": polars.DataFrame(results.messages).to_pandas(),
        "pyarrow": pyarrow.table(results.messages).to_pandas(),
    }
    messages = results.messages
    frames["duckdb"] = duckdb.sql("select * from messages").df()
    for name, frame in frames.items():
        assert list(frame.columns) == list(plain), (name, list(frame.columns))
        for column, values in plain.items():
            # Data frames have NaN or NA for missing values.
            read = [None if pandas.isna(value) else value for value in frame[column]]
            assert read == values, (name, column)
    metadata = pyarrow.table(messages).schema.field("latency_ms").metadata
    assert metadata == {b"unit": b"ms"}, metadata
    frame = frames["pandas"]
    counted = frame[frame.counted].groupby("variant").latency_ms.quantile(SHARES).unstack()
    head, *rows = results.summary()
    for row in rows:
        told = dict(zip(head, row))
        for share, word in zip(SHARES, ("p50", "p95", "p99")):
            value = counted.loc[told["variant"], share]
            key = next(key for key in head if key.split(" ")[0] == word)
            assert abs(float(told[key]) - value) <= 0.006 * value, (key, told[key], value)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "delays.toml")
        file.write_text(FILE)
        marline.sweep(file, seeds=3, store=Path(place, "store"), formats=["csv", "parquet"])
        written = pandas.read_csv(Path(place, "store/messages.csv"))
        typed = pandas.read_parquet(Path(place, "store/messages.parquet"))
        assert sorted(written["path.lte.delay_ms"].unique()) == [20, 80]
        for column in written.columns:
            one, other = written[column].dropna(), typed[column].dropna().astype(written[column].dtype)
            assert one.equals(other), column
        units = pyarrow.parquet.read_schema(Path(place, "store/messages.parquet")).metadata
        assert units[b"unit.latency_ms"] == b"ms", units
    print(f"tables are equal in {', '.join(frames)}; quantiles equal the program's; Parquet equals CSV")


def notebooks_run() -> None:
    notebooks = sorted(EXAMPLES.glob("*.ipynb"))
    assert len(notebooks) >= 4
    for file in notebooks:
        notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
        given = [out for cell in notebook.cells for out in cell.get("outputs", ())]
        drawn = [out for out in given if "image/png" in out.get("data", {})]
        print(f"{file.name}: {len(drawn)} figures")
        assert drawn or file.stem == "own_scheduler", file.name


def told_to_install() -> None:
    """Runs the install command in the first cell of each notebook."""
    for file in sorted(EXAMPLES.glob("*.ipynb")):
        first = nbformat.read(file, as_version=4).cells[0].source
        command = re.findall(r"`(pip install .*?)`", first)
        assert len(command) == 1, (file.name, first)
        subprocess.run(["bash", "-euc", f"{command[0]} -q"], cwd=ROOT, check=True)


def main() -> None:
    told_to_install()
    os.environ.update(SHORT)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        page_runs()
        lab_page_reads_results()
        os.chdir(before)
    tables_are_read()
    notebooks_run()


if __name__ == "__main__":
    main()
