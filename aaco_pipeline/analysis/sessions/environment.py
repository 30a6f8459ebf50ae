"""Host and software facts of a session, and their fingerprint: equal fingerprints mean comparable sessions.

`aaco_pipeline.resources.host.facts` collects the facts on a host.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

#: Facts outside the fingerprint: the host name, so that equal machines are comparable, and this package's version, so
#: that an upgrade does not end a history. Volatile facts (load, commit, caches) are excluded too.
NOT_IN_FINGERPRINT: Final = frozenset({("host", "name"), ("package", "aaco_pipeline")})


def environment(facts: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return sorted rows of `environment` from `{category, key, value, volatile}` facts."""
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
    """Return the first 16 hexadecimal digits of the SHA-256 over the sorted `environment` rows with in_fingerprint."""
    kept = rows.filter("in_fingerprint").select("category", "key", "value").sort("category", "key")
    return hashlib.sha256(json.dumps(kept.rows()).encode()).hexdigest()[:16]
