"""What a person asked to be measured: its text form, and the values it does not accept."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.request import OPTIMIZATIONS, PRECISIONS, MeasurementRequest
from aaco_pipeline.errors import UsageError

COUNTS = st.none() | st.integers(1, 10_000_000)
NAMES = st.text(min_size=1, max_size=20)
LAUNCHES = st.builds(
    MeasurementRequest,
    model=NAMES,
    backend=NAMES,
    batch_size=COUNTS,
    iterations=COUNTS,
    warmup=st.none() | st.integers(0, 100),
    threads=COUNTS,
    precision=st.sampled_from(PRECISIONS),
    optimization=st.sampled_from(OPTIMIZATIONS),
    seed=st.integers(0, 2**63 - 1),
    timeout_seconds=st.floats(0, 1e9, exclude_min=True, allow_nan=False),
    allow_fallback=st.booleans(),
    input_shapes=st.dictionaries(NAMES, st.lists(st.integers(0, 10_000), max_size=5).map(tuple), max_size=3),
    campaign_id=st.none() | NAMES,
    arm=st.sampled_from([None, "candidate", "baseline", "canary"]),
    block=st.none() | st.integers(0, 99),
)


@given(LAUNCHES)
def test_every_launch_survives_its_text_form(launch: MeasurementRequest) -> None:
    assert MeasurementRequest.from_json(launch.to_json(), "test") == launch


def test_the_text_form_is_sorted_json_on_lines() -> None:
    text = MeasurementRequest(model="m", input_shapes={"x": (1, 2)}).to_json()
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert document["input_shapes"] == {"x": [1, 2]}
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"iterations": 0}, "iterations is 0; expected 1 or more"),
        ({"warmup": -1}, "warmup is -1; expected 0 or more"),
        ({"threads": 0}, "threads is 0; expected 1 or more"),
        ({"seed": -1}, "seed is -1; expected 0 or more"),
        ({"timeout_seconds": 0}, "timeout is 0 s; expected more than 0"),
        ({"timeout_seconds": -1.5}, "timeout is -1.5 s; expected more than 0"),
        ({"iterations": 10_000_001}, "iterations is 10000001; expected 10000000 or less"),
        ({"warmup": 10_000_001}, "warmup is 10000001; expected 10000000 or less"),
        ({"batch_size": 2**31}, "batch_size is 2147483648; expected 2147483647 or less"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected 9223372036854775807 or less"),
        ({"optimization": "most"}, "optimization is 'most'; expected one of none, basic"),
        ({"precision": "fp64"}, "precision is 'fp64'; expected one of model, fp16"),
        ({"input_shapes": {"x": (1, -1)}}, r"shape of input 'x' is \[1, -1\]; no dimension is negative"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MeasurementRequest(model="m", **settings)


@pytest.mark.parametrize("limit", [math.nan, math.inf])
def test_a_time_limit_that_no_clock_reaches_is_refused(limit: float) -> None:
    """A timer cannot be set to it, so a model that hangs would hang for ever."""
    with pytest.raises(UsageError, match="timeout"):
        MeasurementRequest(model="m", timeout_seconds=limit)


def test_the_least_values_are_accepted() -> None:
    MeasurementRequest(
        model="m", batch_size=1, iterations=1, warmup=0, threads=1, seed=0, input_shapes={"scalar": (), "none": (0,)}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        "null",
        '{"model": "m"}',
        '{"model": "m", "input_shapes": {}, "colour": "red"}',
        '{"model": "m", "input_shapes": {"x": 3}}',
        '{"model": "m", "input_shapes": []}',
        '{"model": "m", "input_shapes": {}, "iterations": "many"}',
    ],
)
def test_a_text_that_is_no_launch_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(UsageError, match="launch request of session x: not a launch request"):
        MeasurementRequest.from_json(text, "launch request of session x")


def test_a_value_out_of_range_in_a_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="batch_size is 0"):
        MeasurementRequest.from_json('{"model": "m", "input_shapes": {}, "batch_size": 0}', "test")


@pytest.mark.parametrize("one", [{"prompt_tokens": 4}, {"output_tokens": 4}])
def test_a_prompt_and_a_number_of_tokens_go_together(one: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="go together"):
        MeasurementRequest(model="m", **one)  # type: ignore[arg-type]
