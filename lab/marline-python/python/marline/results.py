"""Results of runs as tables that pandas, Polars, DuckDB and pyarrow read without a copy in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import _native


class RunFailed(RuntimeError):
    """A run failed: which, and why."""


class Table:
    """A table of results. It speaks Arrow's C stream: ``pandas.DataFrame.from_arrow(table)``,
    ``polars.DataFrame(table)``, ``pyarrow.table(table)``."""

    def __init__(self, native: _native.Results, name: str) -> None:
        self._native = native
        self.name = name

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """A capsule of Arrow's C stream with the whole table in one batch."""
        return self._native.arrow(self.name)

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """The file that ``marline-lab run`` writes, byte for byte: written, or without a path returned."""
        text = self._native.csv(self.name)
        if path is None:
            return text
        Path(path).write_bytes(text.encode("utf-8"))
        return None

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists by the names of the columns, without any other package."""
        return self._native.columns(self.name)

    def to_pandas(self) -> Any:
        """A pandas DataFrame, by pyarrow."""
        import pyarrow  # type: ignore[import-not-found,unused-ignore]

        return pyarrow.table(self).to_pandas()

    def to_polars(self) -> Any:
        """A Polars DataFrame."""
        import polars  # type: ignore[import-not-found,unused-ignore]

        return polars.DataFrame(self)

    def __repr__(self) -> str:
        return f"<Table {self.name}>"


class Results:
    """What a series of runs showed, in the order of the plan: all seeds of a variant, then the next variant.

    Tables (docs/research/lab.md has their columns): ``messages``, a row for each message that came; ``runs``, a
    row for each run; and, where time lines were asked for, ``subflows`` and ``copies``.
    """

    def __init__(self, native: _native.Results) -> None:
        self._native = native

    @property
    def messages(self) -> Table:
        """Each message that came. Statistics are of those with ``counted``."""
        return Table(self._native, "messages")

    @property
    def runs(self) -> Table:
        """Each run."""
        return Table(self._native, "runs")

    @property
    def timelines(self) -> Table:
        """Each sample of a subflow."""
        return Table(self._native, "subflows")

    @property
    def copies(self) -> Table:
        """Each copy of a message, and which of them won."""
        return Table(self._native, "copies")

    @property
    def digests(self) -> list[int]:
        """Of each run a hash over every packet that was delivered, when and where, and over what was read."""
        return self._native.digests

    @property
    def error(self) -> str | None:
        """Why the first run that failed did."""
        return self._native.error()

    @property
    def warnings(self) -> list[str]:
        """Everything that makes a result doubtful or is missing."""
        return self._native.warnings()

    def summary(self) -> list[list[str]]:
        """The table that ``marline-lab run`` prints, its head first."""
        return self._native.summary()

    def __str__(self) -> str:
        return aligned(self.summary())


def aligned(rows: list[list[str]]) -> str:
    """A table for people, without a line break at its end."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )
    return "\n".join(lines)
