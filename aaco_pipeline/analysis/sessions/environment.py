"""The facts on host and software of a session, and their fingerprint: sessions with equal ones are comparable.

`aaco_pipeline.resources.host.facts` reads the facts from a host.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

#: Facts that are not in the fingerprint: the host's name, so that equal machines are comparable, and the version of
#: this package, so that an upgrade does not end a history. Volatile facts (load, commit, caches) are not in it either.
NOT_IN_FINGERPRINT: Final = frozenset({("host", "name"), ("package", "aaco_pipeline")})


def environment(facts: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of `environment`, sorted, from `{category, key, value, volatile}` facts."""
    rows = [
        {
            "category": fact["category"],
            "key": fact["key"],
            "value": fact["value"],
            "in_fingerprint": not fact.get("volatile", False)
            and (fact["category"], fact["key"]) not in NOT_IN_FINGERPRINT,
        }
        for fact in facts
    ]
    return pl.DataFrame(rows, schema=polars_types("environment")).sort("category", "key")


def fingerprint(rows: pl.DataFrame) -> str:
    """The first 16 hexadecimal digits of the SHA-256 over the sorted rows of `environment` with in_fingerprint."""
    kept = rows.filter("in_fingerprint").select("category", "key", "value").sort("category", "key")
    return hashlib.sha256(json.dumps(kept.rows()).encode()).hexdigest()[:16]
