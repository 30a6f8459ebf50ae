"""Counter values of passes go to a dispatch, an n-th execution or a kernel; samples go onto the axis of their trace."""

from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture import discovery
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats import ncu
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.capture.merging.test_merging import reading, valid
from tests.formats.readings import evidence_of
from tests.places import SHARED

needs_shared = pytest.mark.skipif(not (SHARED / "captures").is_dir(), reason="the shared captures are not here")


def placed(assembled: CaptureTables) -> list[tuple[int | None, str, float, str]]:
    """Each counter value with its dispatch, its kernel and its matching."""
    tables = valid(assembled)
    names = tables["kernels"].select("kernel_id", kernel="name")
    values = tables["counters"].join(names, on="kernel_id", how="left", maintain_order="left")
    rows: list[tuple[int | None, str, float, str]] = values.select(
        "dispatch_id", "kernel", "value", "matched_by"
    ).rows()
    return sorted(rows, key=lambda row: row[2])


def test_counters_of_passes_go_to_the_dispatch_of_their_number_and_kernel_never_by_time() -> None:
    base = reading("base", [100, 200, 300], ["a", "b", "a"], numbers=[1, 2, 3])
    # The pass ran in another order of time, and dispatch 2 is another kernel there.
    passed = reading(
        "pass_1",
        [9000, 8000, 7000],
        ["a", "a", "a"],
        numbers=[3, 1, 2],
        counters=[(0, "SQ_WAVES", 3.0), (1, "SQ_WAVES", 1.0), (2, "SQ_WAVES", 2.0)],
    )
    assembled = merge_parts([base, passed])
    assert placed(assembled) == [(0, "a", 1.0, "dispatch"), (None, "a", 2.0, "kernel"), (2, "a", 3.0, "dispatch")]
    tables = valid(assembled)
    assert tables["counters"].sort("value").get_column("source_dispatch_id").to_list() == [1, 2, 3]
    (lost,) = [item for item in assembled.evidence if item.item == "counter values matched to dispatches"]
    assert (lost.status, lost.rows) == ("partial", 1)
    assert tables["dispatches"].get_column("start_ns").to_list() == [0, 100, 200]
    assert tables["processes"].height == 1


def test_where_a_pass_counts_its_dispatches_otherwise_the_nth_of_a_kernel_and_grid_is_the_nth() -> None:
    base = reading("base", [100, 200, 300, 400], ["a", "a", "a", "b"], numbers=[1, 2, 3, 4])
    # Something ran before it in the pass: dispatch 2 there is the first of kernel a, not the second.
    values = [(i, "SQ_WAVES", float(i)) for i in range(1, 5)]
    passed = reading("pass_1", [1, 2, 3, 4, 5], ["setup", "a", "a", "a", "b"], numbers=[1, 2, 3, 4, 5], counters=values)
    assembled = merge_parts([base, passed])
    assert placed(assembled) == [
        (0, "a", 1.0, "execution"),
        (1, "a", 2.0, "execution"),
        (2, "a", 3.0, "execution"),
        (3, "b", 4.0, "execution"),
    ]
    (told,) = [item for item in assembled.evidence if item.item == "counter values matched by execution"]
    assert (told.status, told.rows) == ("partial", 4)


def test_counters_under_the_names_of_the_binary_find_the_kernels_that_a_trace_names_in_cpp(tmp_path: Path) -> None:
    plain = "copy(float const*, float*)"
    base = reading("base", [100, 200], [plain, plain], numbers=[0, 1])
    described = '"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum"'
    rows = [f'"{n}","41","_Z4copyPKfPf","(64, 1, 1)","(20, 1, 1)","{n + 1}"' for n in (0, 1)]
    (tmp_path / "ncu.csv").write_text("\n".join((described, '"","","","","","byte"', *rows)) + "\n")
    assembled = merge_parts([base, NamedReading("counters_1/ncu.csv", ncu.read(tmp_path / "ncu.csv"))])
    assert [(dispatch, kernel, value) for dispatch, kernel, value, _ in placed(assembled)] == [
        (0, plain, 1.0),
        (1, plain, 2.0),
    ]
    assert valid(assembled)["kernels"].height == 1


def test_a_kernel_of_the_binary_is_called_as_the_trace_spells_it(tmp_path: Path) -> None:
    """Compilers' libraries spell one name in several ways; what they agree on is the name of the binary."""
    spelled = "copy(const float*, float*)"
    base = reading("base", [100], [spelled], numbers=[0])
    kernels = base.reading.tables["kernels"].with_columns(symbol=pl.lit("_Z4copyPKfPf"))
    named = NamedReading("base", CaptureTables({**base.reading.tables, "kernels": kernels}, (), base.reading.details))
    described = '"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum"'
    row = '"0","41","_Z4copyPKfPf","(64, 1, 1)","(20, 1, 1)","7"'
    (tmp_path / "ncu.csv").write_text("\n".join((described, '"","","","","","byte"', row)) + "\n")
    assembled = merge_parts([named, NamedReading("counters_1/ncu.csv", ncu.read(tmp_path / "ncu.csv"))])
    assert [(dispatch, kernel) for dispatch, kernel, *_ in placed(assembled)] == [(0, spelled)]


def test_where_the_first_executions_of_each_kernel_were_counted_the_nth_is_the_nth_whatever_its_number() -> None:
    base = reading("base", [100, 200, 300, 400, 500], ["a", "a", "a", "b", "b"], numbers=[0, 1, 2, 3, 4])
    # Its third number is, by chance, that of the second b.
    values = [(0, "C", 1.0), (1, "C", 2.0), (2, "C", 3.0)]
    passed = reading("counters_1/p", [1, 2, 3], ["a", "a", "b"], numbers=[0, 1, 4], counters=values)
    first = NamedReading(passed.name, passed.reading, counts_first=True)
    assert placed(merge_parts([base, first])) == [
        (0, "a", 1.0, "execution"),
        (1, "a", 2.0, "execution"),
        (3, "b", 3.0, "execution"),
    ]
    # A kernel that the trace ran less often ran otherwise.
    again = reading("counters_1/p", [1, 2, 3], ["b", "b", "b"], numbers=[0, 1, 2], counters=values)
    first = NamedReading(again.name, again.reading, counts_first=True)
    assert [how for *_, how in placed(merge_parts([base, first]))] == ["kernel"] * 3


def test_a_run_that_was_to_count_and_could_not_gives_no_second_trace() -> None:
    base, failed = reading("trace/t", [100], ["a"]), reading("counters_1/p", [100], ["a"])
    assert merge_parts([base, failed]).tables["dispatches"].height == 1


def test_an_execution_on_another_grid_is_no_dispatch_of_the_trace() -> None:
    base = reading("base", [100, 200], ["a", "a"], numbers=[1, 2])
    passed = reading("pass_1", [1, 2], ["a", "a"], numbers=[1, 2], counters=[(0, "C", 1.0), (1, "C", 2.0)])
    dispatches = passed.reading.tables["dispatches"]
    other = dispatches.with_columns(grid_x=pl.when(pl.col("dispatch_id") == 1).then(64).otherwise("grid_x"))
    tables = {**passed.reading.tables, "dispatches": other}
    changed = NamedReading("pass_1", CaptureTables(tables, (), passed.reading.details))
    assert placed(merge_parts([base, changed])) == [(0, "a", 1.0, "dispatch"), (None, "a", 2.0, "kernel")]


def test_a_kernel_that_only_a_counter_pass_ran_is_a_kernel_of_the_session() -> None:
    base = reading("base", [100], ["a"])
    passed = reading("pass_1", [1, 2], ["a", "stranger"], counters=[(0, "C", 1.0), (1, "C", 2.0)])
    assembled = merge_parts([base, passed])
    assert placed(assembled) == [(0, "a", 1.0, "dispatch"), (None, "stranger", 2.0, "kernel")]
    assert valid(assembled)["dispatches"].height == 1


def test_of_several_processes_an_execution_is_looked_for_in_that_of_its_rank() -> None:
    def ranked(name: str, rank: int | None, **more: Any) -> NamedReading:
        part = reading(name, [100], ["a"], **more)
        processes = part.reading.tables["processes"].with_columns(rank=pl.lit(rank, pl.Int32))
        return NamedReading(
            name, CaptureTables({**part.reading.tables, "processes": processes}, (), part.reading.details)
        )

    base = [ranked("r0", 0), ranked("r1", 1)]
    assert placed(merge_parts([*base, ranked("pass_2/r1", 1, counters=[(0, "C", 1.0)])])) == [(1, "a", 1.0, "dispatch")]
    assert placed(merge_parts([*base, ranked("pass_2/x", None, counters=[(0, "C", 1.0)])])) == [
        (None, "a", 1.0, "kernel")
    ]


@given(
    base=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    passed=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    shift=st.integers(0, 3),
)
def test_no_value_goes_nowhere_and_no_dispatch_gets_two_of_one_pass(
    base: list[str], passed: list[str], shift: int
) -> None:
    trace = reading("base", list(range(100, 100 + len(base))), base)
    numbers = [number + 1 + shift for number in range(len(passed))]
    values = [(number, "C", float(number)) for number in range(len(passed))]
    rows = placed(
        merge_parts([trace, reading("p", list(range(len(passed))), passed, numbers=numbers, counters=values)])
    )
    assert [row[2] for row in rows] == [value for _, _, value in values]
    assert [row[1] for row in rows] == passed
    at = [row[0] for row in rows if row[0] is not None]
    assert len(at) == len(set(at))
    assert all(base[dispatch] == kernel for dispatch, kernel, _, _ in rows if dispatch is not None)


@needs_shared
@pytest.mark.parametrize("top", ["captures", "counters"])
def test_no_counter_value_of_a_real_capture_goes_nowhere(top: str) -> None:
    """Every value that a reader gave has a kernel, and a dispatch unless it says that only the kernel is known."""
    taken: dict[Path, int] = {}
    for run in discovery.discover_runs(SHARED / top).runs:
        parts = [NamedReading(part.name, part.read(Limits())) for part in run.parts]
        given_values = sum(part.table("counters").get_column("value").sum() for part in parts)
        count = sum(part.table("counters").height for part in parts)
        if not count:
            continue
        tables = merge_parts(parts).tables
        placed_values = tables["counters"]
        assert placed_values.height == count, run.folder
        assert placed_values.get_column("value").sum() == pytest.approx(given_values, rel=1e-12)
        assert placed_values.join(tables["kernels"], on="kernel_id", how="anti").is_empty()
        alone = placed_values.filter(pl.col("dispatch_id").is_null())
        assert set(alone.get_column("matched_by")) <= {"kernel"}
        single = placed_values.filter(pl.col("dispatch_id").is_not_null())
        of_kernel = single.join(
            tables["dispatches"].select("dispatch_id", "kernel_id"), on=["dispatch_id", "kernel_id"]
        )
        assert of_kernel.height == single.height, "a dispatch has counters of its own kernel alone"
        taken[run.folder] = taken.get(run.folder, 0) + count
    assert sum(taken.values()) > 5_000
    strix = SHARED / "captures/gfx1151_rocprofv3_csv"
    assert top == "counters" or taken[strix] == 374


#: Samples before, during and after the trace of `trace()`, in ns after the Unix epoch.
BEGIN: Final = 10**18
TIMES: Final = [BEGIN - 2_000, BEGIN - 1_000, BEGIN + 50, BEGIN + 60, BEGIN + 5_000, BEGIN + 6_000]


def trace(*, domain: str = "realtime", address: str = "0000:0c:00.0") -> NamedReading:
    """Dispatches from 0 to 110 ns of an axis whose zero is `BEGIN`."""
    made = reading("trace.db", [0, 100], address=address)
    clocks = pl.DataFrame({"domain": [domain], "offset_ns": [-BEGIN], "uncertainty_ns": [None]})
    clocks = pl.concat([made.reading.tables["clock_domains"], to_contract("clock_domains", clocks)])
    tables = {**made.reading.tables, "clock_domains": clocks}
    return NamedReading(made.name, CaptureTables(tables, made.reading.evidence, made.reading.details))


def series(times: list[int] = TIMES, *, cards: int = 1, **named: Any) -> NamedReading:
    """Samples of `cards` devices, each at all times; zero of their axis is the earliest."""
    rows = [{"device_id": card, "time_ns": at - times[0], "power_w": 5.0} for card in range(cards) for at in times]
    names = [
        {"device_id": card, "host": "node", "card": f"card{card}", "pci_address": None, "uuid": None}
        | {"devices_of_host": None}
        | named
        for card in range(cards)
    ]
    clock = {"domain": "realtime", "offset_ns": -times[0], "uncertainty_ns": 0, "anchor": "x"}
    tables = {
        "gpu_samples": to_contract("gpu_samples", pl.DataFrame(rows)),
        "devices": to_contract(
            "devices",
            pl.DataFrame(
                {
                    "device_id": range(cards),
                    "handle": [f"card{card}" for card in range(cards)],
                    "power_cap_w": [750.0] * cards,
                }
            ),
        ),
        "clock_domains": to_contract("clock_domains", pl.DataFrame([clock])),
    }
    schema = {"pci_address": pl.String, "uuid": pl.String, "devices_of_host": pl.Int64}
    return NamedReading(
        "power.json", CaptureTables(tables, (), {"device_names": pl.DataFrame(names, schema_overrides=schema)})
    )


def test_samples_are_moved_by_wall_clock_and_those_around_the_trace_are_kept() -> None:
    together = merge_parts([trace(), series()])
    assert together.tables["gpu_samples"].get_column("time_ns").to_list() == [-1_000, 50, 60, 5_000]
    told = evidence_of(together)
    assert told["gpu samples before and after"].rows == 2
    assert told["gpu samples"].status == "partial" and "differ between hosts" in str(told["gpu samples"].reason)


def test_a_trace_without_wall_clock_places_none_and_they_are_kept_beside() -> None:
    together = merge_parts([trace(domain="monotonic"), series()])
    assert together.tables["gpu_samples"].height == 0
    assert together.details["unplaced_gpu_samples"].height == len(TIMES)
    told = evidence_of(together)["gpu samples"]
    assert told.rows == len(TIMES) and "wall-clock" in str(told.reason)
    assert together.tables["devices"].height == 1


@pytest.mark.parametrize(("by", "told"), [(-(10**15), "before it"), (10**15, "after the trace")])
def test_samples_of_another_day_are_not_of_the_run(by: int, told: str) -> None:
    together = merge_parts([trace(), series([at + by for at in TIMES])])
    assert together.tables["gpu_samples"].height == 0
    assert evidence_of(together)["gpu samples"].status == "absent"
    assert told in str(evidence_of(together)["gpu samples"].reason)


def test_a_card_that_nothing_identifies_is_a_device_of_its_own() -> None:
    together = merge_parts([trace(), series(cards=2)])
    assert together.tables["devices"].select("device_id", "handle").rows() == [(0, "5600"), (1, "card0"), (2, "card1")]
    assert set(together.tables["gpu_samples"].get_column("device_id")) == {1, 2}
    assert "devices of their own" in str(evidence_of(together)["devices of gpu samples"].reason)


@pytest.mark.parametrize(
    ("named", "same"),
    [
        ({"pci_address": "0000:0c:00.0"}, True),
        ({"uuid": "0000:0C:00.0".lower()}, True),
        ({"pci_address": "0000:0d:00.0"}, False),
        ({"devices_of_host": 1}, True),
        ({"devices_of_host": 2}, False),
        ({"devices_of_host": 1, "host": "other"}, False),
        ({"devices_of_host": 1, "host": "NODE.cluster"}, True),
    ],
)
def test_an_address_or_the_only_device_of_the_host_is_the_traces(named: dict[str, Any], same: bool) -> None:
    together = merge_parts([trace(), series(**named)])
    assert together.tables["devices"].height == (1 if same else 2)
    assert set(together.tables["gpu_samples"].get_column("device_id")) == ({0} if same else {1})
    assert together.tables["devices"].item(-1, "power_cap_w") == 750.0
    assert ("devices of gpu samples" in evidence_of(together)) is not same


def test_samples_alone_are_a_session_from_their_first() -> None:
    together = merge_parts([series()])
    assert together.tables["gpu_samples"].get_column("time_ns").to_list() == [at - TIMES[0] for at in TIMES]
    wall = together.tables["clock_domains"].filter(pl.col("domain") == "realtime")
    assert wall.item(0, "offset_ns") == -TIMES[0]
    assert together.tables["dispatches"].equals(empty_table("dispatches"))
