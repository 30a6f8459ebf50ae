"""A row of what was selected differently, as all who find some write it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

SCHEMA: Final[Mapping[str, pl.DataType]] = {
    "what": pl.String(),
    "from_value": pl.String(),
    "to_value": pl.String(),
    "operator": pl.String(),
    "position": pl.Int32(),
    "count": pl.Float64(),
    "baseline_ns": pl.Int64(),
    "candidate_ns": pl.Int64(),
    "matched_by": pl.String(),
    "evidence": pl.String(),
}
Row = dict[str, Any]


def selected(what: str, was: str, became: str, evidence: str, **more: Any) -> Row:
    return {**dict.fromkeys(SCHEMA), "what": what, "from_value": was, "to_value": became, "evidence": evidence, **more}


def few(names: Sequence[str], most: int = 3) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:most]) + (f" and {len(distinct) - most} more" if len(distinct) > most else "")
