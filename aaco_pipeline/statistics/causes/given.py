"""What operators and copies were given differently: types and shapes of inputs, the host memory that copies go by."""

from collections.abc import Iterator, Sequence

import polars as pl

from aaco_pipeline.statistics.causes.accounts import Account
from aaco_pipeline.statistics.causes.matching import LEAST_COUNT
from aaco_pipeline.statistics.causes.selected import Row, few, selected


def other_inputs(before: Sequence[Account], after: Sequence[Account]) -> tuple[set[str], list[Row]]:
    """Operators that are called as often, but with other shapes or types of their inputs.

    The operators with other types, and a row for each pair of types and one for all other shapes, of the operators
    together.
    """
    sides = []
    for side in (before, after):
        rows = pl.concat([one.inputs.with_columns(pl.col("count") / (one.steps * len(side))) for one in side])
        sides.append(rows.group_by("operator", "shapes", "types").agg(pl.col("count").sum()))
    keys = ("operator", "shapes", "types")
    both = (
        sides[0]
        .join(sides[1], on=keys, how="full", coalesce=True, suffix="_after")
        .with_columns(pl.col("count", "count_after").fill_null(0.0))
    )
    change = pl.col("count_after") - pl.col("count")
    totals = pl.col("count").sum().over("operator"), pl.col("count_after").sum().over("operator")
    moved = both.filter((totals[0] - totals[1]).abs() < LEAST_COUNT).with_columns(change=change)
    moved = moved.filter(pl.col("change").abs() >= LEAST_COUNT).sort("operator", "change", "shapes", "types")
    found: dict[tuple[str, str, str], list[Row]] = {}
    for (operator,), rows in moved.group_by("operator", maintain_order=True):
        gone, came = rows.filter(pl.col("change") < 0), rows.filter(pl.col("change") > 0)
        told = _other_inputs(gone, came) if gone.height and came.height else None
        if told is not None:
            what, was, became = told
            row = {"operator": str(operator), "was": was, "became": became, "count": came.get_column("change").sum()}
            # Types change everywhere in the same way, shapes at each operator in its own.
            found.setdefault(told if what == "datatype" else (what, "", ""), []).append(row)
    retyped = {row["operator"] for (what, *_), places in found.items() if what == "datatype" for row in places}
    return retyped, [_of_inputs(what, places) for (what, *_), places in found.items()]


def _other_inputs(gone: pl.DataFrame, came: pl.DataFrame) -> tuple[str, str, str] | None:
    """What is other in an operator's inputs: the types that changed, else the shapes; None for another overload."""
    types = [list(dict.fromkeys(rows.get_column("types"))) for rows in (gone, came)]
    if set(types[0]) == set(types[1]):
        return "input_shape", few(sorted(gone.get_column("shapes"))), few(sorted(came.get_column("shapes")))
    pairs = set()
    for was, became in zip(*map(sorted, types), strict=False):
        lists = [one.strip("[]").split(",") for one in (was, became)]
        if len(lists[0]) != len(lists[1]):
            return None
        # A type that one side does not tell is no other type.
        pairs |= {
            pair for pair in zip(*lists, strict=True) if pair[0] != pair[1] and all(one.strip('" ') for one in pair)
        }
    if len(types[0]) != len(types[1]) or not pairs:
        return None
    was, became = (few(sorted({pair[side].strip('" ') for pair in pairs})) for side in (0, 1))
    return "datatype", was, became


def _of_inputs(what: str, places: Sequence[Row]) -> Row:
    """One row for all operators at which it is so, the most frequent first; shapes are those of that one."""
    places = sorted(places, key=lambda row: (-row["count"], row["operator"]))
    return selected(
        what,
        places[0]["was"],
        places[0]["became"],
        f"operator_inputs.{'shapes' if what == 'input_shape' else 'types'}",
        operator=few([row["operator"] for row in places], most=1),
        count=float(sum(row["count"] for row in places)),
        matched_by="operator",
    )


def copy_paths(before: Sequence[Account], after: Sequence[Account]) -> Iterator[Row]:
    """Copies of one direction that all read or write another kind of host memory."""
    sides = []
    for side in (before, after):
        rows = pl.concat(
            [one.copies.with_columns(pl.col("count", "busy_ns") / (one.steps * len(side))) for one in side]
        )
        kinds = pl.col("host_memory").unique().sort().str.join(" and ")
        sides.append(rows.group_by("direction").agg(kinds, pl.col("count").sum(), pl.col("busy_ns").sum()))
    both = sides[0].join(sides[1], on="direction", suffix="_after").sort("direction")
    for row in both.filter(pl.col("host_memory") != pl.col("host_memory_after")).iter_rows(named=True):
        yield selected(
            "copy_path",
            f"{row['host_memory']} memory",
            f"{row['host_memory_after']} memory",
            "memory_copies.host_memory",
            operator=row["direction"].replace("_", " ") + " copies",
            count=row["count_after"],
            baseline_ns=round(row["busy_ns"]),
            candidate_ns=round(row["busy_ns_after"]),
            matched_by="name",
        )
