"""What all stages have in common: publishing, describing, and showing an expected error as one line."""

from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from aaco_pipeline.assets.stage import (
    EXIT_CODE_KEY,
    Outcome,
    column_schema,
    expected_errors,
    markdown_table,
    publish_outcome,
)
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, ModelError, UnavailableError, UsageError
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake


def outcome(*items: str, **rest: Any) -> Outcome:
    return Outcome({"evidence": evidence_frame("capture", [Evidence(item, "present") for item in items])}, **rest)


@pytest.fixture
def lake(lake_path: Path) -> TraceLake:
    return TraceLake(lake_path)


@pytest.mark.parametrize("kind", [UsageError, ModelError, UnavailableError, CaptureError, LakeError])
def test_an_expected_error_is_one_line_with_its_exit_code_and_is_not_retried(kind: type[AacoError]) -> None:
    with pytest.raises(dg.Failure) as caught, expected_errors():
        raise kind("what, where and what to do")
    assert caught.value.description == "what, where and what to do"
    assert caught.value.metadata[EXIT_CODE_KEY].value == kind.exit_code
    assert caught.value.allow_retries is False
    assert isinstance(caught.value.__cause__, kind)


def test_a_bug_is_not_dressed_up_as_an_expected_error() -> None:
    with pytest.raises(ZeroDivisionError), expected_errors():
        raise ZeroDivisionError


def test_what_was_published_is_described(lake: TraceLake) -> None:
    session = new_session_id()
    result = publish_outcome(
        lake, session, "capture", outcome("a", "b", headline={"latency_ns": 5, "unknown": None, "model": "m"})
    )
    (entry,) = lake.manifest(session).of_stage("capture")
    assert result.metadata == {
        "dagster/row_count": 2,
        "dagster/uri": str(lake.path),
        "evidence_rows": 2,
        "published_bytes": entry.bytes,
        "latency_ns": 5,
        "model": "m",
    }


def test_the_data_version_is_of_what_was_published(lake: TraceLake) -> None:
    session = new_session_id()

    def version(*items: str) -> object:
        return publish_outcome(lake, session, "capture", outcome(*items)).data_version

    assert version("a") == version("a") != version("b")


def test_a_small_table_is_shown_up_to_ten_rows(lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": range(30)})
    result = publish_outcome(lake, new_session_id(), "capture", outcome("a", preview=preview, preview_title="numbers"))
    assert result.metadata is not None
    shown = result.metadata["numbers"]
    assert isinstance(shown, dg.MarkdownMetadataValue)
    assert shown.value is not None
    assert len(shown.value.splitlines()) == 2 + 10


def test_an_empty_table_is_not_shown(lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": []}, schema={"n": pl.Int64})
    result = publish_outcome(lake, new_session_id(), "capture", outcome("a", preview=preview))
    assert "preview" not in (result.metadata or {})


def test_markdown_escapes_bars_and_tells_nothing_from_zero() -> None:
    frame = pl.DataFrame({"name": ["a|b", None], "count": [1234567, 0], "ratio": [0.5, None]})
    assert markdown_table(frame).splitlines() == [
        "| name | count | ratio |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1,234,567 | 0.500 |",
        "| – | 0 | – |",
    ]


def test_the_column_schema_names_table_and_column_with_unit() -> None:
    columns = {column.name: column for column in column_schema(["gaps", "timeline"]).columns}
    assert {name.partition(".")[0] for name in columns} == {"gaps", "timeline"}
    start = columns["gaps.start_ns"]
    assert start.type == "int64"
    assert start.description is not None
    assert start.description.endswith("[ns]")
    assert not start.constraints.nullable
