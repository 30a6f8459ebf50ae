"""Requests for a measurement: their text form, and the values they refuse."""

import json
import math
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.request import MeasurementRequest, Optimization, Precision
from aaco_pipeline.errors import UsageError

COUNTS = st.none() | st.integers(1, 10_000_000)
NAMES = st.text(min_size=1, max_size=20)
REQUESTS = st.builds(
    MeasurementRequest,
    model=NAMES,
    backend=NAMES,
    batch_size=COUNTS,
    iterations=COUNTS,
    warmup=st.none() | st.integers(0, 100),
    threads=COUNTS,
    precision=st.sampled_from(get_args(Precision)),
    optimization=st.sampled_from(get_args(Optimization)),
    seed=st.integers(0, 2**63 - 1),
    timeout_seconds=st.floats(0, 1e9, exclude_min=True, allow_nan=False),
    allow_fallback=st.booleans(),
    input_shapes=st.dictionaries(NAMES, st.lists(st.integers(0, 10_000), max_size=5), max_size=3),
    campaign_id=st.none() | NAMES,
    arm=st.sampled_from([None, "candidate", "baseline", "canary"]),
    block=st.none() | st.integers(0, 99),
)


@given(REQUESTS)
def test_every_request_survives_its_text_form(request: MeasurementRequest) -> None:
    assert MeasurementRequest.from_json(request.to_json(), "test") == request


def test_the_text_form_is_sorted_json_on_lines() -> None:
    text = MeasurementRequest(model="m", input_shapes={"x": [1, 2]}).to_json()
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert document["input_shapes"] == {"x": [1, 2]}
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"iterations": 0}, "iterations is 0; expected at least 1"),
        ({"warmup": -1}, "warmup is -1; expected at least 0"),
        ({"threads": 0}, "threads is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0; expected more than 0"),
        ({"timeout_seconds": -1.5}, "timeout_seconds is -1.5; expected more than 0"),
        ({"iterations": 10_000_001}, "iterations is 10000001; expected at most 10000000"),
        ({"warmup": 10_000_001}, "warmup is 10000001; expected at most 10000000"),
        ({"batch_size": 2**31}, "batch_size is 2147483648; expected at most 2147483647"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected at most 9223372036854775807"),
        ({"threads": True}, "threads is True; expected a valid integer"),
        ({"iterations": "many"}, "iterations is 'many'; expected a valid integer"),
        ({"colour": "red"}, "colour is 'red'; there is no such key"),
        ({"counters": " "}, "counters is ' '; give a name, or leave it out"),
        ({"thread_trace": ""}, "thread_trace is ''; give a name, or leave it out"),
        ({"thread_trace": "gemm\n"}, r"thread_trace is 'gemm\\n'; give a name, or leave it out"),
        ({"optimization": "most"}, "optimization is 'most'; expected 'none', 'basic'"),
        ({"precision": "fp64"}, "precision is 'fp64'; expected 'model', 'fp16'"),
        ({"input_shapes": {"x": [1, -1]}}, r"input_shapes\.x\.1 is -1; expected at least 0"),
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
        model="m", batch_size=1, iterations=1, warmup=0, threads=1, seed=0, input_shapes={"scalar": [], "none": [0]}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        "null",
        '{"model": "m", "input_shapes": {}, "colour": "red"}',
        '{"model": "m", "input_shapes": {"x": 3}}',
        '{"model": "m", "input_shapes": []}',
        '{"model": "m", "input_shapes": {}, "iterations": "many"}',
    ],
)
def test_a_text_that_is_no_request_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(UsageError, match="request of session x: not a measurement request"):
        MeasurementRequest.from_json(text, "request of session x")


def test_a_value_out_of_range_in_a_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="batch_size is 0"):
        MeasurementRequest.from_json('{"model": "m", "input_shapes": {}, "batch_size": 0}', "test")


@pytest.mark.parametrize("one", [{"prompt_tokens": 4}, {"output_tokens": 4}])
def test_a_prompt_and_a_number_of_tokens_go_together(one: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="go together"):
        MeasurementRequest(model="m", **one)  # type: ignore[arg-type]


def test_a_text_from_before_a_setting_was_there_has_its_default() -> None:
    written = json.loads(MeasurementRequest(model="m", seed=4).to_json())
    for setting in ("thread_trace", "kernel_plane", "input_shapes"):
        del written[setting]
    assert MeasurementRequest.from_json(json.dumps(written), "test") == MeasurementRequest(model="m", seed=4)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ({"scheduler": True}, True),
        ({"scheduler": True, "kernel_plane": False}, True),
        ({"scheduler": False, "kernel_plane": True}, True),
        ({"scheduler": False}, False),
    ],
)
def test_a_text_that_asked_for_scheduler_events_asks_for_the_kernel_plane(
    written: dict[str, bool], asked: bool
) -> None:
    text = json.dumps({"model": "m", "input_shapes": {}, **written})
    assert MeasurementRequest.from_json(text, "test").kernel_plane is asked


def test_the_text_form_has_the_keys_that_lakes_hold() -> None:
    """Requests and captures that were written before are read by these names."""
    assert list(json.loads(MeasurementRequest(model="m").to_json())) == [
        *("allow_fallback", "arm", "artefact", "backend", "batch_size", "block", "campaign_id", "counters"),
        *("input_shapes", "interpreter", "iterations", "kernel_plane", "model", "optimization", "output_tokens"),
        *("precision", "profile", "prompt_tokens", "provider_options", "seed", "thread_trace", "threads"),
        *("timeout_seconds", "untraced", "warmup"),
    ]
