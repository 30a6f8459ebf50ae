"""One export of Nsight Systems open for reading: its tables by kind, integer columns, texts, and the lookup of names.

What they mean is `aaco_pipeline.formats.kineto.nsys.reading`.
"""

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.kineto.nsys.signs import newest
from aaco_pipeline.formats.rocpd.database import Database, TableSet
from aaco_pipeline.formats.rocpd.lookup import Lookup, integer, text

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
RANGES: Final = "NVTX_EVENTS"
NAMES: Final = "StringIds"
#: Without these columns a table of records is no such table.
_ESSENTIAL: Final = {
    **dict.fromkeys((KERNELS, GRAPHS, COPIES, FILLS), ("start", "end", "deviceId", "streamId")),
    CALLS: ("start", "end", "nameId"),
    WAITS: ("start", "end", "syncType"),
    RANGES: ("start", "end"),
    NAMES: ("id", "value"),
}
#: Tables that hold no records of what ran.
_NO_RECORDS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "sqlite_", "EXPORT_META_DATA", "NVTX_PAYLOAD_SCHEMA")
_LOOKED_UP: Final = (NAMES, "PROCESSES", "ThreadNames", "MPI_RANKS", "ANALYSIS_DETAILS", "ANALYSIS_FILE")
_LOOKED_UP_TOO: Final = ("DIAGNOSTIC_EVENT", "ProcessStreams", "UnwindMethodType", EVENTS)
_CHUNK_ROWS: Final = 65_536
#: Of such a table no more rows are looked at: processes, settings, messages.
_MOST_SMALL_ROWS: Final = 200_000


class Export:
    """The tables of an export. Every method raises CaptureError where the file is damaged."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits
        listed = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if len(listed) > limits.tables:
            raise CaptureError(f"{database.path}: more than {limits.tables} tables; not a profiler's database")
        self.kinds = newest(str(name) for (name,) in listed)
        columns = {}
        for several in self.kinds.values():
            for name in several:
                quoted = name.replace('"', '""')
                rows = database.rows(f'PRAGMA table_info("{quoted}")')
                columns[name] = frozenset(str(row[1]) for row in rows)
        self.set = TableSet("", None, {}, columns, prefix="")
        self._check()
        self.counts = {
            name: database.count(self.set, name)
            for several in self.kinds.values()
            for name in several
            if columns[name] and not name.startswith(_NO_RECORDS)
        }
        if sum(self.counts.values()) > limits.events:
            raise CaptureError(f"{database.path}: more than {limits.events} rows; not read")
        self.names = self._strings()

    def _check(self) -> None:
        for kind, wanted in _ESSENTIAL.items():
            if kind not in self.kinds:
                continue
            lacking = [name for name in wanted if not self.has(kind, name)]
            if lacking:
                raise CaptureError(
                    f"{self.database.path}: not an Nsight Systems export that is known: {self.kinds[kind][0]} has no "
                    f"{', '.join(lacking)}; export the report again: nsys export --type sqlite REPORT"
                )
        if NAMES not in self.kinds:
            raise CaptureError(
                f"{self.database.path}: no table {NAMES}: the export was interrupted, nothing in it has a name; export "
                "the report again: nsys export --type sqlite REPORT"
            )

    def has(self, kind: str, *columns: str) -> bool:
        """Whether there is a table of this kind with these columns."""
        return kind in self.kinds and self.set.has(self.kinds[kind][0], *columns)

    def count(self, kind: str) -> int:
        """Rows of the table of a kind, 0 without one."""
        return self.counts.get(self.kinds[kind][0], 0) if kind in self.kinds else 0

    def others(self) -> dict[str, int]:
        """Tables of records that this reader has no use for, with their rows; older versions of a table, too."""
        taken = {several[0] for kind, several in self.kinds.items() if kind in (*_ESSENTIAL, *_LOOKED_UP)}
        taken |= {several[0] for kind, several in self.kinds.items() if kind in _LOOKED_UP_TOO}
        return {name: rows for name, rows in self.counts.items() if rows and name not in taken}

    def integers(self, kind: str, columns: Mapping[str, str]) -> pl.DataFrame:
        """Integer columns of a kind's table by the names wanted, in the table's order; null where it has none."""
        if kind not in self.kinds:
            return pl.Schema(dict.fromkeys(columns, pl.Int64())).to_frame()
        return self.database.integers(self.set, self.kinds[kind][0], columns)

    def texts(self, kind: str, column: str) -> pl.Series:
        """A text column in the table's order; null for what is no text, and for one longer than a text may be."""
        series = [pl.Series(column, [], pl.String)]
        if self.has(kind, column):
            table, after = self.set.table(self.kinds[kind][0]), -(2**63)
            longest = self.limits.text_bytes
            value = f"CASE WHEN typeof({column}) = 'text' AND length({column}) <= {longest} THEN {column} END"
            while rows := self.database.rows(
                f"SELECT rowid, {value} FROM {table} WHERE rowid > {after} ORDER BY rowid LIMIT {_CHUNK_ROWS}"
            ):
                series.append(pl.Series(column, [row[1] for row in rows], pl.String))
                after = int(rows[-1][0])
        found = pl.concat(series)
        return found if len(found) else pl.Series(column, [None], pl.String).new_from_index(0, self.count(kind))

    def records(self, kind: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a small table as dictionaries; a column it lacks is None throughout."""
        if kind not in self.kinds:
            return []
        where = f"rowid IN (SELECT rowid FROM {self.set.table(self.kinds[kind][0])} LIMIT {_MOST_SMALL_ROWS})"
        return self.database.records(self.set, self.kinds[kind][0], *columns, where=where)

    def settings(self, kind: str) -> list[tuple[str, str]]:
        """The rows of a table of names and values, as text; what is neither is left out."""
        rows = ((text(row["name"]), text(row["value"])) for row in self.records(kind, "name", "value"))
        return [(name, value) for name, value in rows if name is not None and value is not None]

    def _strings(self) -> Lookup:
        values = self.texts(NAMES, "value")
        ids = self.integers(NAMES, {"id": "id"}).get_column("id")
        if len(ids) != len(values):
            raise CaptureError(f"{self.database.path}: {NAMES} is damaged; export the report again")
        known = pl.DataFrame({"id": ids, "value": values}).drop_nulls()
        return Lookup(known.get_column("id").to_list(), known.get_column("value"))


def whole(value: object) -> int | None:
    """A number of a small table, which the exporter writes as 0 or less where it does not know."""
    number = integer(value)
    return number if number is not None and number > 0 else None
