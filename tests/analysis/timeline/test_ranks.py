"""Clocks of several ranks, against collectives made with known offsets, drifts and waits, and a real trace moved."""

import gzip
import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline import collectives, ranks
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.capture import merging as assembly
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.places import SHARED

REAL: Final = SHARED / "kineto" / "mi300x_resnet_train_ddp.json.gz"
TRANSFER: Final = 50_000
REASON: Final = "fewer than {} collectives: the uncertainty is what their lengths allow, not their spread"
Numbers = npt.NDArray[np.int64]
OFFSETS = st.integers(-(10**15), 10**15)
SEEDS = st.integers(0, 2**32 - 1)


def processes(*rows: tuple[str | None, int | None]) -> pl.DataFrame:
    """Processes by host and rank."""
    hosts, numbers = zip(*rows, strict=True)
    frame = pl.DataFrame({"process_id": range(len(rows)), "host": hosts, "rank": numbers})
    return to_contract("processes", frame.cast({"host": pl.String, "rank": pl.Int32}))


def domains(*uncertainties: int | None) -> pl.DataFrame:
    names = [f"clock {i}" for i in range(len(uncertainties))]
    return to_contract("clock_domains", pl.DataFrame({"domain": names, "uncertainty_ns": uncertainties}))


def parts(starts: Numbers, ends: Numbers, name: str = "all_reduce") -> pl.DataFrame:
    """The parts of as many processes as rows in as many collectives as columns."""
    processes, count = starts.shape
    return pl.DataFrame(
        {
            "dispatch_id": np.arange(starts.size),
            "process_id": np.repeat(np.arange(processes), count),
            "device_id": np.zeros(starts.size, np.int64),
            "start_ns": starts.ravel(),
            "end_ns": ends.ravel(),
        }
    ).select(
        pl.col("dispatch_id", "process_id", "device_id").cast(pl.Int32),
        "start_ns",
        "end_ns",
        name=pl.lit(name),
        communicator=pl.lit("world"),
        group_size=pl.lit(processes, pl.Int64),
        sequence=pl.lit(None, pl.Int64),
        size_bytes=pl.lit(1024, pl.Int64),
    )


def world(processes: int, count: int, seed: int, noise: int) -> tuple[Numbers, Numbers]:
    """True starts and ends: each process arrives when it likes, all leave after the last, up to `noise` apart."""
    random = np.random.default_rng(seed)
    starts = np.arange(count) * 1_000_000 + random.integers(0, 300_000, (processes, count))
    return starts, starts.max(axis=0) + TRANSFER + random.integers(-noise, noise + 1, (processes, count))


def clocks_of(starts: Numbers, ends: Numbers, name: str = "all_reduce") -> pl.DataFrame:
    hosts = processes(*((f"host{i}", i) for i in range(len(starts))))
    matched = collectives.matched(parts(starts, ends, name))
    return ranks.rank_clocks(hosts, domains(0, *[None] * (len(starts) - 1)), matched)


@given(SEEDS, st.lists(OFFSETS, min_size=1, max_size=4), st.integers(1, 40))
def test_offsets_are_recovered_exactly_when_all_leave_at_once(seed: int, offsets: list[int], count: int) -> None:
    starts, ends = world(len(offsets) + 1, count, seed, 0)
    moved = np.array([0, *offsets])[:, None]
    clocks = clocks_of(starts - moved, ends - moved)
    assert clocks.get_column("offset_ns").to_list() == [0, *offsets]
    assert clocks.get_column("method").to_list() == ["same_process", *["collectives"] * len(offsets)]
    assert clocks.get_column("drift_ratio").is_null().all()
    assert clocks.get_column("collectives").to_list() == [0, *[count] * len(offsets)]
    exact = clocks.get_column("uncertainty_ns").to_list()[1:]
    assert all((value == 0) == (count >= ranks.ENOUGH) for value in exact)


@given(SEEDS, OFFSETS, st.integers(1, 20_000), st.integers(30, 120))
def test_offsets_are_within_the_uncertainty_when_ends_scatter(seed: int, offset: int, noise: int, count: int) -> None:
    starts, ends = world(2, count, seed, noise)
    moved = np.array([0, offset])[:, None]
    row = clocks_of(starts - moved, ends - moved).row(1, named=True)
    assert abs(row["offset_ns"] - offset) <= row["uncertainty_ns"] <= 4 * noise
    assert row["drift_ratio"] is None or abs(row["drift_ratio"]) * count * 1_000_000 < 4 * noise


@given(SEEDS, OFFSETS, st.integers(1, ranks.ENOUGH - 1), st.integers(0, 10_000_000), st.sampled_from([0, 1]))
def test_few_collectives_bound_the_offset_however_late_a_rank_leaves(
    seed: int, offset: int, count: int, late: int, rank: int
) -> None:
    starts, ends = world(2, count, seed, 0)
    ends[rank] += late  # all to one side: nothing that a spread could show
    moved = np.array([0, offset])[:, None]
    row = clocks_of(starts - moved, ends - moved).row(1, named=True)
    assert abs(row["offset_ns"] - offset) <= row["uncertainty_ns"]
    assert row["reason"].startswith(f"fewer than {ranks.ENOUGH} collectives")


def ends_of(*rows: tuple[int, int, int, int]) -> ranks.Ends:
    """Collectives by start and end on the clock to be moved, and on the reference's."""
    start, end, there, gone = np.array(rows, np.int64).T
    return ranks.Ends(start, end, there, gone)


def test_the_offset_of_few_is_the_median_within_the_bound_of_all() -> None:
    # The second collective is short: it bounds the offset to [490, 520]; the differences of ends are 500, 515, 800.
    few = ends_of((0, 1000, 500, 1500), (2000, 2020, 2510, 2535), (4000, 5000, 4600, 5800))
    assert ranks.estimate(few) == ranks.Estimate(515, 25, None, None, 3, REASON.format(10))
    # Most ends say 1,000, but the reference left the short one 535 after the other rank had begun it.
    late = ends_of((0, 1000, 500, 2000), (2000, 2020, 2510, 2535), (4000, 5000, 4600, 6000))
    assert ranks.estimate(late).offset_ns == 535


@pytest.mark.parametrize(("outlier", "uncertainty"), [(9, 9), (200, 20)])
def test_the_uncertainty_of_many_is_the_largest_deviation_within_the_bound(outlier: int, uncertainty: int) -> None:
    # They last 20 ns. That they grow a little is within their scatter, and no drift.
    scatter = [-4, 3, -3, 1, -1, 2, -2, 0, outlier, -4, 6]
    many = ends_of(*((1000 * i, 1000 * i + 20, 1000 * i, 1000 * i + 20 + d) for i, d in enumerate(scatter)))
    assert ranks.estimate(many) == ranks.Estimate(0, uncertainty, None, None, 11, None)


def test_a_host_arrives_with_its_last_process_and_leaves_with_its_first() -> None:
    starts = np.array([[0], [40], [0], [60]])
    ends = np.array([[100], [110], [100], [90]])
    hosts = processes(("a", 0), ("a", 1), ("b", 2), ("b", 3))
    row = ranks.rank_clocks(hosts, domains(0, None), collectives.matched(parts(starts, ends))).row(2, named=True)
    # Leaving at 100 and 90 on the two clocks, bounded by 40 - 90 and 100 - 60.
    assert (row["offset_ns"], row["uncertainty_ns"]) == (10, 60)


# A smaller drift may be less over these 200 collectives than the noise, and is then no drift.
@given(SEEDS, OFFSETS, st.floats(3e-6, 1e-4), st.booleans(), st.integers(0, 200))
def test_a_drifting_clock_is_followed(seed: int, offset: int, drift: float, back: bool, noise: int) -> None:
    starts, ends = world(3, 200, seed, noise)
    grown = np.rint(starts * drift * (-1 if back else 1)).astype(np.int64)
    grown_ends = np.rint(ends * drift * (-1 if back else 1)).astype(np.int64)
    # Rank 1 reads a clock that drifts; rank 2 one that does not.
    for values, more in ((starts, grown), (ends, grown_ends)):
        values[1] -= offset + more[1]
    reference, drifting, steady = clocks_of(starts, ends).iter_rows(named=True)
    assert drifting["drift_ratio"] == pytest.approx(drift * (-1 if back else 1), rel=0.5, abs=4e-7)
    found = drifting["offset_ns"] + np.rint((starts[1] - drifting["anchor_ns"]) * drifting["drift_ratio"])
    assert np.abs(found - (offset + grown[1])).max() <= drifting["uncertainty_ns"] + 2
    assert drifting["uncertainty_ns"] <= 4 * noise + 2
    assert drifting["reason"] == "the clocks drift: the offset changes"
    assert reference["drift_ratio"] is None
    assert steady["drift_ratio"] is None or abs(steady["drift_ratio"]) * 2e8 < 4 * noise


def test_collectives_that_do_not_hold_all_ranks_tell_no_offset() -> None:
    starts, ends = world(2, 50, 1, 0)
    row = clocks_of(starts, ends, "broadcast").row(1, named=True)
    assert (row["method"], row["offset_ns"], row["uncertainty_ns"], row["collectives"]) == ("none", None, None, 0)
    assert row["reason"].startswith("no collective that holds all ranks")


def test_different_counts_tell_no_offset() -> None:
    starts, ends = world(2, 50, 1, 0)
    matched = collectives.matched(parts(starts, ends).filter(pl.col("dispatch_id") != 99))
    clocks = ranks.rank_clocks(processes(("a", 0), ("b", 1)), domains(0, None), matched)
    assert clocks.get_column("method").to_list() == ["same_process", "none"]


def test_collectives_that_cannot_be_the_same_tell_no_offset() -> None:
    starts, ends = world(2, 50, 1, 0)
    starts[1, 20:] += 10**9
    ends[1, 20:] += 10**9
    # A clock that jumped: no constant or linear offset lets each operation end after all have begun it.
    row = clocks_of(starts, ends).row(1, named=True)
    assert (row["method"], row["offset_ns"], row["collectives"]) == ("none", None, 50)
    assert row["reason"].startswith("the collectives contradict one another")


@pytest.mark.parametrize(
    ("rows", "uncertainties", "expected"),
    [
        ([("a", 0), ("a", 1), ("b", 2)], (0, None), ["same_process", "same_host", "none"]),
        ([("a", 0), ("a", 1)], (0, None), ["same_process", "none"]),  # one host, two clocks
        ([(None, 0), (None, 1)], (0,), ["same_process", "none"]),  # they may be on different hosts
        ([("a", 3), ("a", 1)], (0,), ["same_host", "same_process"]),
        ([("a", None), ("a", 7)], (0,), ["same_host", "same_process"]),
        ([("a", None), ("a", None)], (0,), ["same_process", "same_host"]),
    ],
)
def test_clocks_by_construction(
    rows: list[tuple[str | None, int | None]], uncertainties: tuple[int | None, ...], expected: list[str]
) -> None:
    nothing = collectives.matched(parts(*world(1, 0, 1, 0)))
    clocks = ranks.rank_clocks(processes(*rows), domains(*uncertainties), nothing)
    assert clocks.get_column("method").to_list() == expected
    assert clocks.get_column("reference_process_id").unique().to_list() == [expected.index("same_process")]
    aligned = clocks.filter(pl.col("method") != "none")
    assert set(aligned.select("offset_ns", "uncertainty_ns").iter_rows()) == {(0, 0)}


def test_processes_of_one_capture_read_one_clock() -> None:
    two = processes((None, 0), (None, 1)).with_columns(guid=pl.lit("same"))
    nothing = collectives.matched(parts(*world(1, 0, 1, 0)))
    assert ranks.rank_clocks(two, domains(0), nothing).get_column("method").to_list() == ["same_process", "same_host"]


def test_all_processes_of_a_host_share_its_offset() -> None:
    starts, ends = world(4, 20, 3, 0)
    starts[2:] -= 77_000
    ends[2:] -= 77_000
    hosts = processes(("a", 0), ("a", 1), ("b", 2), ("b", 3))
    clocks = ranks.rank_clocks(hosts, domains(0, None), collectives.matched(parts(starts, ends)))
    assert clocks.get_column("offset_ns").to_list() == [0, 0, 77_000, 77_000]
    assert clocks.get_column("collectives").to_list() == [0, 0, 20, 20]


def test_rows_are_those_of_the_table_and_no_process_gives_none() -> None:
    clocks = clocks_of(*world(2, 20, 1, 0))
    assert clocks.drop("clock").columns == [column.name for column in contract("rank_clocks").columns]
    to_contract("rank_clocks", clocks.drop("clock"))
    nothing = collectives.matched(parts(*world(1, 0, 1, 0)))
    assert ranks.rank_clocks(empty_table("processes"), empty_table("clock_domains"), nothing).height == 0


def shifted_copy(folder: Path, by_ns: int) -> None:
    """The real rank 0 and a copy of it as rank 1, whose clock reads `by_ns` less."""
    text = gzip.decompress(REAL.read_bytes()).decode()
    (folder / "rank0.json").write_text(text)

    def moved(found: re.Match[str]) -> str:
        whole, _, decimals = found[2].partition(".")
        ns = int(whole) * 1000 + int(decimals.ljust(3, "0")) - by_ns
        return f"{found[1]}{ns // 1000}.{ns % 1000:03d}"

    text = re.sub(r'("ts": )(\d+(?:\.\d+)?)', moved, text)
    text = text.replace('"rank": 0', '"rank": 1').replace('"pid": 542', '"pid": 777')
    text = re.sub(r'("trace_id": ")\w', r"\1X", text)
    (folder / "rank1.json").write_text(text)


def test_a_real_rank_and_its_copy_with_another_clock(tmp_path: Path) -> None:
    if not REAL.exists():
        pytest.skip(f"{REAL} is not there: the shared captures are not part of the repository")
    shifted_copy(tmp_path, 123_456_789)
    files = ("rank0.json", "rank1.json")
    read = [assembly.NamedReading(name, kineto.read(tmp_path / name)) for name in files]
    tables = assembly.merge_parts(read).tables
    calls = host_calls(tables["api_calls"])
    activities = device_activities(tables["dispatches"], tables["memory_copies"], tables["kernels"], calls)
    matched = collectives.matched(collectives.parts(activities, tables["markers"], tables["api_calls"]))
    clocks = ranks.rank_clocks(tables["processes"], tables["clock_domains"], matched)
    assert clocks.select("method", "offset_ns", "collectives").rows() == [
        ("same_process", 0, 0),
        ("collectives", 123_456_789, 6),
    ]
    both = collectives.collectives(matched, clocks, activities)
    each = both.drop_nulls("communicator").group_by("collective_id").agg(pl.len(), pl.col("arrival_ns").n_unique())
    assert each.select("len", "arrival_ns").unique().rows() == [(2, 1)]
    alone = both.group_by("process_id").agg(pl.col("exposed_ns").sort()).get_column("exposed_ns").to_list()
    assert alone[0] == alone[1]
    # Six of the eight ranks are missing, so the last one is unknown.
    assert both.get_column("wait_ns").is_null().all()
    assert tables["processes"].select("pid", "rank").rows() == [(542, 0), (777, 1)]
