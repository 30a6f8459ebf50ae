"""The answer from tables: what decides the class, which names and numbers change nothing, and when there is none.

Without evidence an answer only gets weaker: it becomes `unknown` or `incomplete`, and never another class.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.answer import INPUTS, Answer, answer_of, session_row
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, recorded
from aaco_pipeline.lake.contracts import contract, polars_schema, polars_types
from aaco_pipeline.providers import CPU_PROVIDER
from benchmarks.accuracy.answers import EVIDENCE, WEAKER
from benchmarks.accuracy.mixtures import Mixture, Tables, answered
from tests.analysis.answer.made_up import gap, rows

Rows = list[dict[str, Any]]
#: Ten kernels of 60 ns, 40 ns after one another, launched in time: [0, 960).
STARTS: Final = range(0, 1000, 100)
END: Final = 960


def tables(**given: Rows) -> dict[str, pl.DataFrame]:
    """A session that was captured: two kernels in turn on device 0, all of it steady, every gap the launches'."""
    dispatch = {"process_id": 0, "device_id": 0, "stream_id": 0, "below_resolution": False}
    every: dict[str, Rows] = {
        "sessions": [{"source_kind": "capture"}],
        "devices": [{"device_id": 0, "vendor": "AMD", "max_clock_mhz": 2000.0}],
        "kernels": [
            {"kernel_id": 0, "name": "Cijk", "short_name": "Cijk", "family": "gemm"},
            {"kernel_id": 1, "name": "add", "short_name": "add", "family": "elementwise"},
        ],
        "dispatches": [
            {**dispatch, "dispatch_id": i, "kernel_id": i % 2, "start_ns": start, "end_ns": start + 60, "self_ns": 60}
            for i, start in enumerate(STARTS)
        ],
        "gaps": [gap(start + 60, start + 100, "launch_latency") for start in STARTS[:-1]],
        "session_parts": [
            {"device_id": 0, "part": "steady", "start_ns": 0, "end_ns": END, "repetitions": 5}
            | {"reason": "5 repetitions of 2 activities"}
        ],
        "api_calls": [{"call_id": 0, "name": "hipLaunchKernel", "start_ns": 0, "end_ns": 1}],
        **given,
    }
    return {name: rows(name, every.get(name, [])) for name in dict.fromkeys((*INPUTS, *RECORDED_FROM))}


def judged(given: Mapping[str, pl.DataFrame], labels: pl.DataFrame | None = None) -> Answer:
    none = pl.DataFrame(schema={"kernel_id": pl.Int32, "label": pl.String})
    return answer_of(given, recorded(given), none if labels is None else labels)


def row_of(answer: Answer) -> dict[str, Any]:
    return answer.answers.row(0, named=True)


def idle(**causes: int) -> Rows:
    """The nine gaps by cause: so many of each."""
    listed = [cause for cause, number in causes.items() for _ in range(number)]
    return [gap(start + 60, start + 100, cause) for start, cause in zip(STARTS[:-1], listed, strict=True)]


def test_a_device_that_works_most_of_the_time_is_the_limit() -> None:
    answer = judged(tables())
    row = row_of(answer)
    assert (row["class"], row["second_class"], row["window_ns"]) == ("device", None, END)
    assert row["class_ratio"] == row["busy_ratio"] == pytest.approx(600 / END)
    assert (row["window_rule"], row["repetitions"], row["beside_ns"]) == ("5 repetitions of 2 activities", 5, 0)
    kinds = answer.kinds_of_work.select("kind", "time_ns").rows()
    assert sorted(kinds) == [("elementwise_and_copies", 300), ("gemm", 300)]


def test_shares_within_a_twentieth_of_the_window_are_both_said() -> None:
    shorter = [{**one, "end_ns": one["start_ns"] + 40} for one in tables()["dispatches"].to_dicts()]
    # 400 of work in [0, 940), 540 idle: 360 launching and 180 waiting.
    gaps = [{**one, "start_ns": one["start_ns"] - 20} for one in idle(launch_latency=6, sync=3)]
    part = {"device_id": 0, "part": "steady", "start_ns": 0, "end_ns": 940, "reason": "all"}
    row = row_of(judged(tables(dispatches=shorter, gaps=gaps, session_parts=[part])))
    assert (row["class"], row["second_class"]) == ("launch", "device")
    apart = [{**one, "start_ns": one["start_ns"] - 20} for one in idle(launch_latency=5, sync=4)]
    row = row_of(judged(tables(dispatches=shorter, gaps=apart, session_parts=[part])))
    assert (row["class"], row["second_class"]) == ("launch", None)


@pytest.mark.parametrize(("clock", "expected"), [(900.0, "throttling"), (1000.0, "device"), (1100.0, "device")])
def test_a_reason_for_more_than_half_of_the_largest_share_is_the_class(clock: float, expected: str) -> None:
    held = {"device_id": 0, "time_ns": 0, "gfx_clock_mhz": clock, "gfx_activity_ratio": 1.0}
    answer = judged(tables(gpu_samples=[{**held, "throttle_reasons": ["ppt0"]}]))
    row = row_of(answer)
    assert row["class"] == expected
    (part,) = answer.time_shares.drop_nulls("reason").rows(named=True)
    assert (part["share"], part["reason"]) == ("device", "throttling")
    assert part["time_ns"] == round(600 * (1 - clock / 2000))
    if expected == "throttling":
        assert row["class_ratio"] == part["share_ratio"]
        assert row["saves_at_most_ns"] == part["time_ns"]


def test_allocations_between_two_steady_pieces_are_no_reason_for_what_happens_in_them() -> None:
    """Launching takes most of the window. Allocations fill a part of that, or an interruption beside it."""
    shorter = [{**one, "end_ns": one["start_ns"] + 40} for one in tables()["dispatches"].to_dicts()]
    gaps = [{**one, "start_ns": one["start_ns"] - 20} for one in idle(launch_latency=9)]
    whole = {"device_id": 0, "reason": "all", "repetitions": 5}
    parts = [
        {**whole, "part": part, "start_ns": start, "end_ns": end}
        for part, start, end in (("steady", 0, 340), ("interruption", 340, 640), ("steady", 640, 940))
    ]

    def explained(start: int, end: int) -> list[tuple[str, int]]:
        calls = [{"kind": "allocation", "start_ns": start, "end_ns": end}]
        made = judged(tables(dispatches=shorter, gaps=gaps, session_parts=parts, first_calls=calls))
        return made.time_shares.drop_nulls("reason").select("reason", "time_ns").rows()

    assert explained(340, 640) == []
    assert explained(240, 700) == [("allocation", 120)]


def beside(cause: str, kernel_us: int = 114, call: str | None = None) -> dict[str, Any]:
    """The answer when a kernel runs every 200 µs and the rest has the cause, with or without calls."""
    starts = [200_000 * i for i in range(10)]
    ends = [start + 1_000 * kernel_us for start in starts]
    ran = [
        {**one, "start_ns": start, "end_ns": end}
        for one, start, end in zip(tables()["dispatches"].to_dicts(), starts, ends, strict=True)
    ]
    intervals = list(zip(ends, starts[1:], strict=False))
    part = {"device_id": 0, "part": "steady", "start_ns": 0, "end_ns": ends[-1], "reason": "all"}
    calls = [
        {"call_id": i, "name": call or "hipLaunchKernel", "process_id": 0, "start_ns": start, "end_ns": end}
        for i, (start, end) in enumerate(intervals if call else intervals[:1])
    ]
    gaps = [gap(*one, cause) for one in intervals]
    return row_of(judged(tables(dispatches=ran, gaps=gaps, session_parts=[part], api_calls=calls)))


def test_a_cause_that_no_tuning_of_kernels_outdoes_leads_before_the_devices_own_time() -> None:
    """To save 40 % out of 60 %, kernels would have to run at three times their speed."""
    row = beside("host_wait")
    assert (row["class"], row["second_class"]) == ("host", None)
    assert row["class_ratio"] == pytest.approx(774 / 1914)
    assert beside("host_wait", 116)["class"] == "device"
    # What a tracer lengthens as it does every call does not lead.
    assert beside("launch_latency")["class"] == beside("sync")["class"] == "device"
    # Within a twentieth both are named, whichever leads.
    assert beside("host_wait", 99)["second_class"] == "device"


@pytest.mark.parametrize(("kernel_us", "expected"), [(94, ("launch", "device")), (97, ("device", "launch"))])
def test_kernels_that_run_for_less_than_half_of_the_window_do_not_limit_it(
    kernel_us: int, expected: tuple[str, str]
) -> None:
    """There also what a tracer lengthens leads, in a window of 1,800 µs and a kernel."""
    row = beside("launch_latency", kernel_us)
    assert (row["class"], row["second_class"]) == expected


def test_idle_time_of_many_causes_and_none_large_leaves_the_device_first() -> None:
    """Kernels run for 400 of 940 ns, and 540 are idle in three shares of 180."""
    shorter = [{**one, "end_ns": one["start_ns"] + 40} for one in tables()["dispatches"].to_dicts()]
    part = {"device_id": 0, "part": "steady", "start_ns": 0, "end_ns": 940, "reason": "all"}

    def of(**causes: int) -> tuple[str, str | None]:
        gaps = [{**one, "start_ns": one["start_ns"] - 20} for one in idle(**causes)]
        row = row_of(judged(tables(dispatches=shorter, gaps=gaps, session_parts=[part])))
        return row["class"], row["second_class"]

    assert of(launch_latency=3, sync=3, unknown=3) == ("device", None)
    # To save 240 of 400, they would have to run at more than twice their speed; of unknown causes none leads.
    assert of(launch_latency=2, sync=4, unknown=3)[0] == "sync"
    assert of(launch_latency=3, unknown=6)[0] == "device"


@pytest.mark.parametrize("call", ["cudaFree", "hipMalloc", "hipHostFree", "cuMemAlloc_v2", "cudaMallocHost"])
def test_memory_that_is_freed_and_allocated_in_each_repetition_is_what_the_host_does(call: str) -> None:
    row = beside("host_wait", call=call)
    assert row["class"] == "allocation"
    assert row["class_ratio"] == pytest.approx(774 / 1914)


@pytest.mark.parametrize("call", ["cudaFreeAsync", "hipMallocFromPoolAsync", "hipMemcpy", "cudaLaunchKernel"])
def test_a_streams_own_pool_and_other_calls_are_no_allocations(call: str) -> None:
    assert beside("host_wait", call=call)["class"] == "host"


def test_a_session_of_marked_iterations_says_what_one_saves_without_a_profiler() -> None:
    """Five iterations of 192 ns under the tracer that take 150 without it."""
    part = {"device_id": 0, "part": "steady", "start_ns": 0, "end_ns": END, "repetitions": 5, "period_ns": 200}
    marked = {**part, "reason": "5 marked iterations of 2 activities"}
    runs = [
        {"pass": name, "run": run, "iteration": i, "phase": "measure", "start_ns": i * step, "end_ns": i * step + 9}
        for run, (name, step) in enumerate((("latency", 150), ("trace", 200)))
        for i in range(5)
    ]
    shorter = [{**one, "end_ns": one["start_ns"] + 20, "iteration": 0} for one in tables()["dispatches"].to_dicts()]
    gaps = [{**one, "start_ns": one["start_ns"] - 40} for one in idle(launch_latency=9)]
    row = row_of(judged(tables(dispatches=shorter, gaps=gaps, session_parts=[marked], iterations=runs)))
    assert (row["class"], row["unprofiled_period_ns"]) == ("launch", 150)
    # A kernel as short as the stamping of its record may need no time at all.
    assert (row["saves_unprofiled_ns"], row["saves_at_most_ns"]) == (150, row["window_ns"])
    (found,) = session_row(Answer(pl.DataFrame([row]), *(judged(tables()).time_shares,) * 2)).rows(named=True)
    assert found["recommendation"].endswith("That saves at most 100.0 % of the time.")
    without = row_of(judged(tables(dispatches=shorter, gaps=gaps, iterations=runs)))
    assert (without["unprofiled_period_ns"], without["saves_unprofiled_ns"]) == (None, None)


def test_another_cards_samples_say_nothing_of_a_captures_clock() -> None:
    other = {"device_id": 1, "time_ns": 0, "gfx_clock_mhz": 100.0, "gfx_activity_ratio": 1.0}
    cards = [{"device_id": one, "vendor": "AMD", "max_clock_mhz": 2000.0} for one in (0, 1)]
    answer = judged(tables(gpu_samples=[{**other, "throttle_reasons": ["ppt0"]}], devices=cards))
    assert answer.time_shares.get_column("reason").drop_nulls().is_empty()


@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(random: Any) -> None:
    whole = tables()
    shuffled = {
        name: frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for name, frame in whole.items()
    }
    first, second = judged(whole), judged(shuffled)
    for name in ("answers", "time_shares", "kinds_of_work"):
        assert getattr(first, name).equals(getattr(second, name)), name


@given(st.permutations(range(10)), st.permutations([3, 8]), st.text("abc<>:", min_size=1, max_size=9))
def test_numbers_and_names_change_no_share_and_no_kind(ids: list[int], kernels: list[int], name: str) -> None:
    whole = tables()
    # Without mapping a family to another: only what stands for it.
    renamed = whole["kernels"].with_columns(
        pl.Series("kernel_id", kernels, pl.Int32), name=pl.lit(name), short_name=pl.lit(name)
    )
    of_kernel = pl.col("kernel_id").replace_strict({0: kernels[0], 1: kernels[1]}, return_dtype=pl.Int32)
    moved = whole["dispatches"].with_columns(of_kernel, pl.Series("dispatch_id", ids, pl.Int32))
    first, second = judged(whole), judged({**whole, "kernels": renamed, "dispatches": moved})
    assert second.time_shares.equals(first.time_shares)
    columns = ("kind", "time_ns", "share_ratio", "dispatch_count", "alone_ns")
    assert second.kinds_of_work.select(columns).equals(first.kinds_of_work.select(columns))
    assert row_of(second) | {"subject": None} == row_of(first) | {"subject": None}


def test_the_label_of_at_least_half_of_the_kernels_time_names_the_resource() -> None:
    def resource(*labels: str | None) -> str | None:
        frame = pl.DataFrame(
            {"kernel_id": pl.Series([0, 1], dtype=pl.Int32), "label": pl.Series(labels, dtype=pl.String)}
        )
        found = row_of(judged(tables(), frame))["resource"]
        return None if found is None else str(found)

    assert resource("compute_matrix", None) == "compute_matrix"
    assert resource("compute_matrix", "compute_matrix") == "compute_matrix"
    assert resource(None, None) is None


@pytest.mark.parametrize("lacking", ["cold_start", "incomplete"])
def test_without_a_steady_part_there_are_no_shares(lacking: str) -> None:
    part = {"device_id": 0, "part": "set_up", "start_ns": 0, "end_ns": END, "lacking": lacking, "reason": "why"}
    answer = judged(tables(session_parts=[part]))
    row = row_of(answer)
    assert (row["class"], row["reason"], row["window_ns"]) == (lacking, "why", END)
    assert answer.time_shares.is_empty()
    assert (row["advice"], row["saves_at_most_ns"], row["class_ratio"]) == (None, None, None)


def test_without_activities_the_recording_is_incomplete_and_says_why() -> None:
    row = row_of(judged(tables(dispatches=[], gaps=[], session_parts=[])))
    assert (row["class"], row["device_id"], row["window_ns"]) == ("incomplete", None, None)
    assert "no kernel or copy has times" in row["reason"]


def test_idle_time_of_unknown_cause_without_host_calls_is_incomplete() -> None:
    shorter = [{**one, "end_ns": one["start_ns"] + 10} for one in tables()["dispatches"].to_dicts()]
    gaps = [{**one, "start_ns": one["start_ns"] - 50} for one in idle(unknown=9)]
    row = row_of(judged(tables(dispatches=shorter, gaps=gaps, api_calls=[])))
    assert row["class"] == "incomplete"
    assert "no host calls were recorded" in row["reason"]
    assert row_of(judged(tables(dispatches=shorter, gaps=gaps)))["class"] == "unknown"


def test_on_the_processor_the_window_is_the_unprofiled_pass_and_contention_may_be_the_class() -> None:
    each = {"phase": "measure", "latency_ns": 1000, "cpu_time_ns": 300, "run_delay_ns": 500}
    passes = [
        {**each, "pass": name, "iteration": i, "start_ns": 1000 * i, "end_ns": 1000 * (i + 1)}
        for name in ("latency", "trace")
        for i in range(2)
    ]
    ran = [{**one, "iteration": one["dispatch_id"] % 2} for one in tables()["dispatches"].to_dicts()]
    live = [{"source_kind": "live", "provider": CPU_PROVIDER}]
    answer = judged(tables(sessions=live, iterations=passes, dispatches=ran))
    row = row_of(answer)
    assert (row["window_ns"], row["repetitions"], row["class"]) == (2000, 2, "contention")
    shares = answer.time_shares.filter(pl.col("reason").is_null())
    assert dict(shares.filter(pl.col("time_ns") > 0).select("share", "time_ns").iter_rows()) == {
        # Operators of 60 ns take no longer than starting them: the time is the runtime's.
        **{"launch": 1600, "host": 400}
    }


def test_the_sessions_row_of_bottlenecks_is_the_answers() -> None:
    answer = judged(tables())
    row, (found,) = row_of(answer), session_row(answer).rows(named=True)
    assert session_row(answer).schema == polars_types("bottlenecks")
    assert (found["scope"], found["label"], found["score"]) == ("session", row["class"], row["class_ratio"])
    assert next((one["signal"], one["source"]) for one in found["evidence"]) == ("share_device", "time_shares")
    assert found["missing"] == row["sharpen"]


REPETITIONS: Final = 40
PERIOD_NS: Final = 100_000
#: How long the device works in each repetition, by cause.
WORK_NS: Final = {"device": 95_000, "copy": 10_000, "launch": 10_000, "host": 10_000, "sync": 10_000}


def made(cause: str, period: int = PERIOD_NS) -> Tables:
    """A session that repeats one kernel, with one cause for what else it does."""
    dispatches: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    iterations: list[dict[str, Any]] = []
    thread = {"process_id": 0, "thread_id": 1}
    work = WORK_NS[cause] * period // PERIOD_NS

    def call(name: str, start: int, end: int, domain: str = "hip_runtime", **rest: object) -> None:
        row = {"call_id": len(calls), "name": name, "domain": domain, "start_ns": start, "end_ns": end}
        calls.append({**thread, **row, **rest})

    for number in range(REPETITIONS):
        at = number * period
        start, end = at + 5_000, at + 5_000 + work
        row = {"dispatch_id": number, "kernel_id": 0, "device_id": 0, "stream_id": 0, "correlation_id": number}
        dispatches.append({**thread, **row, "start_ns": start, "end_ns": end, "iteration": number})
        iterations.append({"pass": "trace", "iteration": number, "phase": "measure", "latency_ns": period})
        iterations[-1] |= {"start_ns": at, "end_ns": at + period}
        if cause == "launch":
            # The operator that launches is open nearly all the time before.
            call("aten::add", at - period + 10_000 + work, at + 4_000, "operator")
        early = period if cause == "device" else 0
        call("hipLaunchKernel", at + 1_000 - early, at + 3_000 - early, correlation_id=number)
        if cause == "sync":
            call("hipStreamSynchronize", at + 3_500, end + 2_000)
        if cause == "copy":
            size = {"copy_id": number, "device_id": 0, "stream_id": 0, "direction": "device_to_host", "size_bytes": 99}
            copies.append({**thread, **size, "start_ns": end, "end_ns": at + period})
    tables = {"dispatches": dispatches, "api_calls": calls, "memory_copies": copies, "iterations": iterations}
    return {name: _frame(name, rows) for name, rows in {**tables, "kernels": [{"kernel_id": 0, "name": "k"}]}.items()}


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(contract(name))
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def without(tables: Tables, names: Collection[str]) -> Tables:
    """The tables with these empty; dispatches are of no iteration where there are none."""
    blanked = {name: frame.clear() if name in names else frame for name, frame in tables.items()}
    if "iterations" in names:
        blanked["dispatches"] = blanked["dispatches"].with_columns(iteration=pl.lit(None, pl.Int32))
    return blanked


def class_of(tables: Tables) -> str:
    return answered(Mixture("", tables, {}))[0]


@pytest.mark.nightly
@pytest.mark.parametrize("cause", WORK_NS)
@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_class_without_evidence_is_the_same_or_none(cause: str, evidence: str) -> None:
    tables = made(cause)
    assert class_of(tables) == cause
    assert class_of(without(tables, EVIDENCE[evidence])) in (cause, *WEAKER)


@pytest.mark.parametrize("cause", ["launch", "host", "sync"])
def test_idle_time_without_host_calls_has_no_cause(cause: str) -> None:
    tables = made(cause)
    assert class_of({**tables, "api_calls": tables["api_calls"].clear()}) in WEAKER


@given(
    cause=st.sampled_from(sorted(WORK_NS)),
    period=st.integers(80_000, 3_000_000),
    lost=st.sets(st.sampled_from(sorted(EVIDENCE))),
)
def test_any_evidence_may_be_lost_at_any_pace(cause: str, period: int, lost: set[str]) -> None:
    tables = made(cause, period)
    whole = class_of(tables)
    gone = [name for evidence in lost for name in EVIDENCE[evidence]]
    assert class_of(without(tables, gone)) in (whole, *WEAKER)
