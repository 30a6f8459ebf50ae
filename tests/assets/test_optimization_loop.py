"""The stage `optimization_loop` on sessions measured here."""

import polars as pl

from tests.conftest import CapturedLake
from tests.sessions import made_by, said

MODEL = "control_flow"


def test_kernels_come_in_the_order_of_what_they_could_save(captured: CapturedLake) -> None:
    session = captured.sessions[MODEL]
    outcome = made_by(captured.lake, session, "optimization_loop")
    found = outcome.tables["kernels_to_fix"]
    stats = captured.lake.read("kernel_stats", session)
    assert found.height == min(20, stats.height)
    could = found.select(pl.coalesce("saves_at_most_ns", "critical_ns", "total_ns")).to_series()
    assert could.to_list() == sorted(could.to_list(), reverse=True)
    assert (found.get_column("critical_ns") <= found.get_column("total_ns")).all()
    assert outcome.headline["first_kernel"]
    assert said(outcome)["kernels to fix"][0] in ("present", "partial", "absent")
