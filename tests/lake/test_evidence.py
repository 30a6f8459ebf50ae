"""Every stage states its evidence in one place, and gives a reason for anything missing."""

import pytest

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import Evidence, Status, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import SESSION


def test_statements_become_rows_of_the_table_evidence(lake: TraceLake) -> None:
    stated = [
        Evidence("trace", "present", source="trace.json", rows=3, sha256="0f"),
        Evidence("counters", "absent", reason="the capture holds none"),
    ]
    lake.publish(SESSION, "kernel_trace", {"evidence": evidence_frame("kernel_trace", stated)})
    assert lake.read("evidence", SESSION).rows() == [
        (SESSION, "kernel_trace", "counters", "absent", "the capture holds none", None, None, None),
        (SESSION, "kernel_trace", "trace", "present", None, "trace.json", 3, "0f"),
    ]


def test_no_statement_is_an_empty_frame_of_the_contracts_types() -> None:
    frame = evidence_frame("kernel_trace", [])
    assert frame.height == 0
    assert dict(frame.schema) == polars_types("evidence")


@pytest.mark.parametrize("reason", [None, ""])
@pytest.mark.parametrize("status", ["absent", "invalid", "partial"])
def test_what_is_not_wholly_present_must_have_a_reason(status: Status, reason: str | None) -> None:
    with pytest.raises(ValueError, match=f"'counters' of stage kernel_trace is {status} without a reason"):
        evidence_frame("kernel_trace", iter([Evidence("counters", status, reason=reason)]))
