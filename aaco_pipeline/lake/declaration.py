"""The vocabulary for declaring a table: columns with type, unit, nullability and meaning.

Declarations are in `aaco_pipeline.lake.tables`, lookup by name in `aaco_pipeline.lake.contracts`. Types and units are
constants, so that the type checker finds misspelled ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NewType

Scope = Literal["session", "campaign"]
"""The owner of a table's file: one session, or one campaign (a judgement over sets of sessions)."""

Type = NewType("Type", str)
Unit = NewType("Unit", str)

STRING: Final = Type("string")
BOOL: Final = Type("bool")
INT32: Final = Type("int32")
INT64: Final = Type("int64")
UINT64: Final = Type("uint64")
FLOAT64: Final = Type("float64")
TIMESTAMP: Final = Type("timestamp")
DAY: Final = Type("date")
STRINGS: Final = Type("list<string>")
INT64S: Final = Type("list<int64>")
SIGNALS: Final = Type("list<evidence>")
FLOPS_OF_TYPES: Final = Type("list<flops_of_type>")

NAME: Final = Unit("name")
ID: Final = Unit("id")
NS: Final = Unit("ns")
COUNT: Final = Unit("count")
RATIO: Final = Unit("ratio")
TEXT: Final = Unit("text")
BYTES: Final = Unit("bytes")
TRUTH: Final = Unit("bool")
VARIES: Final = Unit("varies")
MHZ: Final = Unit("MHz")
FLOP_PER_BYTE: Final = Unit("flop/byte")
CYCLES: Final = Unit("cycles")
FLOP: Final = Unit("flop")
PER_S: Final = Unit("1/s")
WATT: Final = Unit("W")
DEG_C: Final = Unit("degC")
DATE: Final = Unit("timestamp")
CALENDAR: Final = Unit("date")
BITS: Final = Unit("bits")
JOULE: Final = Unit("J")
FLOP_PER_S: Final = Unit("flop/s")
BYTE_PER_S: Final = Unit("byte/s")
RECORD: Final = Unit("record")
VERSION: Final = Unit("version")

#: The DuckDB type of each type in a view.
DUCKDB_TYPES: Final[Mapping[Type, str]] = {
    STRING: "VARCHAR",
    BOOL: "BOOLEAN",
    INT32: "INTEGER",
    INT64: "BIGINT",
    UINT64: "UBIGINT",
    FLOAT64: "DOUBLE",
    TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    DAY: "DATE",
    STRINGS: "VARCHAR[]",
    INT64S: "BIGINT[]",
    SIGNALS: "STRUCT(signal VARCHAR, value DOUBLE, unit VARCHAR, threshold DOUBLE, weight DOUBLE, source VARCHAR)[]",
    FLOPS_OF_TYPES: "STRUCT(dtype VARCHAR, flops DOUBLE)[]",
}


@dataclass(frozen=True)
class Column:
    """One column; `since` is the table version that added it."""

    name: str
    dtype: Type
    unit: Unit
    nullable: bool
    meaning: str
    since: int = 1


def column(name: str, dtype: Type, unit: Unit, meaning: str, *, since: int = 1) -> Column:
    """Declare a column with a value in every row."""
    return Column(name, dtype, unit, False, meaning, since)


def nullable(name: str, dtype: Type, unit: Unit, meaning: str, *, since: int = 1) -> Column:
    """Declare a column that may be null, meaning that there is no evidence."""
    return Column(name, dtype, unit, True, meaning, since)


@dataclass(frozen=True)
class Table:
    """One table's contract.

    `columns` excludes the key: `all_columns` puts `session_id` (or `campaign_id`) first. Files are sorted by `sort_by`,
    whose first entry is the table's first key. `version` increases by one whenever columns or vocabulary values are
    added; a reader accepts any version up to its own (missing columns are null) and rejects newer ones by name.
    """

    name: str
    section: str
    meaning: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    scope: Scope = "session"
    version: int = 1

    @property
    def key(self) -> str:
        return f"{self.scope}_id"

    @property
    def all_columns(self) -> tuple[Column, ...]:
        meaning = (
            "The session the row belongs to."
            if self.scope == "session"
            else "The campaign (set of sessions judged together) the row belongs to."
        )
        return (column(self.key, STRING, ID, meaning), *self.columns)
