"""Which facts about host and software decide whether two sessions are comparable, and the hash over them.

Reading the facts from a host is `aaco_pipeline.resources.host.facts`; here they only become rows and a fingerprint.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

#: Facts outside the fingerprint: the host's name, so that equal machines compare, and this package's own version,
#: so that an upgrade of the reader does not end a history. Facts that the host marks as volatile (load, commit,
#: caches) stay outside too; everything else enters it.
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
