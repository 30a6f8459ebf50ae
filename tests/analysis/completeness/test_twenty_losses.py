"""Twenty ways in which recordings fall short, each found with its consequence and the command that mends it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.analysis.completeness.findings import BUSY, NAMES
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import read_run
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import DROPPED, Evidence
from tests.analysis.completeness.recordings import (
    PACE,
    Tables,
    as_wholes,
    counted,
    examine,
    found,
    frame,
    keeping,
    moved,
    recording,
    replayed,
)
from tests.formats.examples import EXAMPLES

DAY_NS = 86_400 * 10**9
RESYNC_NS = 2_300_000
#: Wavefronts of each dispatch of `recording`.
WAVES = 512
ROW = pl.col("dispatch_id")


@dataclass(frozen=True)
class Loss:
    """A spoiled recording, and what is to be found in it: which figures are void or bounds, and what mends it."""

    finding: str
    severity: str
    tables: Callable[[], Tables]
    mend: str
    voids: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    grade: str = "observed"


def with_counters(**facts: object) -> Tables:
    tables = recording()
    devices = tables["devices"].with_columns(pl.lit(value).alias(name) for name, value in facts.items())
    return {**tables, "devices": devices}


def on_cpu() -> Tables:
    tables = recording()
    kernels = tables["kernels"].with_columns(library=pl.lit("onnxruntime CPU"))
    sessions = tables["sessions"].with_columns(provider=pl.lit("MIGraphXExecutionProvider"))
    return {**tables, "kernels": kernels, "sessions": sessions, "api_calls": tables["api_calls"].clear()}


def one_rank_of_eight() -> Tables:
    marker = {"marker_id": 0, "process_id": 0, "name": "allreduce", "start_ns": 0, "end_ns": 1, "group_size": 8}
    return {**recording(), "markers": frame("markers", [marker])}


def cut_at_midpoints() -> Tables:
    """Overlapping slices of one queue, their ends moved to the middle, and the tool's own sums of before."""
    tables = recording()
    before = tables["dispatches"].with_columns(end_ns=pl.col("start_ns") + PACE + 6_000)
    middle = (pl.col("start_ns").shift(-1) + pl.col("end_ns")) // 2
    ends = pl.coalesce(middle, "end_ns")
    cut = before.with_columns(end_ns=ends, start_ns=pl.coalesce(ends.shift(1), pl.col("start_ns")))
    sums = before.group_by("kernel_id").agg(n=pl.len(), total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    stated = [
        {"source": "out_kernel_stats.csv", "domain": "kernel", "name": f"k{k}", "call_count": n, "total_ns": total}
        for k, n, total in sums.iter_rows()
    ]
    # Host calls of an in-order program would contradict such overlap; a picture for Perfetto has none.
    no_calls = tables["api_calls"].clear()
    return {
        **tables,
        "dispatches": cut,
        "reported_statistics": frame("reported_statistics", stated),
        "api_calls": no_calls,
    }


def late_calls() -> Tables:
    """Host calls are recorded from the twentieth launch on, device activities from the first."""
    tables = recording()
    calls = tables["api_calls"].filter(pl.col("start_ns") >= 20 * PACE)
    return {**tables, "api_calls": calls}


def multiplexed() -> Tables:
    """Every other dispatch counts the other counter."""
    rows = [
        {"dispatch_id": i, "counter": ("SQ_INSTS_VALU", "TCC_HIT")[i // 3 % 2], "value": 5.0, "pass": "pass_1"}
        for i in range(12)
    ]
    return {**recording(), "counters": frame("counters", rows)}


def setting(key: str, value: str) -> Tables:
    row = {"category": "profiler", "key": key, "value": value, "in_fingerprint": False}
    counts = counted(recording(), {"SQ_INSTS_VALU": [5, 5, 5]})
    return {**counts, "environment": frame("environment", [row])}


def thread_trace(seen: int, began: int) -> Tables:
    place = {"part": "ui_output_agent_1_dispatch_1", "shader_engine": 0, "cu": 1}
    waves = pl.DataFrame([place] * seen)
    return {**recording(), "waves": waves, "wave_starts": pl.DataFrame([{**place, "waves": began}])}


def waiting_first() -> Tables:
    """A first blocking copy of 4 bytes that begins half a second after its call; a kernel ran before."""
    tables = recording(3, waits=0)
    call = {"call_id": 90, "process_id": 0, "thread_id": 1, "domain": "hip_runtime", "name": "hipMemcpyWithStream"}
    call |= {"correlation_id": 90, "start_ns": 3 * PACE, "end_ns": 500_000_000}
    copy = {"copy_id": 0, "process_id": 0, "device_id": 0, "stream_id": 0, "size_bytes": 4, "correlation_id": 90}
    copy |= {"start_ns": 499_990_000, "end_ns": 499_995_000}
    calls = pl.concat([tables["api_calls"], frame("api_calls", [call])])
    return {**tables, "api_calls": calls, "memory_copies": frame("memory_copies", [copy])}


GUI = {"max_clock_mhz": 2100.0, "xcc_count": 8}
LOSSES = {
    "1 false idle at the edges": Loss(
        *("false_idle_at_edges", "bound", lambda: keeping(recording(), ROW < 50), "synchronize()"),
        at_least=("timeline.active_ratio",),
    ),
    "1 a wait for work of before": Loss(
        *("wait_for_unrecorded_work", "bound", waiting_first, "hipDeviceSynchronize()"),
        at_least=("timeline.busy_ns",),
        at_most=("gaps.end_ns",),
        grade="inferred",
    ),
    "2 graph kernels missing, by node": Loss(
        *("graph_kernels_missing", "fault", lambda: keeping(replayed(), (ROW * 7) % 10 < 6), "7.2.2 or later"),
        voids=("bottlenecks.label",),
        at_least=(*BUSY, "kernel_stats.total_ns"),
        at_most=("gaps.end_ns",),
    ),
    "2 graph kernels missing in all replays alike, by the capture": Loss(
        "graph_kernels_missing",
        "fault",
        lambda: keeping(replayed(named=False, captured=True), ROW % 8 < 5),
        "7.2.2 or later",
        voids=("bottlenecks.label",),
        at_least=BUSY,
    ),
    "2 graph kernels missing, by likeness": Loss(
        "graph_kernels_missing",
        "bound",
        lambda: keeping(replayed(named=False), (ROW * 7919) % 101 > 20),
        "enforce_eager=True",
        at_least=BUSY,
        at_most=("gaps.end_ns",),
        grade="inferred",
    ),
    "2 graphs recorded as one piece each": Loss(
        *("graphs_recorded_whole", "bound", lambda: as_wholes("k"), "every kernel of a graph"),
        voids=("bottlenecks.label",),
        at_least=("kernel_stats.total_ns",),
        at_most=BUSY,
    ),
    "3 no device events": Loss(
        *("no_device_events", "fault", lambda: keeping(recording(), pl.lit(False)), "--kernel-trace"),
        voids=("timeline.busy_ns", "timeline.active_ratio", "bottlenecks.label"),
    ),
    "4 first kernels dropped": Loss(
        *("first_kernels_dropped", "fault", lambda: keeping(recording(), ROW >= 7), "warm-up step"),
        at_least=(*BUSY, "kernel_stats.dispatch_count"),
        at_most=("gaps.end_ns",),
    ),
    "5 a stream missing": Loss(
        *("stream_missing", "fault", lambda: keeping(recording(streams=2), pl.col("stream_id") == 0), "ROCm 7.0.2"),
        voids=("bottlenecks.label",),
        at_least=(*BUSY, "timeline.overlapped_ns"),
    ),
    "5 a thread's stream missing": Loss(
        *("stream_missing", "fault", lambda: keeping(recording(threads=3), pl.col("thread_id") != 2), "--kernel-trace"),
        at_least=BUSY,
    ),
    "6 impossible counters": Loss(
        "counters_impossible",
        "fault",
        lambda: counted(recording(), {"SQ_WAVES": [WAVES, 2 * WAVES, 0, WAVES]}),
        "SQ_WAVES -- COMMAND",
        voids=("roofline.flops", "counter_metrics.value"),
    ),
    "6 impossible cycles": Loss(
        "counters_impossible",
        "fault",
        lambda: counted(with_counters(**GUI), {"GRBM_GUI_ACTIVE": [90_000, 9e12, 90_000]}),
        "--pmc",
        voids=("roofline.bound",),
    ),
    "7 impossible durations": Loss(
        *("impossible_durations", "fault", lambda: {**recording(), "dispatches": one_too_long()}, "--stats"),
        voids=("kernel_stats.share_ratio",),
        at_most=("kernel_stats.max_ns", "timeline.busy_ns"),
    ),
    "7 durations below zero": Loss(
        *("impossible_durations", "fault", lambda: {**recording(), "dispatches": reversed_ones()}, "--kernel-trace"),
        at_least=("kernel_stats.total_ns",),
    ),
    "8 counters summed over replay passes": Loss(
        *("counters_summed", "fault", lambda: counted(recording(), {"SQ_WAVES": [3 * WAVES] * 9}), "no kernel replay"),
        voids=("roofline.flops", "roofline.bound", "counter_metrics.value"),
    ),
    "9 thread trace empty": Loss(
        *("thread_trace_empty", "fault", recording, "--att-shader-engine-mask"),
        voids=("att_instructions.stall_cycles",),
        evidence=(Evidence("wavefronts of ui_output_agent_1_dispatch_1", "absent", "none is listed", None, 0),),
    ),
    "9 thread trace not decoded": Loss(
        *("thread_trace_empty", "fault", recording, "--att"),
        voids=("att_instructions.hits",),
        evidence=(Evidence("raw file 28_1_shader_engine_0_1.att", "present"),),
    ),
    "10 thread trace partial": Loss(
        *("thread_trace_partial", "fault", lambda: thread_trace(3, 5), "--att-buffer-size"),
        at_least=("att_instructions.hits",),
    ),
    "11 clocks days apart": Loss(
        *("clocks_apart", "fault", lambda: moved(recording(), -3 * DAY_NS), "chronyc"),
        voids=("gaps.cause", "session_metrics.exposed_launch"),
    ),
    "11 clocks days apart, the other way": Loss(
        *("clocks_apart", "fault", lambda: moved(recording(), 3 * DAY_NS), "chronyc"), voids=("gaps.cause",)
    ),
    "12 clock resynchronized": Loss(
        *("clock_resynchronized", "fault", lambda: moved(recording(), -RESYNC_NS, ROW >= 40), "chronyc"),
        voids=("gaps.cause", "critical_path_summary.category_ratio"),
    ),
    "12 clock resynchronized, forward": Loss(
        *("clock_resynchronized", "fault", lambda: moved(recording(), RESYNC_NS, ROW >= 40), "chronyc"),
        voids=("gaps.cause",),
    ),
    "13 XCD shares missing": Loss(
        *("xcd_shares_missing", "bound", lambda: counted(recording(), {"TCC_HIT": [5, 5]}), "GRBM_GUI_ACTIVE"),
        voids=("occupancy.achieved_ratio",),
    ),
    "14 silent CPU fallback": Loss(
        *("cpu_fallback", "fault", on_cpu, "disable_cpu_ep_fallback"), voids=("timeline.active_ratio", "roofline.bound")
    ),
    "15 ranks overwrote one file": Loss(
        *("ranks_missing", "bound", one_rank_of_eight, "%rank%"),
        voids=("collectives.is_straggler",),
        at_most=("timeline.exposed_communication_ns",),
    ),
    "16 slices cut at midpoints": Loss(
        *("slices_cut", "fault", cut_at_midpoints, "never the picture"),
        voids=("timeline.overlapped_ns",),
        at_least=("kernel_stats.total_ns",),
    ),
    "17 kernels launched before the recording": Loss(
        *("launched_before_recording", "bound", late_calls, "warm-up step"),
        at_least=("session_metrics.exposed_launch",),
    ),
    "18 counters imputed, by the profiler's setting": Loss(
        "counters_multiplexed",
        "bound",
        lambda: setting("iteration_multiplexing", "kernel"),
        "no --iteration-multiplexing",
        voids=("counter_metrics.min", "counter_metrics.max"),
    ),
    "18 counters multiplexed, by their coverage": Loss(
        *("counters_multiplexed", "bound", multiplexed, "no --iteration-multiplexing"),
        voids=("counter_metrics.min",),
        grade="inferred",
    ),
    "19 drops by the tool's own statistics": Loss(
        *("dropped_by_tool", "fault", lambda: {**recording(), "reported_statistics": more_than_recorded()}, "--stats"),
        at_least=BUSY,
        at_most=("gaps.end_ns",),
    ),
    "19 drops that the tool does not count": Loss(
        *("dropped_by_tool", "fault", recording, "with fewer traces at once"),
        at_least=BUSY,
        evidence=(Evidence(DROPPED, "partial", "Not all CUDA events might have been collected."),),
    ),
    "20 a part that is cut": Loss(
        *("file_truncated", "fault", recording, "sha256sum"),
        at_least=BUSY,
        evidence=(Evidence("part 2_results.db", "invalid", "cut off: 500000 bytes of 1060864; copy the file again"),),
    ),
    "20 a database with a zeroed header": Loss(
        *("file_truncated", "fault", recording, "sha256sum"),
        at_least=BUSY,
        evidence=(Evidence("file 2_results.db", "absent", "not recognized as any known capture format"),),
    ),
}


def one_too_long() -> pl.DataFrame:
    return recording()["dispatches"].with_columns(
        end_ns=pl.when(ROW == 30).then(pl.col("end_ns") + 5_000_000).otherwise("end_ns")
    )


def reversed_ones() -> pl.DataFrame:
    return recording()["dispatches"].with_columns(
        end_ns=pl.when(ROW % 20 == 7).then(pl.col("start_ns") - 300).otherwise("end_ns")
    )


def more_than_recorded() -> pl.DataFrame:
    rows = [
        {"source": "out_kernel_stats.csv", "domain": "kernel", "name": f"k{k}", "call_count": 25, "total_ns": 100_000}
        for k in range(3)
    ]
    return frame("reported_statistics", rows)


@pytest.mark.parametrize(
    "tables",
    [
        recording(),
        recording(streams=2),
        recording(threads=3),
        recording(waits=1),
        replayed(),
        replayed(named=False),
        replayed(captured=True),
        counted(with_counters(**GUI), {"SQ_WAVES": [WAVES, WAVES + 5, WAVES - 3], "GRBM_GUI_ACTIVE": [90_000] * 3}),
        thread_trace(4, 4),
    ],
)
def test_nothing_is_found_in_a_whole_recording(tables: Tables) -> None:
    assert examine(tables).findings.to_dicts() == []


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_found_with_its_consequence_and_the_remedy(name: str) -> None:
    loss = LOSSES[name]
    every = found(loss.tables(), loss.evidence)
    assert loss.finding in every, list(every)
    one = every[loss.finding]
    assert (one["severity"], one["grade"]) == (loss.severity, loss.grade)
    for side in ("voids", "at_least", "at_most"):
        assert set(getattr(loss, side)) <= set(one[side]), side
    assert loss.mend in one["mend"]
    assert any(character.isdigit() for character in one["evidence"]) or loss.evidence


def test_every_number_of_the_twenty_has_its_recording() -> None:
    assert {name.partition(" ")[0] for name in LOSSES} == {str(number) for number in range(1, 21)}
    untested = set(NAMES) - {loss.finding for loss in LOSSES.values()}
    assert untested == {"launches_unrecorded", "launch_calls_missing"}


def test_every_figure_that_is_void_can_be_null_and_every_figure_exists() -> None:
    for name, loss in LOSSES.items():
        one = found(loss.tables(), loss.evidence)[loss.finding]
        for side in ("voids", "at_least", "at_most"):
            for figure in one[side]:
                table, _, column = figure.partition(".")
                if table == "session_metrics":
                    assert column in ("active_ratio", "exposed_launch", "exposed_launch_ratio"), figure
                    continue
                declared = {one.name: one for one in contract(table).columns}[column]
                assert side != "voids" or declared.nullable or figure == "gaps.cause", (name, figure)


def test_launches_that_records_without_a_name_may_be_of_are_no_loss() -> None:
    """ROCm's tracer gives the correlation 0 to collectives: their launches are not lost."""
    tables = recording()
    nameless = tables["dispatches"].with_columns(correlation_id=pl.when(ROW % 10 != 3).then("correlation_id"))
    assert "launches_unrecorded" not in found({**tables, "dispatches": nameless})
    fewer = nameless.filter((ROW % 10 != 3) | (ROW > 20))
    assert found({**tables, "dispatches": fewer})["launches_unrecorded"]["severity"] == "fault"


def test_the_tools_own_words_are_read_from_a_trace(tmp_path: Path) -> None:
    """Counts as libkineto writes them; those of a whole trace are zero, and no finding."""
    of_finding = {
        "dropped": (["WARNING: CuptiActivityApi.cpp:283] Dropped 12 activity records"], {"dropped_by_tool"}),
        "stopped": (["W: Exceeded max GPU buffer count (33 >= 33) - terminating tracing"], {"dropped_by_tool"}),
        "whole": (["Record counts: Out-of-range = 0, Blocklisted runtime = 52, CUPTI stopped early? = 0"], set()),
    }
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}
    arguments = {"device": 0, "stream": 7, "correlation": 3}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    events = [{**kernel, "args": arguments}, {**call, "args": {"correlation": 3}}]
    for name, (messages, names) in of_finding.items():
        path = tmp_path / f"{name}.json"
        document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events, "WARNING": messages}
        path.write_text(json.dumps(document))
        read = kineto.read(path)
        result = examine(read.tables, read.evidence)
        assert set(result.findings.get_column("finding")) == names, name
        dispatches = result.ledger.filter(pl.col("record_kind") == "dispatches")
        assert dispatches.item(0, "dropped") == (12 if name == "dropped" else None)
        assert dispatches.item(0, "out_of_range") == (0 if name == "whole" else None)
    assert (
        found(kineto.read(tmp_path / "dropped.json").tables, kineto.read(tmp_path / "dropped.json").evidence)[
            "dropped_by_tool"
        ]["records"]
        == 12
    )


def test_a_trace_that_is_cut_off_is_found_to_be(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [call] * 50})
    path = tmp_path / "trace.json"
    path.write_text(text[: len(text) // 2])
    read = kineto.read(path)
    assert found(read.tables, read.evidence)["file_truncated"]["severity"] == "fault"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_smallest_capture_of_every_format_has_no_fault(tmp_path: Path, name: str) -> None:
    EXAMPLES[name](tmp_path)
    for run in discover_runs(tmp_path).runs:
        read = read_run(run)
        findings = examine({**read.details, **read.tables}, read.evidence).findings
        assert findings.filter(pl.col("severity") == "fault").to_dicts() == []
