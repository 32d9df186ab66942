"""Results of runs as tables that pandas, Polars, DuckDB and pyarrow read without a copy in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import _native


class RunFailed(RuntimeError):
    """A run failed; the message names the run and the reason."""


class Table:
    """A table of results. It implements Arrow's C stream interface: ``pandas.DataFrame.from_arrow(table)``,
    ``polars.DataFrame(table)``, ``pyarrow.table(table)``."""

    def __init__(self, native: _native.Results, name: str) -> None:
        self._native = native
        self.name = name

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """A capsule of Arrow's C stream with the whole table in one batch."""
        return self._native.arrow(self.name)

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """The file that ``marline-lab run`` writes, byte for byte: written to a path, or returned without one."""
        text = self._native.csv(self.name)
        if path is None:
            return text
        Path(path).write_bytes(text.encode("utf-8"))
        return None

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists by column name, without any other package."""
        return self._native.columns(self.name)

    def to_pandas(self) -> Any:
        """A pandas DataFrame, made with pyarrow."""
        import pyarrow  # type: ignore[import-not-found,unused-ignore]

        return pyarrow.table(self).to_pandas()

    def to_polars(self) -> Any:
        """A Polars DataFrame."""
        import polars  # type: ignore[import-not-found,unused-ignore]

        return polars.DataFrame(self)

    def __repr__(self) -> str:
        return f"<Table {self.name}>"


class Results:
    """Results of a series of runs, in the order of the plan: all seeds of a variant, then the next variant.

    Tables (docs/research/lab.md has their columns): ``messages``, a row for each message that arrived; ``runs``, a
    row for each run; and, with time lines, ``subflows`` and ``copies``.
    """

    def __init__(self, native: _native.Results) -> None:
        self._native = native

    @property
    def messages(self) -> Table:
        """All messages that arrived. Statistics use those with ``counted``."""
        return Table(self._native, "messages")

    @property
    def runs(self) -> Table:
        """All runs."""
        return Table(self._native, "runs")

    @property
    def timelines(self) -> Table:
        """All samples of subflows."""
        return Table(self._native, "subflows")

    @property
    def copies(self) -> Table:
        """All copies of messages, and the winning copy of each."""
        return Table(self._native, "copies")

    @property
    def digests(self) -> list[int]:
        """For each run, a hash over all delivered packets with their times and links, and over the data read."""
        return self._native.digests

    @property
    def error(self) -> str | None:
        """Error of the first failed run."""
        return self._native.error()

    @property
    def warnings(self) -> list[str]:
        """Warnings about unreliable or missing results."""
        return self._native.warnings()

    def summary(self) -> list[list[str]]:
        """The table that ``marline-lab run`` prints, header first."""
        return self._native.summary()

    def __str__(self) -> str:
        return aligned(self.summary())


def aligned(rows: list[list[str]]) -> str:
    """A table as aligned text, without a line break at its end."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )
    return "\n".join(lines)
