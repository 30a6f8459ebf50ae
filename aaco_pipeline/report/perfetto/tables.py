"""Read a session's tables for its trace in batches, with the few facts needed about all rows.

`aaco_pipeline.report.perfetto.session` assigns rows to tracks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from aaco_pipeline.analysis.timeline.activities import timed
from aaco_pipeline.lake.on_disk import GrowingColumn
from aaco_pipeline.report.perfetto.slices import Texts

#: Reads columns of a published table in batches: `LakeReader.batches` of a session.
Batches = Callable[[str, tuple[str, ...]], Iterator[pl.DataFrame]]


def whole(batches: Batches, table: str, columns: Sequence[str], chosen: pl.Expr | None = None) -> pl.DataFrame:
    """Read columns of a table, all rows or the `chosen` ones."""
    parts = batches(table, tuple(columns))
    return pl.concat(parts if chosen is None else (batch.filter(chosen) for batch in parts))


class Groups:
    """Groups of a table's slices by some columns, nulls last, and the track of each group."""

    def __init__(self, table: str, keys: tuple[str, ...], batches: Iterator[pl.DataFrame]) -> None:
        self.table, self.keys = table, keys
        self.first_ns: int | None = None
        found = []
        for batch in batches:
            rows = timed(batch) if "end_ns" in batch.columns else batch.drop_nulls("duration_ns")
            found.append(rows.select(keys).unique())
            first = rows.get_column("start_ns" if "end_ns" in batch.columns else "time_ns").min()
            self.first_ns = min((int(one) for one in (first, self.first_ns) if isinstance(one, int)), default=None)
        self._values = pl.concat(found).unique().sort(keys, nulls_last=True)
        self._tracks: list[int] = []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._values.iter_rows()

    def processes(self) -> set[int]:
        return set(self._values.get_column("process_id").to_list())

    def name(self, track: int) -> None:
        """Set the track of the next group."""
        self._tracks.append(track)

    def on_tracks(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the column `track`."""
        if len(self._tracks) == 1:
            return rows.with_columns(track=pl.lit(self._tracks[0], pl.UInt64))
        tracks = self._values.with_columns(track=pl.Series(self._tracks, dtype=pl.UInt64))
        return rows.join(tracks, on=self.keys, how="left", nulls_equal=True, maintain_order="left")


class PathRows:
    """Rows of the critical path, read in order: by kind, then by number."""

    def __init__(self, batches: Iterator[pl.DataFrame]) -> None:
        self._batches, self._held = batches, next(batches)

    def _upto(self, kind: str, last: int) -> pl.DataFrame:
        """Read up to number `last` of this kind, and return the rows of this kind."""
        kinds, number = pl.col("activity_kind"), pl.col("activity_id")
        parts = []
        while True:
            reached = (kinds < kind) | ((kinds == kind) & (number <= last))
            upto = int(self._held.select(reached.sum()).item())
            parts.append(self._held.head(upto).filter(kinds == kind))
            self._held = self._held.slice(upto)
            if self._held.height or (following := next(self._batches, None)) is None:
                return pl.concat(parts)
            self._held = following

    def beside(self, kind: str, numbers: pl.Series) -> pl.DataFrame:
        """Return the rows for a batch of activities."""
        last = numbers.max()
        return self._upto(kind, int(last) if isinstance(last, int) else -1)


class CallNames:
    """Names of all calls, by call number."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._column, self._count = GrowingColumn("u4"), 0

    def take(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Take the next calls, in ascending order of their numbers, and return them with names as an Enum."""
        if not calls.height:
            return calls
        codes = self._texts.codes(calls.get_column("name"))
        numbers = calls.get_column("call_id").cast(pl.Int64).to_numpy() - self._count
        named = np.zeros(int(numbers[-1]) + 1, np.uint32)
        named[numbers] = codes
        self._column.add(named)
        self._count += len(named)
        return calls.with_columns(self._named(codes).alias("name"))

    def by_number(self) -> Callable[[pl.Series], pl.Series]:
        """Return a function from numbers of calls to their names, null for unknown calls."""
        names = self._column.array() if self._count else np.zeros(1, np.uint32)

        def name_of(numbers: pl.Series) -> pl.Series:
            wanted = numbers.cast(pl.Int64).fill_null(-1).to_numpy()
            known = (wanted >= 0) & (wanted < len(names))
            return self._named(np.where(known, names[np.where(known, wanted, 0)], 0))

        return name_of

    def _named(self, codes: Any) -> pl.Series:
        names = pl.Series(self._texts.all(), dtype=pl.String)
        places = pl.Series(codes.astype(np.int64) - 1)
        return places.set(places < 0, None).cast(pl.UInt32).cat.to(pl.Enum(names))
