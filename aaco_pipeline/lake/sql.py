"""Read-only SQL over a lake: one DuckDB view per contract and a few helper views, for one guarded SELECT.

`aaco_pipeline.lake.reading` reads without SQL, and `aaco_pipeline.lake.limited_sql` limits memory and time. A statement
is rejected unless DuckDB itself parses it as one SELECT. It then runs in memory with file access limited to the lake's
published files and the configuration locked, so it cannot write, attach, load or read anything else.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.declaration import DUCKDB_TYPES, Scope, Table
from aaco_pipeline.lake.layout import owner_of
from aaco_pipeline.lake.limited_sql import LimitedConnection, Limits, default_limits
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.segments.format import PART_COLUMN, Segment, list_names
from aaco_pipeline.lake.verified import missing
from aaco_pipeline.lake.views import HELPER_VIEWS

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa

_Fetched = TypeVar("_Fetched")
#: Rows per part, as Python values and as Arrow columns.
_PART_ROWS: Final = 10_000
_BATCH_ROWS: Final = 100_000
#: If a file vanishes after its view was created, DuckDB treats its path as a folder, which it may not search.
_VANISHED: Final = re.compile(r'Cannot access file "([^"]+\.parquet)/\*\*')
#: Plan leaves that read no table other than those named in the plan.
_LEAVES: Final = frozenset(
    {"COLUMN_DATA_SCAN", "CTE_SCAN", "DELIM_SCAN", "DUMMY_SCAN", "EMPTY_RESULT", "RANGE", "REC_CTE_SCAN", "UNNEST"}
)
#: FROM items that are not table names.
_MAY_READ_ANY: Final = frozenset({"TABLE_FUNCTION", "SHOW_REF"})
#: Optimizers that draw conclusions from empty tables, or compare keys with values known only at run time.
_MISLED: Final = "statistics_propagation,empty_result_pullup,top_n,join_filter_pushdown,late_materialization"
#: Quoted text, or the plan's prefix for a filter that is only an optimization and holds anyway.
_QUOTED_OR_OPTIONAL: Final = re.compile(r"('(?:[^']|'')*')|optional: ")
#: A function call, whose result may differ when the statement runs.
_CALL: Final = re.compile(r"\b(?!(?:AND|OR|IN|NOT)\b)\w+ ?\(")


@dataclass(frozen=True)
class Result:
    """Rows of a SELECT as Python values, with names and DuckDB types of the columns."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def select_rows(lake: LakeReader, statement: str, only: Collection[str] | None = None) -> Result:
    """Run one SELECT over `lake`. UsageError for a statement that is rejected, invalid or beyond its limits.

    With `only`, which is reserved for internal statements, the lake appears to hold just these sessions and campaigns.
    """

    def rows(connection: "duckdb.DuckDBPyConnection") -> Result:
        cursor = connection.execute(statement)
        found = cursor.fetchall()
        return Result(*_columns(cursor), found)

    return _select(lake, statement, rows, only)


def select_frame(lake: LakeReader, statement: str) -> "pl.DataFrame":
    """Like `select_rows`, but return a Polars frame. UsageError also for a type that Polars lacks."""
    import polars as pl

    try:
        found: pl.DataFrame = _select(lake, statement, lambda connection: connection.sql(statement).pl())
        return found
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"SQL: a column's type cannot be held in a frame ({' '.join(str(error).split())})") from error


def stream_rows(lake: LakeReader, statement: str, limits: Limits) -> Generator[Result]:
    """Like `select_rows`, but in parts that fit into memory; at least one, even without rows."""

    def parts(connection: "duckdb.DuckDBPyConnection") -> Iterator[Result]:
        cursor = connection.execute(statement)
        columns, types = _columns(cursor)
        yield Result(columns, types, cursor.fetchmany(_PART_ROWS))
        while rows := cursor.fetchmany(_PART_ROWS):
            yield Result(columns, types, rows)

    return _stream(lake, statement, limits, parts)


def stream_batches(lake: LakeReader, statement: str, limits: Limits) -> "Generator[pa.RecordBatch]":
    """Like `stream_rows`, but as Arrow batches; the first is empty and has the schema."""
    import pyarrow as pa

    def parts(connection: "duckdb.DuckDBPyConnection") -> "Iterator[pa.RecordBatch]":
        reader: pa.RecordBatchReader = connection.sql(statement).to_arrow_reader(_BATCH_ROWS)
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from reader

    return _stream(lake, statement, limits, parts)


def _columns(cursor: "duckdb.DuckDBPyConnection") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names and DuckDB types of the selected columns."""
    described = cursor.description or []
    return tuple(one[0] for one in described), tuple(str(one[1]) for one in described)


def _select(
    lake: LakeReader,
    statement: str,
    fetch: "Callable[[duckdb.DuckDBPyConnection], _Fetched]",
    only: Collection[str] | None = None,
) -> _Fetched:
    """Call `fetch` on a guarded connection with the default limits."""
    (found,) = _stream(lake, statement, default_limits(), lambda connection: iter([fetch(connection)]), only)
    return found


def _stream(
    lake: LakeReader,
    statement: str,
    limits: Limits,
    parts: "Callable[[duckdb.DuckDBPyConnection], Iterator[_Fetched]]",
    only: Collection[str] | None = None,
) -> Generator[_Fetched]:
    """Yield the `parts` of the answer; restart if a writer superseded a file before any part was yielded."""
    tables = _mentioned_tables(statement)
    meant = _meant(lake, statement, limits, tables) if only is None else dict.fromkeys(all_tables(), frozenset(only))
    while True:
        published = lake.published(tables, meant)
        lists = [list_names(lake.path, table.name) for table in tables]
        begun = False
        try:
            with _guarded(lake, limits) as running:
                running(partial(_prepare, lake=lake, published=published, statement=statement, ours=only is not None))
                found = running(parts)
                while (part := running(lambda _, found=found: next(found, None))) is not None:  # type: ignore[misc]
                    begun = True
                    yield part
                return
        except LakeError:
            now = [list_names(lake.path, table.name) for table in tables]
            if begun or (lake.published(tables, meant) == published and now == lists):
                raise


def _meant(lake: LakeReader, statement: str, limits: Limits, tables: Sequence[Table]) -> Mapping[str, frozenset[str]]:
    """Return the sessions or campaigns relevant to the statement, by table; tables read in full are omitted."""
    if not any(_mentions(statement, table.key) for table in tables):
        return {}
    views = {helper.name: helper.select for helper in HELPER_VIEWS if _mentions(statement, helper.name)}

    def explained(connection: "duckdb.DuckDBPyConnection") -> Mapping[str, frozenset[str]]:
        _require_one_select(connection, statement)
        ids = {"session": lake.sessions, "campaign": lake.campaigns}
        return meant_by(connection, statement, tables, views, lambda scope: ids[scope]())

    with _guarded(lake, limits) as running:
        return running(explained)


def meant_by(
    connection: "duckdb.DuckDBPyConnection",
    statement: str,
    tables: Sequence[Table],
    views: Mapping[str, str],
    ids: Callable[[Scope], Sequence[str]],
) -> dict[str, frozenset[str]]:
    """Return those of all `ids` that are relevant to one SELECT statement, by table, without tables read in full.

    `tables` are those that it mentions, `views` the statements of views over them, in dependency order. The statement
    is explained over empty tables: the filters on a scan in its plan hold for every relevant row. DuckDB's own pruning
    comes too late, because files are verified before DuckDB opens them.
    """
    import duckdb

    # Nobody can type this name, so it only occurs in a filter of the plan if the key was compared.
    key = f"key_{secrets.token_hex(8)}"
    connection.execute("SET enable_external_access = false")
    connection.execute(f"SET disabled_optimizers = '{_MISLED}'")
    connection.execute("SET lock_configuration = true")
    for table in tables:
        columns = [f'"{c.name}"' for c in table.columns]
        types = [DUCKDB_TYPES[c.dtype] for c in table.columns]
        declared = ", ".join([f"{key} VARCHAR", *map(" ".join, zip(columns, types, strict=True))])
        connection.execute(f'CREATE TABLE "{key}_{table.name}" ({declared})')
        chosen = ", ".join([f"{key} AS {table.key}", *columns])
        connection.execute(f'CREATE VIEW "{table.name}" AS SELECT {chosen} FROM "{key}_{table.name}"')
    for name, select in views.items():
        connection.execute(f'CREATE VIEW "{name}" AS {select}')
    conditions: dict[str, list[str]] = {}
    try:
        plan = json.loads(connection.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchall()[0][1])
        for node in _nodes(plan):
            name, facts = node["name"].strip(), node["extra_info"]
            if name == "SEQ_SCAN":
                table_name = facts["Table"].rpartition(f".{key}_")[2]
                conditions.setdefault(table_name, []).append(_on_key(connection, facts.get("Filters", []), key))
            elif (not node["children"] and name not in _LEAVES) or "INOUT" in name:
                return {}
    except (duckdb.Error, LookupError, ValueError):
        return {}  # the statement is invalid (its execution reports the error), or the plan format differs
    found = {}
    for table in tables:
        scans = conditions.get(table.name, [""])
        if all(scans):
            statement = f"SELECT {key} FROM unnest(?) AS ids({key}) WHERE {' OR '.join(scans)}"
            found[table.name] = frozenset(
                one for (one,) in connection.execute(statement, [ids(table.scope)]).fetchall()
            )
    return found


def _nodes(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in plan:
        yield node
        yield from _nodes(node["children"])


def _on_key(connection: "duckdb.DuckDBPyConnection", filters: str | list[str], key: str) -> str:
    """Combine a scan's filters that compare only the key into one condition; "" if there are none."""
    import duckdb

    texts = [filters] if isinstance(filters, str) else filters
    if any(text.count("'") % 2 for text in texts):
        return ""  # the plan consists of lines, and a literal contains a line end
    usable = []
    for text in texts:
        plain = _QUOTED_OR_OPTIONAL.sub(lambda found: found[1] or "", text)
        if key in plain and not _CALL.search(re.sub("'[^']*'", "", plain)):
            with suppress(duckdb.Error):  # it compares another column, or has a different format
                connection.execute(f"SELECT 1 FROM (SELECT '' AS {key}) WHERE {plain}")
                usable.append(plain)
    return f"({' AND '.join(usable)})" if usable else ""


def reads_only(connection: "duckdb.DuckDBPyConnection", statement: str, names: Iterable[str]) -> bool:
    """Return whether one SELECT statement can read only these tables and views, and cannot list others.

    Table functions, descriptions of the catalog and schema-qualified names can do either.
    """
    import duckdb

    try:
        ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        parsed = json.loads(text)
    except (duckdb.Error, RecursionError):
        return False
    known = {name.casefold() for name in names}
    read: set[str] = set()
    left = [parsed]
    while left:  # no recursion: expressions may be deep
        part = left.pop()
        if isinstance(part, dict):
            left.extend(part.values())
            if part.get("type") in _MAY_READ_ANY or part.get("schema_name"):
                return False
            if "table_name" in part:
                read.add(part["table_name"].casefold())
            known.update(one["key"].casefold() for one in part.get("cte_map", {"map": []})["map"])
        elif isinstance(part, list):
            left.extend(part)
    return not parsed["error"] and read <= known


@contextmanager
def _guarded(lake: LakeReader, limits: Limits) -> Iterator[LimitedConnection]:
    """Open an in-memory connection; DuckDB's errors in the block become one-line errors."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    running = LimitedConnection(connection, limits, lake.path)
    try:
        yield running
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise running.out_of_memory() from error
    except duckdb.Error as error:
        raise _one_line(error, lake) from error
    finally:
        running.close()


def _one_line(error: "duckdb.Error", lake: LakeReader) -> UsageError | LakeError:
    import duckdb

    text = " ".join(str(error).split())
    if (vanished := _VANISHED.search(text)) is not None and Path(vanished[1]).is_relative_to(lake.path):
        return missing(Path(vanished[1]))
    if isinstance(error, duckdb.PermissionException):
        return UsageError(f"SQL refused: a statement reads the lake's tables and no other file ({text})")
    if isinstance(error, duckdb.IOException) or str(lake.path) in text.partition(" LINE ")[0]:
        return LakeError(f"{text}; `aaco doctor` tells why")
    return UsageError(f"SQL: {text}")


def _require_one_select(connection: "duckdb.DuckDBPyConnection", statement: str) -> None:
    import duckdb

    try:
        statement.encode()
        statements = connection.extract_statements(statement)
    except UnicodeEncodeError as error:
        raise UsageError(f"SQL refused: the statement is not valid text ({error.reason})") from error
    if len(statements) != 1:
        raise UsageError(f"SQL refused: {len(statements)} statements found, expected one SELECT")
    try:
        kind = statements[0].type
    except ValueError as error:  # a kind of statement that DuckDB's Python package does not define
        raise UsageError("SQL refused: only one SELECT is accepted") from error
    if kind != duckdb.StatementType.SELECT:
        raise UsageError(f"SQL refused: this is a {kind.name} statement; only one SELECT is accepted")


def _prepare(
    connection: "duckdb.DuckDBPyConnection",
    *,
    lake: LakeReader,
    published: Mapping[str, Sequence[tuple[str, Entry]]],
    statement: str,
    ours: bool,
) -> None:
    """Create views over the published tables that the statement can read, and block everything else.

    Views of other tables take time, so they are only created if a statement might reach them; internal ones (`ours`)
    never do.
    """
    _require_one_select(connection, statement)
    allowed: list[str] = []
    helpers = [helper for helper in HELPER_VIEWS if _mentions(statement, helper.name)]
    if not ours and not reads_only(connection, statement, [*published, *(helper.name for helper in helpers)]):
        helpers = list(HELPER_VIEWS)
        for table in (one for one in all_tables().values() if one.name not in published):
            connection.execute(f'CREATE VIEW "{table.name}" AS {_not_opened(table)}')
    for table in map(contract, published):
        places = lake.places(table, published[table.name])
        files = [str(place) for place in places if isinstance(place, Path)]
        parts: dict[Segment, list[int]] = {}
        for place in places:
            if not isinstance(place, Path):
                parts.setdefault(place.segment, []).append(place.part)
        segments = {str(lake.path / segment.file): _live(segment, own) for segment, own in parts.items()}
        opened = {*files, *segments}
        allowed.extend({*opened, *map(_as_pattern, opened)})
        current = all(entry.contract_version == table.version for _, entry in published[table.name] if entry.file)
        view = _over_one(table, files[0]) if current and len(places) == len(files) == 1 else ""
        connection.execute(f'CREATE VIEW "{table.name}" AS {view or _over_files(table, files, segments)}')
    for helper in helpers:
        connection.execute(f'CREATE VIEW "{helper.name}" AS {helper.select}')
    for setting, value in _LOCKED_SETTINGS.items():
        connection.execute(f"SET {setting} = {value}")
    connection.execute(f"SET allowed_paths = {_list_literal(allowed)}")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


_LOCKED_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "'UTC'",
    "enable_progress_bar": "false",  # it would end up in the output
    "autoload_known_extensions": "false",
}


def _mentioned_tables(statement: str) -> list[Table]:
    """Return the tables that the text may mention: all of them if query() or query_table() can compose a name."""
    mentioned = {name for name in all_tables() if _mentions(statement, "query") or _mentions(statement, name)}
    for helper in HELPER_VIEWS:
        if _mentions(statement, helper.name):
            mentioned.update(helper.tables)
    return [table for name, table in all_tables().items() if name in mentioned]


def _mentions(statement: str, name: str) -> bool:
    return re.search(name, statement, re.IGNORECASE) is not None


def _as_columns(table: Table, value: str) -> str:
    """Return the SQL expression `value` as every column of the table, in the column's type."""
    return ", ".join(f'CAST({value} AS {DUCKDB_TYPES[c.dtype]}) AS "{c.name}"' for c in table.all_columns)


def _not_opened(table: Table) -> str:
    """Return a view that fails when read, with or without columns (a filter on a constant would hide one)."""
    error = f"error('table {table.name} must be spelled out in the statement')"
    return f"SELECT {_as_columns(table, error)} WHERE {error} IS NULL"


def _over_one(table: Table, file: str) -> str:
    """Return a view over one file of the current contract: every column has its type, and DuckDB binds it faster."""
    key = f"'{owner_of(Path(file))[1]}' AS \"{table.key}\""
    columns = ", ".join(key if c.name == table.key else f'"{c.name}"' for c in table.all_columns)
    return f"SELECT {columns} FROM {_reading([file])}"


def _over_files(table: Table, files: list[str], segments: Mapping[str, str]) -> str:
    """Return a view over sessions' own files and segments, each with the condition on its live rows."""
    columns = ", ".join(f'"{c.name}"' for c in table.all_columns)
    # The typed empty branch gives every column its contract's type, including columns missing from older files.
    sources = [f"SELECT {_as_columns(table, 'NULL')} WHERE false"]
    whole = [segment for segment, live in segments.items() if not live]
    if whole:
        sources.append(f"SELECT * FROM {_reading(whole)}")
    sources += [f"SELECT * FROM {_reading([segment])} WHERE {live}" for segment, live in segments.items() if live]
    if files:
        # The key is in the path; only older files contain it too. DuckDB still prunes files by a filter on it.
        key = f"regexp_extract(filename, '/{table.key}=([^/]+)/[^/]*$', 1) AS \"{table.key}\""
        sources.append(
            f"SELECT {key}, COLUMNS(lambda c: c <> '{table.key}') FROM {_reading(files, ', filename = true')}"
        )
    return f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(sources)})"


def _live(segment: Segment, parts: list[int]) -> str:
    """Return the condition that keeps these parts of a segment; "" if they are all of it."""
    if len(parts) == segment.parts:
        return ""
    dead = sorted({*range(segment.parts)} - {*parts})
    few, negated = (dead, "NOT ") if len(dead) < len(parts) else (sorted(parts), "")
    return f"{PART_COLUMN} {negated}IN ({', '.join(map(str, few))})"


def _reading(files: list[str], options: str = "") -> str:
    paths = _list_literal([_as_pattern(file) for file in files])
    return f"read_parquet({paths}, union_by_name = true, hive_partitioning = false{options})"


def _list_literal(texts: list[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _as_pattern(path: str) -> str:
    """Escape a path as a glob pattern, because DuckDB treats every path as a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", path)
