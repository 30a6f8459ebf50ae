"""What a statement can mean, so that no more is opened: which tables, and which sessions and campaigns in them.

Tables: what DuckDB's parser makes of it. Sessions: what its optimizer does. For these the statement is explained over
tables without rows, in a connection of its own that reads nothing. What the plan compares a scan's key with literals
holds for every row that can matter. After a scan without such a filter, a part of the plan that is not known here, or
an error, the table is read whole. Running it is `aaco_pipeline.lake.sql`.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final

from aaco_pipeline.lake.declaration import DUCKDB_TYPES, Table

if TYPE_CHECKING:
    import duckdb

#: Parts of a plan without parts of their own that read no table of ours behind the plan's back.
_LEAVES: Final = frozenset(
    {"COLUMN_DATA_SCAN", "CTE_SCAN", "DELIM_SCAN", "DUMMY_SCAN", "EMPTY_RESULT", "RANGE", "REC_CTE_SCAN", "UNNEST"}
)
_SCAN: Final = "SEQ_SCAN"
#: What stands in a FROM and is not a table's name.
_MAY_READ_ANY: Final = frozenset({"TABLE_FUNCTION", "SHOW_REF"})
#: What follows from these tables having no rows is not true of the lake's; nor is there, before a statement runs, what
#: the others compare keys with.
_WITHOUT: Final = "statistics_propagation,empty_result_pullup,top_n,join_filter_pushdown,late_materialization"
_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "COMPARE_EQUAL": eq,
    "COMPARE_LESSTHAN": lt,
    "COMPARE_LESSTHANOREQUALTO": le,
    "COMPARE_GREATERTHAN": gt,
    "COMPARE_GREATERTHANOREQUALTO": ge,
}
#: A text in quotes, or what the plan writes before a filter that only spares work: it holds all the same.
_QUOTED_OR_OPTIONAL: Final = re.compile(r"('(?:[^']|'')*')|optional: ")


@dataclass(frozen=True)
class Meant:
    """Ids that can matter: those in `ids`, where these are known, that also pass `test`."""

    ids: frozenset[str] | None
    test: Callable[[str], bool]

    def __call__(self, identifier: str) -> bool:
        """Whether rows of this id can matter."""
        return (self.ids is None or identifier in self.ids) and self.test(identifier)


def one_of(ids: Iterable[str]) -> Meant:
    """These ids and no others."""
    return Meant(frozenset(ids), lambda _: True)


def reads_only(connection: "duckdb.DuckDBPyConnection", statement: str, names: Iterable[str]) -> bool:
    """Whether one SELECT statement can read no table and no view but these, nor tell which others there are.

    A function that gives rows may do either, and so may a description of the lake or a name in a schema.
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
    while left:  # not by recursion: expressions may be deep
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


def meant_by(
    connection: "duckdb.DuckDBPyConnection", statement: str, tables: Sequence[Table], views: Mapping[str, str]
) -> dict[str, Meant]:
    """The ids that one SELECT statement can mean, by table, of those tables of which it does not mean all.

    `tables` are those that it mentions, `views` the statements of views over them, in the order they need one another.
    The `connection` is left with them in it.
    """
    import duckdb

    # Nobody can write this name, so that it stands in a filter of the plan only where the key was compared.
    key = f"key_{secrets.token_hex(8)}"
    connection.execute("SET enable_external_access = false")
    connection.execute(f"SET disabled_optimizers = '{_WITHOUT}'")
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
    try:
        plan = json.loads(connection.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchall()[0][1])
        found: dict[str, list[Meant | None]] = {}
        for node in _nodes(plan):
            name, facts = node["name"].strip(), node["extra_info"]
            if name == _SCAN:
                table_name = facts["Table"].rpartition(f".{key}_")[2]
                found.setdefault(table_name, []).append(_of_scan(connection, facts.get("Filters", []), key))
            elif (not node["children"] and name not in _LEAVES) or "INOUT" in name:
                return {}
    except (duckdb.Error, LookupError, ValueError):
        return {}  # the statement is wrong, which whoever runs it says in its own words; or a plan is written otherwise
    return {name: one for name, scans in found.items() if (one := _any(scans)) is not None}


def _nodes(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in plan:
        yield node
        yield from _nodes(node["children"])


def _of_scan(connection: "duckdb.DuckDBPyConnection", filters: str | list[str], key: str) -> Meant | None:
    """What all filters of a scan leave."""
    texts = [filters] if isinstance(filters, str) else filters
    return _all([_of_filter(connection, text, key) for text in texts if key in text and '"' not in text])


def _of_filter(connection: "duckdb.DuckDBPyConnection", text: str, key: str) -> Meant | None:
    """What one filter leaves, which DuckDB's parser takes apart as it does a statement. None: all, so far as known."""
    plain = _QUOTED_OR_OPTIONAL.sub(lambda found: found[1] or "", text)
    parsed = json.loads(connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {plain}"]).fetchall()[0][0])
    if parsed["error"]:
        return None
    (expression,) = parsed["statements"][0]["node"]["select_list"]
    return _of_expression(expression, key)


def _of_expression(node: Mapping[str, Any], key: str) -> Meant | None:
    kind = node["type"]
    if kind == "CONJUNCTION_AND":
        return _all([_of_expression(child, key) for child in node["children"]])
    if kind == "CONJUNCTION_OR":
        return _any([_of_expression(child, key) for child in node["children"]])
    if kind == "COMPARE_IN" and _is_key(node["children"][0], key):
        values = [_text(child) for child in node["children"][1:]]
        return None if None in values else one_of(value for value in values if value is not None)
    if kind in _COMPARISONS and _is_key(node["left"], key) and (value := _text(node["right"])) is not None:
        compare = _COMPARISONS[kind]
        return one_of([value]) if compare is eq else Meant(None, lambda one: compare(one, value))
    return None


def _is_key(node: Mapping[str, Any], key: str) -> bool:
    return bool(node["type"] == "COLUMN_REF" and node["column_names"] == [key])


def _text(node: Mapping[str, Any]) -> str | None:
    """The text of a literal; None for anything else."""
    literal = node.get("literal")
    return str(literal["text"]) if literal is not None and literal["kind"] == "STRING" else None


def _all(parts: Sequence[Meant | None]) -> Meant | None:
    """The ids that pass every part; a part that is not known passes all."""
    known = [part for part in parts if part is not None]
    named = [part.ids for part in known if part.ids is not None]
    if not known:
        return None
    return Meant(frozenset.intersection(*named) if named else None, lambda one: all(part(one) for part in known))


def _any(parts: Sequence[Meant | None]) -> Meant | None:
    """The ids that pass one of the parts; all when a part is not known."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    named = [part.ids for part in known if part.ids is not None]
    ids = frozenset[str]().union(*named) if len(named) == len(known) else None
    return Meant(ids, lambda one: any(part(one) for part in known))
