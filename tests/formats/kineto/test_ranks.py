"""Traces of several ranks: which are one run, and what the run's tables say. Small generated traces and a real one."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.timeline import collectives, ranks
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.device_timeline import ITERATION, timeline
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.analysis.timeline.host_waits import waits
from aaco_pipeline.capture.discovery import Run, discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from tests.formats.readings import checked, reason
from tests.places import SHARED

REAL = SHARED / "kineto/mi300x_resnet_train_ddp.json.gz"
BASE_NS = 1_767_189_312_000_000_000
REDUCTIONS = 12
Events = list[dict[str, Any]]


def events(rank: int, steps: tuple[int, ...] = (4, 5), pid: int = 542) -> Events:
    """A generated rank: steps in which kernels and all-reduces are launched; ranks arrive at these at other times."""
    found: Events = []

    def add(cat: str, name: str, start: float, length: float, tid: int, **args: Any) -> None:
        place = {"pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}
        found.append({"ph": "X", "cat": cat, "name": name, **place})

    correlation = 0
    for number, step in enumerate(steps):
        begin = 1000.0 * number + 7.125 * rank
        add("user_annotation", f"ProfilerStep#{step}", begin, 990, tid=1)
        for turn in range(REDUCTIONS // len(steps)):
            at = begin + 100 * turn + 10
            for what, length in (("gemm", 20.5 + rank), ("ncclDevKernel_Generic", 50 - 7.125 * rank)):
                correlation += 1
                reduces = what.startswith("nccl")
                if reduces:
                    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
                    told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, **group}
                    add("cpu_op", "record_param_comms", at + 3, 3, tid=1, **told)
                add("cuda_runtime", "hipLaunchKernel", at + (4 if reduces else 0), 1, tid=1, correlation=correlation)
                start = at + (35 if reduces else 5)
                add("kernel", what, start, length, tid=7, device=0, stream=int(reduces), correlation=correlation)
    return found


def written(path: Path, rank: int | None, *, last: bool = False, shift_ns: int = 0, **changes: Any) -> Path:
    """A generated trace with what a rank states of itself, before its events or behind them."""
    steps, pid, world = changes.pop("steps", (4, 5)), changes.pop("pid", 542), changes.pop("world_size", 2)
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}
    information = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": [group], "nccl_version": "2.22.3"}
    information |= changes.pop("information", {})
    stated = {} if rank is None else {"distributedInfo": information}
    beginning = {"schemaVersion": 1, "hip_runtime_version": 60443483, "trace_id": f"{path.name} {rank}"}
    listed = {"traceEvents": events(rank or 0, steps, pid)}
    document = {**beginning, **listed, **stated} if last else {**beginning, **stated, **listed}
    document |= {"baseTimeNanoseconds": BASE_NS + shift_ns, **changes}
    content = json.dumps(document).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def read(run: Run) -> CaptureTables:
    return checked(merge_parts([NamedReading(part.name, part.read(Limits())) for part in run.parts]))


def figures(reading: CaptureTables) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Timeline, gaps and rank clocks as the stages make them."""
    tables = reading.tables
    calls = host_calls(tables["api_calls"])
    activities = device_activities(tables["dispatches"], tables["memory_copies"], tables["kernels"], calls)
    rows = timeline(activities, calls, tables["iterations"])
    idle = gaps(activities, tables["api_calls"], waits(activities, calls, tables["synchronizations"]))
    matched = collectives.matched(collectives.parts(activities, tables["markers"], tables["api_calls"]))
    return rows, idle, ranks.rank_clocks(tables["processes"], tables["clock_domains"], matched)


def conserved(together: CaptureTables, alone: list[CaptureTables]) -> None:
    """Every device of the session has the window's length, the busy time and the gaps of its rank's own session."""
    rows, idle, _ = figures(together)
    assert rows.filter(pl.col("busy_ns") < 0).is_empty()
    assert idle.filter(pl.col("end_ns") <= pl.col("start_ns")).is_empty()
    times = [name for name in rows.columns if name.endswith("_ns") and not name.startswith("window")]
    whole = rows.filter(pl.col("window_rule") != ITERATION)
    length = (pl.col("window_end_ns") - pl.col("window_start_ns")).alias("length")
    expected, causes = [], []
    for one in alone:
        own, own_idle, _ = figures(one)
        expected += own.filter(pl.col("window_rule") != ITERATION).select("window_rule", length, *times).rows()
        causes += own_idle.group_by("cause").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("cause").rows()
    assert whole.sort("device_id", "window_rule").select("window_rule", length, *times).rows() == expected
    by_cause = idle.group_by("device_id", "cause").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    assert by_cause.sort("device_id", "cause").drop("device_id").rows() == causes
    assert idle.get_column("device_id").n_unique() == len(alone)


def apart(folder: Path) -> list[str]:
    """Why each Kineto trace of the folder is a run of its own."""
    runs = discover_runs(folder).runs
    assert all(len(run.parts) == 1 and run.folder == run.parts[0].files[0] for run in runs)
    return [run.parts[0].detail for run in runs]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("last", [False, True])
def test_ranks_of_one_job_are_one_run_wherever_they_state_it(tmp_path: Path, name: str, last: bool) -> None:
    written(tmp_path / name, 0, last=last)
    written(tmp_path / f"b_{name}", 1, last=last)
    (run,) = discover_runs(tmp_path).runs
    assert run.folder == tmp_path
    assert [part.name for part in run.parts] == sorted([name, f"b_{name}"])
    assert all("one run of 2 ranks (0, 1 of 2)" in part.detail for part in run.parts)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_only_the_beginning_and_the_end_are_looked_at(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "LOOKED_BYTES", 2048)
    path = written(tmp_path / name, 3, last=True, world_size=8)
    assert kineto.stated(path).rank == 3
    # An event's argument does not state the trace's own rank.
    quoted = {"ph": "X", "cat": "cpu_op", "name": "op", "args": {"distributedInfo": {"rank": 1, "world_size": 2}}}
    path = written(tmp_path / f"b_{name}", None, traceName="t", traceEvents=[*events(0), quoted])
    assert "states no rank" in (kineto.stated(path).missing or "")
    monkeypatch.setattr(kineto, "UNPACKED_BYTES", 4096)
    behind = kineto.stated(tmp_path / name)
    assert (behind.rank, "behind" in (behind.missing or "")) == ((None, True) if name.endswith("gz") else (3, False))


REASONS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "the same rank": (lambda path: written(path, 0), "rank 0 is there more than once"),
    "another world size": (lambda path: written(path, 1, world_size=4), "state another world_size"),
    "no rank": (lambda path: written(path, None), "states no rank"),
    "no world size": (lambda path: written(path, 1, information={"world_size": None}), "does not state of how many"),
    "one rank of one": (lambda path: written(path, 0, world_size=1), "no job of several ranks"),
    "a rank that is no number": (lambda path: written(path, 1, information={"rank": "1"}), "states no rank"),
    "another library": (
        lambda path: written(path, 1, information={"nccl_version": "2.21.5"}),
        "different nccl_version",
    ),
    "another runtime": (lambda path: written(path, 1, hip_runtime_version=7), "different hip_runtime_version"),
    "another world": (
        lambda path: written(
            path,
            1,
            information={"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [1, 2]}]},
        ),
        "different ranks of the default group",
    ),
    "a copy": (lambda path: written(path, 1, trace_id="rank0.json 0"), "state one trace_id and different ranks"),
}


@pytest.mark.parametrize("case", REASONS)
def test_traces_that_contradict_each_other_are_runs_of_their_own_with_the_reason(tmp_path: Path, case: str) -> None:
    written(tmp_path / "rank0.json", 0)
    make, reason = REASONS[case]
    make(tmp_path / "rank1.json")
    told = apart(tmp_path)
    assert len(told) == 2
    assert all("a run of its own" in one for one in told)
    assert reason in told[1]


def test_a_name_is_no_evidence_and_a_single_trace_is_what_it_was(tmp_path: Path) -> None:
    written(tmp_path / "rank0.json", None)
    assert apart(tmp_path) == ["PyTorch Kineto trace (Chrome JSON)"]
    written(tmp_path / "rank1.json", None)
    assert ["no distributedInfo" in one for one in apart(tmp_path)] == [True, True]
    # Folders of their own are runs of their own.
    written(tmp_path / "c.json", 0)
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep/d.json", 1)
    assert len(discover_runs(tmp_path).runs) == 4


def test_two_jobs_in_one_folder_are_two_runs_beside_what_is_of_neither(tmp_path: Path) -> None:
    for rank in range(3):
        written(tmp_path / f"{rank}.json", rank, world_size=4)
        written(tmp_path / f"z{rank}.json", rank, world_size=8)
    written(tmp_path / "alone.json", None)
    names = [[part.name for part in run.parts] for run in discover_runs(tmp_path).runs]
    assert names == [["0.json", "1.json", "2.json"], ["alone.json"], ["z0.json", "z1.json", "z2.json"]]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": ', b'{"distributedInfo": ' + b"[" * 5000, b"[1]", b"\x1f\x8bx"])
def test_what_cannot_be_understood_states_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    assert kineto.stated(tmp_path / "t.json").missing


def test_generated_ranks_keep_their_own_times_devices_and_steps(tmp_path: Path) -> None:
    shift = 5_000_123_456
    written(tmp_path / "rank0.json", 0)
    written(tmp_path / "rank1.json", 1, shift_ns=shift, pid=542)
    (run,) = discover_runs(tmp_path).runs
    together = read(run)
    tables = together.tables
    assert tables["processes"].select("process_id", "rank", "pid").rows() == [(0, 0, 542), (1, 1, 542)]
    assert tables["devices"].select("device_id", "handle").rows() == [(0, "0"), (1, "0")]
    used = tables["dispatches"].select("process_id", "device_id").unique().sort("process_id").rows()
    assert used == [(0, 0), (1, 1)]
    alone = [read(discover_runs(tmp_path / f"rank{rank}.json").runs[0]) for rank in (0, 1)]
    conserved(together, alone)
    rows, _, clocks = figures(together)
    # The second rank's steps are at other times than the first one's, and it has no windows of these.
    assert rows.filter(pl.col("window_rule") == ITERATION).select("device_id", "iteration").rows() == [(0, 0), (0, 1)]
    counts = tables["dispatches"].group_by("process_id", "iteration").len().sort("process_id", "iteration").rows()
    assert counts == [(process, step, 12) for process in (0, 1) for step in (0, 1)]
    # All-reduces end at the same instant on both clocks.
    (found,) = clocks.filter(pl.col("process_id") == 1).select("method", "offset_ns", "uncertainty_ns").rows()
    assert found == ("collectives", -shift, 0)
    assert "placed by wall-clock" in reason(together, "clocks of files without a host")
    assert "devices of their own" in reason(together, "identity of devices")
    assert "share no instant" in reason(together, "parts at the same time")


def test_the_axes_are_placed_by_wall_clock_and_the_bases_are_kept(tmp_path: Path) -> None:
    written(tmp_path / "rank0.json", 0, shift_ns=400_000)
    written(tmp_path / "rank1.json", 1)
    together = read(discover_runs(tmp_path).runs[0])
    rows = {row["domain"]: row for row in together.tables["clock_domains"].to_dicts()}
    assert list(rows) == ["kineto", "kineto of rank1.json", "realtime"]
    assert (rows["kineto"]["uncertainty_ns"], rows["kineto of rank1.json"]["uncertainty_ns"]) == (0, None)
    bases = [rows[name]["offset_ns"] - rows["realtime"]["offset_ns"] for name in rows]
    assert bases == [BASE_NS + 400_000, BASE_NS, 0]
    # Rank 1 begins 7.125 us later on a base that is 400 us earlier.
    starts = together.tables["markers"].group_by("process_id").agg(pl.col("start_ns").min()).sort("process_id").rows()
    assert starts == [(0, 400_000 - 7_125), (1, 0)]
    assert not any(item.item == "parts at the same time" for item in together.evidence)


def test_steps_that_the_first_rank_does_not_have_are_of_no_iteration(tmp_path: Path) -> None:
    written(tmp_path / "rank0.json", 0)
    written(tmp_path / "rank1.json", 1, steps=(5, 6))
    dispatches = read(discover_runs(tmp_path).runs[0]).tables["dispatches"].filter(pl.col("process_id") == 1)
    assert dispatches.get_column("iteration").to_list() == [1] * 12 + [None] * 12
    written(tmp_path / "rank1.json", 1, steps=(8, 9))
    reading = read(discover_runs(tmp_path).runs[0])
    dispatches = reading.tables["dispatches"].filter(pl.col("process_id") == 1)
    assert dispatches.get_column("iteration").null_count() == 24
    (told,) = [item for item in reading.evidence if item.item == "iterations of process 1"]
    assert (told.status, told.rows) == ("absent", 24)


@pytest.mark.skipif(not REAL.is_file(), reason="the shared captures are not here")
def test_a_real_rank_beside_a_moved_copy_of_itself(tmp_path: Path) -> None:
    raw = gzip.decompress(REAL.read_bytes()).decode()
    shift = 2_345_678
    changes = (
        (r'"rank": 0, "world_size"', '"rank": 1, "world_size"'),
        (r'"baseTimeNanoseconds": (\d+)', lambda found: f'"baseTimeNanoseconds": {int(found[1]) + shift}'),
        (r'("trace_id": ")..', r"\1AA"),
        (r'"pid": 542,', '"pid": 600,'),
    )
    (tmp_path / "rank0.json").write_text(raw)
    for pattern, new in changes:
        raw, count = re.subn(pattern, new, raw)
        assert count
    (tmp_path / "rank1.json").write_text(raw)
    (run,) = discover_runs(tmp_path).runs
    together = read(run)
    assert together.tables["processes"].select("pid", "rank").rows() == [(542, 0), (600, 1)]
    alone = read(discover_runs(tmp_path / "rank0.json").runs[0])
    conserved(together, [alone, alone])
    rows, _, clocks = figures(together)
    assert rows.filter(pl.col("busy_ns") > 0).get_column("device_id").unique().sort().to_list() == [2, 10]
    assert clocks.select("method", "offset_ns").rows() == [("same_process", 0), ("collectives", -shift)]
    both = together.tables["dispatches"].group_by("process_id").agg("iteration").get_column("iteration")
    assert both[0].equals(both[1])
    assert both[0].null_count() == alone.tables["dispatches"].get_column("iteration").null_count()
