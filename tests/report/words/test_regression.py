"""Where a session lies among earlier ones in words: short, with what changed, and never as a verdict."""

import re
from typing import Any

import pytest

from aaco_pipeline.report.words.regression import advice, against_earlier, of_campaign

PLACE: dict[str, Any] = {
    "value_ns": 1_018_000,
    "compared_within": "host",
    "earlier_sessions": 12,
    "low_ns": 990_000,
    "median_ns": 1_000_000,
    "high_ns": 1_030_000,
    "median_ratio": 1.018,
    "previous_session": "before",
}
ROCM = {"kind": "environment", "what": "rocm", "subject": "version", "from_value": "7.1", "to_value": "7.2"}


def change(what: str, subject: str | None, kind: str = "environment") -> dict[str, Any]:
    return {"kind": kind, "what": what, "subject": subject, "from_value": "a", "to_value": "b"}


def test_a_session_within_the_spread_of_earlier_ones_after_a_new_rocm() -> None:
    assert against_earlier(PLACE, [ROCM]) == (
        "It is 1.8 % slower than the median of 12 earlier sessions on this host (1 ms), within their spread; since the "
        "session before ROCm changed from 7.1 to 7.2."
    )
    assert advice("this", PLACE, [ROCM]) == (
        "One session is no verdict: `aaco diff before this` describes the two, and "
        "`aaco compare --baseline SPEC --candidate SPEC` judges fresh ones."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"median_ratio": 0.9, "value_ns": 900_000}, "10.0 % faster than the median of 12 .*, beyond all of them"),
        ({"median_ratio": 1.1, "value_ns": 1_100_000}, "10.0 % slower than the median of 12 .*, beyond all of them"),
        (
            {"median_ratio": 12.04, "value_ns": 12_040_000},
            "It takes 12.04 times as long as the median of 12 .*, beyond all",
        ),
        ({"median_ratio": 0.25, "value_ns": 250_000}, "It is 4 times as fast as the median of 12 .*, beyond all"),
        ({"median_ratio": 1.0001, "compared_within": "environment"}, "as fast as the median .* in this environment"),
        ({"earlier_sessions": 1}, r"1.8 % slower than the one earlier session on this host \(1 ms\)\.$"),
    ],
)
def test_it_is_put_as_it_is(changed: dict[str, Any], words: str) -> None:
    place = {**PLACE, **changed}
    told = against_earlier(place, [])
    assert told is not None
    assert re.search(words, told), told
    assert (advice("this", place, []) is not None) == ("beyond" in words)


def test_alone_in_the_lake_there_is_nothing_to_say() -> None:
    alone = {"value_ns": 5, "earlier_sessions": 0, "median_ratio": None, "previous_session": None}
    assert against_earlier(alone, []) is None
    assert advice("this", alone, []) is None


def test_what_matters_most_is_told_first_and_the_rest_counted() -> None:
    rows = [change("boot", "time"), change("cpu", "microcode"), change("package", "onnxruntime"), ROCM]
    told = against_earlier(PLACE, [*rows, change("gemm_backend", "aten::mm", "selection")])
    assert told is not None
    assert told.endswith(
        "since the session before gemm backend at aten::mm changed from a to b, ROCm changed from 7.1 to 7.2, "
        "onnxruntime changed from a to b, and 2 facts more."
    )
    booted = against_earlier(PLACE, [change("boot", "time")])
    assert booted is not None
    assert booted.endswith("the host was booted again.")


def test_a_campaigns_verdict_is_said_with_the_sessions_part_in_it() -> None:
    row: dict[str, Any] = {
        "campaign_id": "compare-1",
        "candidate": "candidate",
        "baseline": "baseline",
        "verdict": "regressed",
    }
    row |= {"effect_ratio": 1.05, "ci_low": 1.03, "ci_high": 1.07}
    assert of_campaign("candidate", [row]) == [
        "Its campaign compare-1, of which it is a session of the candidate, holds candidate against baseline: "
        "regressed, 1.050 times as long (95 % interval 1.030 … 1.070)."
    ]
    bare = {**row, "verdict": "withheld", "effect_ratio": None, "ci_low": None, "ci_high": None}
    assert of_campaign(None, [bare]) == ["Its campaign compare-1 holds candidate against baseline: withheld."]
