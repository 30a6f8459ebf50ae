"""What Dagster shows of a stage: its metadata, tables, versions and column schema."""

from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import polars as pl

from aaco_pipeline.assets.stage import Outcome, Session, publish, stages
from aaco_pipeline.automation.stage_assets import column_schema
from aaco_pipeline.automation.stage_events import data_version, described, markdown_table
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from tests.places import CONFIGS


@dataclass(frozen=True)
class Shown:
    """What was published of a stage without tables, and what is said of it."""

    metadata: dict[str, Any]
    version: str
    bytes: int


def shown(lake: TraceLake, *items: str, **rest: Any) -> Shown:
    session = Session(lake, new_session_id(), CONFIGS)
    outcome = Outcome({}, [Evidence(item, "present") for item in items], **rest)
    one = replace(stages()["capture"], publishes=(), plots={}, file=None)
    entries = publish(session, one, outcome)
    return Shown(described(session, one, outcome, entries), data_version(entries), entries[0].bytes)


def test_what_was_published_is_described(empty_lake: TraceLake) -> None:
    found = shown(empty_lake, "a", "b", headline={"latency_ns": 5, "unknown": None, "model": "m"})
    assert found.metadata == {
        "dagster/row_count": 2,
        "dagster/uri": str(empty_lake.path),
        "evidence_rows": 2,
        "published_bytes": found.bytes,
        "latency_ns": 5,
        "model": "m",
    }


def test_the_data_version_is_of_what_was_published(empty_lake: TraceLake) -> None:
    def version(*items: str) -> str:
        session = Session(empty_lake, "20260102T030405Z-0a1b2c3d", CONFIGS)
        outcome = Outcome({}, [Evidence(item, "present") for item in items])
        return data_version(publish(session, replace(stages()["capture"], publishes=()), outcome))

    assert version("a") == version("a") != version("b")


def test_a_small_table_is_shown_up_to_ten_rows(empty_lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": range(30)})
    table = shown(empty_lake, "a", preview=preview, preview_title="numbers").metadata["numbers"]
    assert isinstance(table, dg.MarkdownMetadataValue)
    assert table.value is not None
    assert len(table.value.splitlines()) == 2 + 10


def test_an_empty_table_is_not_shown(empty_lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": []}, schema={"n": pl.Int64})
    assert "preview" not in shown(empty_lake, "a", preview=preview).metadata


def test_markdown_escapes_bars_and_tells_nothing_from_zero() -> None:
    frame = pl.DataFrame({"name": ["a|b", None], "count": [1234567, 0], "score": [0.5, None]})
    assert markdown_table(frame).splitlines() == [
        "| name | count | score |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1,234,567 | 0.500 |",
        "| – | 0 | – |",
    ]


def test_a_small_table_is_in_units_that_a_person_reads() -> None:
    frame = pl.DataFrame({"total_ns": [71_516_523, None], "share_ratio": [0.735, 0.0], "read_bytes": [2048, 0]})
    assert markdown_table(frame).splitlines() == [
        "| total | share | read |",
        "| ---: | ---: | ---: |",
        "| 71.52\N{NO-BREAK SPACE}ms | 73.5\N{NO-BREAK SPACE}% | 2.0\N{NO-BREAK SPACE}KiB |",
        "| – | 0.0\N{NO-BREAK SPACE}% | 0\N{NO-BREAK SPACE}B |",
    ]
    assert len(markdown_table(pl.DataFrame({"kernel": ["k" * 300]})).splitlines()[2]) == 40 + 4


def test_the_headline_stands_before_the_amounts(empty_lake: TraceLake) -> None:
    names = list(shown(empty_lake, "a", headline={"class": "device"}, preview=pl.DataFrame({"n": [1]})).metadata)
    assert names[:2] == ["class", "preview"]
    assert names[-1] == "published_bytes"


def test_the_column_schema_names_table_and_column_with_unit() -> None:
    columns = {column.name: column for column in column_schema(stages()["timeline"]).columns}
    assert {name.partition(".")[0] for name in columns} == set(stages()["timeline"].tables)
    start = columns["gaps.start_ns"]
    assert start.type == "int64"
    assert start.description is not None
    assert start.description.endswith("[ns]")
    assert not str(columns["gaps.cause"].description).endswith("]")
    assert not start.constraints.nullable
