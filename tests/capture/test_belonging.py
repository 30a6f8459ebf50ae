"""Runs and what belongs to them: pairs in every format stay apart unless they state a tie, against a rule for pairs."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture import belonging
from aaco_pipeline.capture.belonging import Marks, together
from aaco_pipeline.capture.discovery import discover_runs, the_run
from aaco_pipeline.capture.merging import read_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import StatedProcess


@dataclass(frozen=True)
class Recorded:
    """One capture of a pair: who ran what, where and when."""

    pid: int = 41
    parent: int = 7
    host: str = "node"
    command: str = "./train"
    kernel: str = "scale"
    agent: int = 5600
    dispatch: int = 1
    begin: int = 1_000
    name: str = "41"
    rank: int | None = None


def _rocpd(folder: Path, one: Recorded) -> None:
    path = folder / f"{one.name}_results.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    lived = (one.begin, one.begin + 900)
    variables = {} if one.rank is None else {"RANK": str(one.rank)}
    tables: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "metadata": ("tag TEXT, value TEXT", [("schema_version", "3"), ("guid", f"guid-{one.pid}-{one.begin}")]),
        "string": ("id INTEGER PRIMARY KEY, string TEXT", [(1, "c")]),
        "info_node": ("id INTEGER PRIMARY KEY, hostname TEXT", [(1, one.host)]),
        "info_process": (
            "id INTEGER PRIMARY KEY, nid, pid, ppid, init, fini, start, end, command, environment",
            [(one.pid, 1, one.pid, one.parent, *lived, *lived, one.command, json.dumps(variables))],
        ),
        "info_agent": (
            "id INTEGER PRIMARY KEY, nid, pid, type, name, extdata",
            [(1, 1, one.pid, "GPU", "gfx942", json.dumps({"id": {"handle": one.agent}}))],
        ),
        "info_kernel_symbol": (
            "id INTEGER PRIMARY KEY, code_object_id, kernel_name, display_name",
            [(1, 1, f"{one.kernel}.kd", one.kernel)],
        ),
        "kernel_dispatch": (
            "id INTEGER PRIMARY KEY, nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end",
            [(1, 1, one.pid, 5, 1, 1, one.dispatch, 1, 1, one.begin + 100, one.begin + 200)],
        ),
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE rocpd_{kind}_1 ({columns})")
            places = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO rocpd_{kind}_1 VALUES ({places})", rows)


def _json(folder: Path, one: Recorded) -> None:
    handle, size = {"handle": one.agent}, {"x": 64, "y": 1, "z": 1}
    what = {"agent_id": handle, "queue_id": {"handle": 1}, "kernel_id": 1, "dispatch_id": one.dispatch}
    record = {"kind": 0, "operation": 0, "thread_id": 7, "correlation_id": {"internal": 1}}
    times = {"start_timestamp": one.begin + 100, "end_timestamp": one.begin + 200}
    traced = {**record, **times, "dispatch_info": {**what, "grid_size": size, "workgroup_size": size}}
    metadata = {"node": {"hostname": one.host}, "pid": one.pid, "init_time": one.begin, "fini_time": one.begin + 900}
    process = {
        "metadata": {**metadata, "command": one.command.split(), "config": {"output_path": f"/out/{one.begin}"}},
        "agents": [{"id": handle, "type": 2, "name": "gfx942"}],
        "kernel_symbols": [{}, {"kernel_id": 1, "formatted_kernel_name": one.kernel}],
        "buffer_records": {"kernel_dispatch": [traced]},
    }
    _text(folder / f"{one.name}_results.json", json.dumps({"rocprofiler-sdk-tool": [process]}))


def _csv(folder: Path, one: Recorded) -> None:
    header = "Kind,Agent_Id,Queue_Id,Dispatch_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp"
    row = f'KERNEL_DISPATCH,"Agent {one.agent}",1,{one.dispatch},"{one.kernel}",1,{one.begin},{one.begin + 100}'
    _text(folder / f"{one.name}_kernel_trace.csv", f"{header}\n{row}\n")


def _counted_csv(folder: Path, one: Recorded) -> None:
    header = (
        "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Name,Workgroup_Size,"
        "Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp"
    )
    row = f'1,{one.dispatch},"Agent {one.agent}",1,{one.pid},5,64,"{one.kernel}",64,SQ_WAVES,1,{one.begin},{one.begin}9'
    _text(folder / f"{one.name}_counter_collection.csv", f"{header}\n{row}\n")


def _rocprof(folder: Path, one: Recorded) -> None:
    header = "Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,SQ_WAVES,BeginNs,EndNs"
    row = f'{one.dispatch},"{one.kernel}",{one.agent},0,{one.pid},42,1024,256,16,{one.begin},{one.begin + 100}'
    _text(folder / f"results_{one.name}.csv", f"{header}\n{row}\n")


def _kineto(folder: Path, one: Recorded) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": one.kernel, "pid": one.agent, "tid": 7, "ts": one.begin, "dur": 2}
    arguments = {"device": one.agent, "stream": 7, "correlation": 3, "grid": [1, 1, 1], "block": [64, 1, 1]}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": one.pid, "tid": 1, "ts": 1, "dur": 1}
    events = [{**kernel, "args": arguments}, {**call, "args": {"correlation": 3}}]
    _text(folder / f"{one.name}.pt.trace.json", json.dumps({"schemaVersion": 1, "traceEvents": events}))


def _ort(folder: Path, one: Recorded) -> None:
    session = {"cat": "Session", "pid": one.pid, "tid": 1, "args": {}}
    node = {"cat": "Node", "pid": one.pid, "tid": 1, "name": f"{one.kernel}_kernel_time", "ts": 11, "dur": 3}
    events = [
        {**session, "name": "model_loading_uri", "dur": 1, "ts": 1},
        {**node, "args": {"op_name": "Conv", "provider": "CPUExecutionProvider", "node_index": "0"}},
        {**session, "name": "model_run", "dur": 9, "ts": 10},
    ]
    _text(folder / f"profile_{one.name}.json", "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")


def _rocprof_compute(folder: Path, one: Recorded) -> None:
    header = "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES"
    row = f'{one.dispatch},{one.agent},1024,256,"{one.kernel}",{one.begin},{one.begin + 9},16'
    _text(folder / one.name / "pmc_perf.csv", f"{header}\n{row}\n")


def _thread_trace(folder: Path, one: Recorded) -> None:
    path = folder / f"ui_output_agent_{one.agent}_dispatch_{one.dispatch}"
    _text(path / "filenames.json", json.dumps({"gfxv": "vega", "global_begin_time": 0, "wave_filenames": {}}))
    heading = [f"; {one.kernel}", 0, 0, f"{one.kernel}(int)", 7, 256, 0, 0, 0, 0]
    _text(path / "code.json", json.dumps({"code": [heading, ["s_endpgm", 0, 1, "", 7, 260, 1, 4, 3, 0]]}))


def _text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


FORMATS: Final[Mapping[str, Callable[[Path, Recorded], None]]] = {
    "rocpd": _rocpd,
    "rocprofv3 JSON": _json,
    "rocprofv3 CSV": _csv,
    "rocprofv3 CSV, counters alone": _counted_csv,
    "rocprof": _rocprof,
    "Kineto": _kineto,
    "ONNX Runtime": _ort,
    "rocprof-compute": _rocprof_compute,
    "thread trace": _thread_trace,
}
FIRST: Final = Recorded()
#: Differences of a pair's second; each ran after the first, as before and after a change.
OTHERS: Final[Mapping[str, Recorded]] = {
    "two processes": replace(FIRST, pid=42, name="42", begin=5_000, dispatch=2),
    "two programs": replace(FIRST, pid=42, name="42", begin=5_000, dispatch=2, command="./infer", kernel="softmax"),
    "two agents": replace(FIRST, pid=42, name="42", begin=5_000, agent=5601),
    "two thread traces": replace(FIRST, pid=42, name="42", begin=5_000, dispatch=9),
}


@pytest.mark.parametrize(("kind", "pair"), list(product(FORMATS, OTHERS)))
def test_a_pair_that_does_not_say_that_it_belongs_together_is_two_runs(kind: str, pair: str, tmp_path: Path) -> None:
    FORMATS[kind](tmp_path, FIRST)
    FORMATS[kind](tmp_path, OTHERS[pair])
    runs = discover_runs(tmp_path).runs
    assert len(runs) == 2
    assert [len(run.parts) for run in runs] == [1, 1]
    assert all(read_run(run).tables["kernels"].height == 1 for run in runs)


@pytest.mark.parametrize(("kind", "second"), list(product(FORMATS, FORMATS)))
def test_captures_of_two_programs_in_two_formats_are_two_runs(kind: str, second: str, tmp_path: Path) -> None:
    FORMATS[kind](tmp_path, FIRST)
    FORMATS[second](tmp_path, OTHERS["two programs"])
    runs = discover_runs(tmp_path).runs
    assert len(runs) == 2, [[part.name for part in run.parts] for run in runs]


def test_a_thread_trace_is_of_the_database_that_has_its_dispatch_and_of_no_other(tmp_path: Path) -> None:
    _rocpd(tmp_path, FIRST)
    _thread_trace(tmp_path, FIRST)
    (run,) = discover_runs(tmp_path).runs
    tables = read_run(run).tables
    assert set(tables["att_instructions"].select("kernel_id", "dispatch_id").rows()) == {(0, 0)}
    for other in (replace(FIRST, agent=5601), replace(FIRST, dispatch=9), replace(FIRST, kernel="softmax")):
        folder = tmp_path / f"{other.agent}-{other.dispatch}-{other.kernel}"
        _rocpd(folder, FIRST)
        _thread_trace(folder, other)
        assert len(discover_runs(folder).runs) == 2, other


def test_raw_files_say_which_process_was_traced(tmp_path: Path) -> None:
    second = replace(FIRST, dispatch=2)
    for one in (FIRST, second):
        _thread_trace(tmp_path, one)
        (tmp_path / f"{one.pid}_{one.agent}_shader_engine_0_{one.dispatch}.att").write_bytes(b"raw")
    (run,) = discover_runs(tmp_path).runs
    traces = read_run(run).tables["att_instructions"].select("capture", "source_dispatch_id").sort("capture").rows()
    assert traces == [("ui_output_agent_5600_dispatch_1", 1), ("ui_output_agent_5600_dispatch_2", 2)]
    other = tmp_path / "other"
    _thread_trace(other, FIRST)
    _rocpd(other, FIRST)
    (other / f"99_{FIRST.agent}_shader_engine_0_{FIRST.dispatch}.att").write_bytes(b"raw")
    assert len(discover_runs(other).runs) == 2, "another process made the trace"


def test_a_database_says_that_processes_are_of_one_job(tmp_path: Path) -> None:
    both = replace(FIRST, pid=42, name="42", dispatch=2)
    together_when = {
        "siblings alive at one time": both,
        "a child": replace(both, parent=41, command="./worker"),
        "another rank": replace(both, parent=99, rank=1),
        "another rank on another host": replace(both, host="other", rank=1),
    }
    for name, second in together_when.items():
        folder = tmp_path / name
        _rocpd(folder, replace(FIRST, rank=0) if second.rank is not None else FIRST)
        _rocpd(folder, second)
        (run,) = discover_runs(folder).runs
        assert read_run(run).tables["processes"].height == 2, name
    apart_when = {
        "children of process 1": (replace(FIRST, parent=1), replace(both, parent=1)),
        "siblings of another command": (FIRST, replace(both, command="./infer")),
        "a number used again": (FIRST, replace(both, parent=41, begin=9_000)),
        "a host that says no rank": (FIRST, replace(both, host="other")),
        "one rank twice": (replace(FIRST, rank=0), replace(both, rank=0, parent=99)),
    }
    for name, pair in apart_when.items():
        for one in pair:
            _rocpd(tmp_path / name, one)
        assert len(discover_runs(tmp_path / name).runs) == 2, name


def test_two_jobs_on_two_hosts_are_no_job_of_four(tmp_path: Path) -> None:
    for begin in (1_000, 9_000):
        for rank, host in enumerate(("one", "two")):
            pid = begin + rank
            _rocpd(tmp_path, replace(FIRST, pid=pid, name=f"{host}/{pid}", host=host, rank=rank, begin=begin))
    runs = discover_runs(tmp_path).runs
    assert sum(len(run.parts) for run in runs) == 4
    assert len(runs) == 4, "nothing says which ranks ran together"


def test_results_files_that_were_written_to_one_place_at_one_time_are_of_one_job(tmp_path: Path) -> None:
    _json(tmp_path, FIRST)
    _json(tmp_path, replace(FIRST, pid=42, name="42"))
    (run,) = discover_runs(tmp_path).runs
    assert len(run.parts) == 2


def test_passes_of_one_command_are_one_run_and_of_two_programs_two(tmp_path: Path) -> None:
    for number in (1, 2):
        ran = replace(FIRST, pid=40 + number, name=f"pass_{number}/host/{40 + number}", begin=5_000 * number)
        _rocpd(tmp_path / "one", ran)
        _rocpd(tmp_path / "two", replace(ran, command=f"./program{number}"))
    assert [len(run.parts) for run in discover_runs(tmp_path / "one").runs] == [2]
    assert [len(run.parts) for run in discover_runs(tmp_path / "two").runs] == [1, 1]


def test_four_programs_counted_in_one_folder_are_four_runs(tmp_path: Path) -> None:
    for number in range(4):
        one = replace(FIRST, pid=40 + number, kernel=f"kernel_{number}", name=f"pass_1/{40 + number}")
        _counted_csv(tmp_path, one)
    runs = discover_runs(tmp_path).runs
    assert [len(run.parts) for run in runs] == [1] * 4
    assert sum(read_run(run).tables["counters"].height for run in runs) == 4


def test_the_programs_of_several_passes_are_told_by_what_their_files_are_called(tmp_path: Path) -> None:
    for number, name in product((1, 2), ("train", "infer")):
        _counted_csv(tmp_path, replace(FIRST, kernel=name, name=f"pass_{number}/{name}"))
    runs = discover_runs(tmp_path).runs
    assert sorted([part.name for part in run.parts] for run in runs) == [
        ["pass_1/infer", "pass_2/infer"],
        ["pass_1/train", "pass_2/train"],
    ]


def test_what_was_taken_in_together_is_never_told_apart_again(tmp_path: Path) -> None:
    """A session of before may hold what today would be several."""
    _rocpd(tmp_path, FIRST)
    _rocpd(tmp_path, OTHERS["two programs"])
    assert len(discover_runs(tmp_path).runs) == 2
    assert len(the_run(tmp_path, "ingest it again").parts) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptureError, match="holds 0 runs"):
        the_run(tmp_path / "empty", "ingest it again")


def test_samples_of_devices_are_of_the_one_run_beside_them_or_of_none() -> None:
    run = Marks("41_results.db", "41")
    other = Marks("42_results.db", "42")
    devices = [Marks(f"card{i}.bin", is_devices=True) for i in range(2)]
    assert together([run, *devices]) == [[0, 1, 2]]
    assert together([run, other, *devices]) == [[0], [1], [2, 3]]
    assert together(devices) == [[0, 1]]


def test_a_process_that_two_files_repeat_is_one() -> None:
    one = StatedProcess(guid="a")
    assert together([Marks("a.db", "a", processes=(one,)), Marks("b.db", "b", processes=(one,))]) == [[0, 1]]


MAYBE: Final = st.one_of(st.none(), st.integers(0, 2))
PROCESSES: Final = st.builds(
    StatedProcess,
    guid=st.sampled_from([None, None, None, "g", "h"]),
    pid=MAYBE,
    parent_pid=MAYBE,
    host=st.sampled_from([None, "a", "b", "c"]),
    command=st.sampled_from([None, "x", "y"]),
    rank=MAYBE,
    start_ns=st.one_of(st.none(), st.integers(0, 12)),
    end_ns=st.one_of(st.none(), st.integers(0, 12)),
    output=st.sampled_from([None, None, "o"]),
)


def belong(a: StatedProcess, b: StatedProcess) -> bool:
    """The rule for two."""
    if a.guid is not None and a.guid == b.guid:
        return True
    one_command = a.command is not None and a.command == b.command
    ranks = one_command and a.rank is not None and b.rank is not None and a.rank != b.rank
    if a.host is None or b.host is None:
        return False
    if a.host != b.host:
        return ranks
    if a.start_ns is None or b.start_ns is None or a.end_ns is None or b.end_ns is None:
        return False
    if max(a.start_ns, b.start_ns) > min(a.end_ns, b.end_ns):
        return False
    parent = (a.pid is not None and a.pid == b.parent_pid) or (b.pid is not None and b.pid == a.parent_pid)
    siblings = one_command and a.parent_pid == b.parent_pid and a.parent_pid is not None and a.parent_pid > 1
    return parent or siblings or ranks or (one_command and a.output is not None and a.output == b.output)


def groups_of(count: int, pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    groups = [{i} for i in range(count)]
    for i, k in pairs:
        one, other = (next(group for group in groups if n in group) for n in (i, k))
        if one is not other:
            one |= other
            groups.remove(other)
    return {frozenset(group) for group in groups}


@given(st.lists(PROCESSES, max_size=9))
def test_they_are_joined_as_if_every_pair_were_compared(stated: list[StatedProcess]) -> None:
    joined: list[tuple[int, int]] = []
    belonging.join_related(((None, i, one) for i, one in enumerate(stated)), lambda i, k: joined.append((i, k)))
    numbered = combinations(range(len(stated)), 2)
    expected = [(i, k) for i, k in numbered if belong(stated[i], stated[k])]
    assert groups_of(len(stated), joined) == groups_of(len(stated), expected)


def test_what_is_joined_grows_with_the_files_and_not_with_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = 0
    real = belonging.join_related

    def counted(stated: object, join: belonging.Join) -> None:
        def one_more(first: int, second: int) -> None:
            nonlocal joins
            joins += 1
            join(first, second)

        real(stated, one_more)  # type: ignore[arg-type]

    monkeypatch.setattr("aaco_pipeline.capture.belonging.join_related", counted)
    facts = [
        StatedProcess("a", i, 1, f"job{i // 8}", i % 8, start_ns=i // 8 * 10, end_ns=i // 8 * 10 + 9)
        for i in range(2000)
    ]
    marks = [Marks(f"{i}", f"{i}", is_trace=True, processes=(one,)) for i, one in enumerate(facts)]
    assert [len(group) for group in together(marks)] == [8] * 250
    assert joins < 4 * len(marks)
