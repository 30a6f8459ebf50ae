"""Collectives and clocks of several ranks through the stage, on a real trace and on ranks written down by hand."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.assets.critical_path import TABLES, read_critical_path
from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.assembly import NamedReading, assemble
from aaco_pipeline.formats.reading import Reading, canonical, described_kernels
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake

SHARED: Final = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[3] / "shared")
REAL: Final = SHARED / "kineto" / "mi300x_resnet_train_ddp.json.gz"
COUNT: Final = 12
Staged = Callable[..., Outcome]


@pytest.fixture
def staged(lake_path: Path) -> Staged:
    """The stage's outcome for a session made of these readings, after its tables were published."""

    def of(*readings: Reading) -> Outcome:
        lake, session = TraceLake(lake_path), new_session_id()
        tables = assemble([NamedReading(f"rank {i}", reading) for i, reading in enumerate(readings)]).tables
        lake.publish(session, "kernel_trace", tables)
        outcome = read_critical_path(lake, session)
        assert set(outcome.tables) == set(TABLES)
        lake.publish(session, "critical_path", outcome.tables)
        return outcome

    return of


def said(outcome: Outcome) -> dict[str, tuple[str, str | None]]:
    return {
        item: (status, reason)
        for item, status, reason in outcome.tables["evidence"].select("item", "status", "reason").iter_rows()
    }


def rank(number: int, host: str, late: Mapping[int, int] = MappingProxyType({}), drop: int = 0) -> Reading:
    """A rank with a kernel of 100 ns and then an all_reduce, every 10,000 ns; to some it comes late."""
    rows = range(COUNT - drop)
    begun = [10_000 * i + 200 + late.get(i, 0) for i in rows]
    collective = pl.DataFrame({"start_ns": begun, "end_ns": [10_000 * i + 5_000 for i in rows], "kernel_id": 1})
    compute = pl.DataFrame({"start_ns": [10_000 * i for i in rows], "end_ns": [10_000 * i + 300 for i in rows]})
    both = pl.concat(
        [
            compute.with_columns(kernel_id=pl.lit(0, pl.Int64)),
            collective.select("start_ns", "end_ns", pl.col("kernel_id").cast(pl.Int64)),
        ]
    )
    dispatches = (
        both.sort("start_ns", "kernel_id")
        .with_row_index("dispatch_id")
        .with_columns(
            process_id=pl.lit(0),
            device_id=pl.lit(0),
            stream_id=pl.col("kernel_id"),
            correlation_id=pl.col("dispatch_id") + 1,
            self_ns=pl.col("end_ns") - pl.col("start_ns"),
            below_resolution=pl.lit(False),
        )
    )
    calls = dispatches.select(
        "process_id",
        "correlation_id",
        call_id="dispatch_id",
        thread_id=pl.lit(7),
        domain=pl.lit("hip_runtime"),
        name=pl.lit("hipLaunchKernel"),
        start_ns=pl.col("start_ns") - 50,
        end_ns=pl.col("start_ns") - 40,
    )
    ranges = (
        calls.filter(dispatches.get_column("kernel_id") == 1)
        .select(
            "process_id",
            "thread_id",
            start_ns=pl.col("start_ns") - 2,
            end_ns=pl.col("end_ns") + 2,
            name=pl.lit("record_param_comms"),
            collective=pl.lit("allreduce"),
            communicator=pl.lit("0 [0, 1]"),
            group_size=pl.lit(2),
            size_bytes=pl.lit(64),
        )
        .with_row_index("marker_id")
    )
    return Reading(
        {
            "processes": canonical("processes", pl.DataFrame({"process_id": [0], "host": [host], "rank": [number]})),
            "devices": canonical("devices", pl.DataFrame({"device_id": [0], "handle": [str(number)]})),
            "clock_domains": canonical(
                "clock_domains", pl.DataFrame({"domain": ["boottime"], "offset_ns": [0], "uncertainty_ns": [0]})
            ),
            "kernels": described_kernels(
                pl.DataFrame({"kernel_id": [0, 1], "name": ["gemm", "ncclDevKernel_Generic"]})
            ),
            "dispatches": canonical("dispatches", dispatches),
            "api_calls": canonical("api_calls", calls),
            "markers": canonical("markers", ranges),
        }
    )


def test_two_ranks_of_a_host_tell_who_was_late(staged: Staged) -> None:
    outcome = staged(rank(0, "a", {2: 1}), rank(1, "a", {0: 700, 1: 700}))
    clocks, found = outcome.tables["rank_clocks"], outcome.tables["collectives"]
    assert clocks.get_column("method").to_list() == ["same_process", "same_host"]
    assert found.get_column("wait_ns").to_list() == [700, 0] * 2 + [0, 1] + [0, 0] * (COUNT - 3)
    assert found.get_column("is_straggler").to_list() == [False, True] * 2 + [True, False] + [False, False] * (
        COUNT - 3
    )
    # The kernel before it runs on for 100 ns where the rank is not late.
    assert found.get_column("exposed_ns").to_list() == [4700, 4100] * 2 + [4700, 4700] * (COUNT - 2)
    assert outcome.headline["collectives"] == COUNT
    assert outcome.headline["straggler_process"] == 1
    assert outcome.headline["exposed_ns"] == found.get_column("exposed_ns").sum()
    reason = "matched by order of issue: the capture does not number collectives"
    assert said(outcome)["waits between ranks"] == ("present", reason)
    assert said(outcome)["critical path across processes"][0] == "partial"


def test_two_hosts_are_aligned_by_their_collectives(staged: Staged) -> None:
    outcome = staged(rank(0, "a"), rank(1, "b", {0: 700, 1: 700}))
    row = outcome.tables["rank_clocks"].row(1, named=True)
    assert (row["method"], row["offset_ns"], row["uncertainty_ns"], row["collectives"]) == ("collectives", 0, 0, COUNT)
    assert outcome.tables["collectives"].get_column("wait_ns").to_list()[:4] == [700, 0, 700, 0]


def test_ranks_with_different_counts_are_left_apart(staged: Staged) -> None:
    outcome = staged(rank(0, "a"), rank(1, "b", drop=1))
    assert outcome.tables["collectives"].get_column("wait_ns").is_null().all()
    assert outcome.tables["rank_clocks"].get_column("method").to_list() == ["same_process", "none"]
    evidence = said(outcome)
    counts = f"processes have from {COUNT - 1} to {COUNT} collectives, and nothing numbers them"
    assert evidence["collectives left apart: 0 [0, 1]"] == ("partial", counts)
    assert evidence["waits between ranks"][0] == "absent"
    assert evidence["clocks of ranks"][0] == "partial"


def test_a_real_rank_alone_has_no_waits(staged: Staged) -> None:
    if not REAL.exists():
        pytest.skip(f"{REAL} is not there: the shared captures are not part of the repository")
    outcome = staged(kineto.read(REAL))
    found = outcome.tables["collectives"]
    assert found.height == 17
    assert found.get_column("name").null_count() == 5
    assert found.get_column("wait_ns").is_null().all()
    assert found.get_column("exposed_ns").sum() == outcome.headline["exposed_ns"]
    evidence = said(outcome)
    assert evidence["waits between ranks"] == ("absent", "one rank only: the others' traces are not here")
    assert evidence["collectives"] == ("partial", "5 of 17 parts are not named by anything in the capture")
    assert outcome.tables["rank_clocks"].get_column("method").to_list() == ["same_process"]
    assert outcome.tables["critical_path"].height > 0


def test_a_session_without_communication_says_so(staged: Staged) -> None:
    one = rank(0, "a")
    tables = {**one.tables, "dispatches": one.tables["dispatches"].filter(pl.col("kernel_id") == 0)}
    outcome = staged(Reading(tables))
    assert outcome.tables["collectives"].height == 0
    assert said(outcome)["collectives"] == ("absent", "the session has no communication kernels")
    assert "collectives" not in outcome.headline
