"""Proposals for a model follow from its session, and a request can have every change."""

from typing import Any

import pytest

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.optimization.candidates import NotApplicable
from aaco_pipeline.optimization.proposers.onnx import Measured, OnnxCandidate, onnx_candidates

CPU = "CPUExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"
PROVIDERS = (CPU, MIGRAPHX, "ROCMExecutionProvider", "CUDAExecutionProvider", "QNNExecutionProvider")


def changes(measured: Measured) -> list[dict[str, Any]]:
    return [dict(one.changes) for one in onnx_candidates(measured) if isinstance(one, OnnxCandidate)]


def reasons(measured: Measured) -> str:
    return "\n".join(one.reason for one in onnx_candidates(measured) if isinstance(one, NotApplicable))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("optimization", ["none", "basic", "extended", "all"])
def test_every_change_is_of_a_request_and_none_is_what_is_measured_already(provider: str, optimization: Any) -> None:
    measured = Measured(provider, optimization, threads=2, cores=8, batch_size=4, batch_is_free=True)
    before = MeasurementRequest(model="m", optimization=optimization, threads=2, batch_size=4)
    for change in changes(measured):
        after = MeasurementRequest(**{**dict(before), **change})
        assert after != before
        assert after.precision == before.precision


def test_a_graph_that_is_not_rewritten_is_rewritten_first() -> None:
    assert changes(Measured(CPU, "basic", threads=1, cores=1))[0] == {"optimization": "all"}


def test_threads_go_up_to_the_cores_and_not_beyond() -> None:
    tried = [change["threads"] for change in changes(Measured(CPU, threads=1, cores=16)) if "threads" in change]
    assert tried == [16, 8, 2]


def test_one_core_leaves_nothing_to_try_of_threads() -> None:
    assert "there is one core" in reasons(Measured(CPU, threads=1, cores=1))


def test_unknown_cores_are_not_guessed() -> None:
    measured = Measured(CPU, threads=1)
    assert not any("threads" in change for change in changes(measured))
    assert "not known how many cores" in reasons(measured)


def test_threads_of_the_host_are_no_matter_to_a_gpu() -> None:
    measured = Measured(MIGRAPHX, threads=1, cores=64)
    assert not any("threads" in change for change in changes(measured))
    assert "only submit the work" in reasons(measured)


def test_options_are_added_to_those_that_are_there() -> None:
    options = [one["provider_options"] for one in changes(Measured(MIGRAPHX, provider_options={"device_id": "1"}))]
    assert options == [{"device_id": "1", "migraphx_exhaustive_tune": "1"}]


def test_an_option_that_is_set_or_the_default_is_not_tried() -> None:
    assert changes(Measured(MIGRAPHX, provider_options={"migraphx_exhaustive_tune": "1"})) == []
    assert [one["provider_options"] for one in changes(Measured("CUDAExecutionProvider"))] == [{"prefer_nhwc": "1"}]


def test_a_batch_is_tried_only_where_it_is_free_and_is_marked_as_other_work() -> None:
    free = onnx_candidates(Measured(CPU, threads=1, cores=1, batch_size=3, batch_is_free=True))
    batches = [one for one in free if isinstance(one, OnnxCandidate) and "batch_size" in one.changes]
    assert [one.changes["batch_size"] for one in batches] == [6, 12, 24]
    assert not any(one.same_work for one in batches)
    assert "first dimension is fixed" in reasons(Measured(CPU, threads=1, cores=1))
