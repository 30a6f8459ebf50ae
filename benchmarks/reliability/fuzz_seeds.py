"""Small captures of every reader for `fuzz_readers.py`, mostly from the tests, and how each is read."""

import base64
import gzip
import json
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from onnx import TensorProto, helper

from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.errors import CaptureError, ModelError
from aaco_pipeline.formats import (
    cupti,
    gpu_metrics,
    kineto,
    native,
    nsys,
    onnx,
    ort_profile,
    prometheus,
    rocpd,
    rocprof,
    rocprof_compute,
    rocprof_db,
    rocprofv3_csv,
    rocprofv3_json,
    rpd,
    thread_trace,
)
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.gpu_metrics.layouts import SELF_DESCRIBING, VERSIONS
from aaco_pipeline.formats.native import scheduler, telemetry
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import evidence_frame
from aaco_pipeline.lake.validation import conform
from benchmarks.performance.generate_rocpd import generate
from tests.formats.examples import EXAMPLES
from tests.formats.gpu_metrics import test_gpu_metrics as gpu_tests
from tests.formats.kineto import test_kineto as kineto_tests
from tests.formats.kineto import test_ranks as rank_tests
from tests.formats.native import test_native as native_tests
from tests.formats.native import test_scheduler as scheduler_tests
from tests.formats.native import test_telemetry as telemetry_tests
from tests.formats.nsys import nsys_exports
from tests.formats.prometheus import test_prometheus as series_tests
from tests.formats.rocprofv3_csv import test_rocprofv3_csv as csv_tests
from tests.formats.rocprofv3_json import test_rocprofv3_json as json_tests
from tests.formats.thread_trace import test_thread_trace as trace_tests

KEY: Final = "20260101T000000Z-00000000"
#: Far below what a real capture may hold: the inputs are a few kilobytes.
LIMITS: Final = Limits(file_bytes=256 << 20, line_bytes=64 << 20, events=1_000_000)
#: A capture: the content of its files by their path below its folder.
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Target:
    """A reader with captures to damage. `read` gets the folder they were written to; `merged` are put together too."""

    seeds: Callable[[], list[Files]]
    read: Callable[[Path], Iterable[CaptureTables]]
    merged: bool = True
    refusals: tuple[type[Exception], ...] = (CaptureError,)


def outcome(target: Target, folder: Path, *, merge: bool) -> str:
    """`read` or `refused`; raises what a reader must not raise."""
    try:
        readings = list(target.read(folder))
        for reading in readings:
            _conforms(reading)
        if merge and target.merged and readings:
            _conforms(merge_parts([NamedReading(f"part {at}", one) for at, one in enumerate(readings)]))
    except target.refusals as error:
        if not str(error).strip() or "\n" in str(error):
            raise AssertionError(f"not one line: {str(error)!r}") from error
        return "refused"
    return "read"


def _conforms(reading: CaptureTables) -> None:
    for name, frame in reading.tables.items():
        conform(contract(name), frame, KEY)
    evidence_frame("fuzz", reading.evidence)


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _made(write: Callable[[Path], object]) -> Files:
    """Files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        return {
            path.relative_to(name).as_posix(): path.read_bytes()
            for path in sorted(Path(name).rglob("*"))
            if path.is_file()
        }


def _only(folder: Path) -> Path:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if not files:
        raise CaptureError(f"{folder}: the damage took every file")
    return files[0]


def _one(read: Callable[[Path, Limits], CaptureTables]) -> Callable[[Path], list[CaptureTables]]:
    return lambda folder: [read(_only(folder), LIMITS)]


def _rocpd() -> list[Files]:
    def small(folder: Path) -> None:
        """Pages of half a kilobyte: a random byte is then rarely one of an empty page."""
        generate(folder / "1_results.db", 6)
        with closing(sqlite3.connect(folder / "1_results.db", isolation_level=None)) as database:
            database.execute("PRAGMA page_size = 512")
            database.execute("VACUUM")

    plain = _made(small)
    return [plain, {"1_results.db.gz": gzip.compress(plain["1_results.db"], 1)}]


def _kineto() -> list[Files]:
    events = [
        kineto_tests.event(),
        kineto_tests.call(),
        kineto_tests.event(cat="gpu_memcpy", name="Memcpy HtoD", args={"device": 0, "stream": 7, "bytes": 4096}),
        kineto_tests.event(cat="cuda_sync", name="Stream Sync", args={"device": 0, "stream": 7, "cuda_sync_kind": "S"}),
        kineto_tests.call(cat="cpu_op", name="aten::mm", args={"Input Dims": [[2, 3]], "Input type": ["float"]}),
        kineto_tests.call(cat="user_annotation", name="ProfilerStep#4"),
        {"ph": "s", "cat": "fwdbwd", "name": "f", "id": 3, "pid": 40, "tid": 41, "ts": 7.125},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        *rank_tests.events(0)[:6],
    ]
    head = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "deviceProperties": [{"id": 0, "name": "MI300X"}]}
    plain = _json({**head, "traceEvents": events})
    return [{"trace.json": plain}, {"trace.json": _json(events)}, {"trace.json.gz": gzip.compress(plain, 1)}]


def _kineto_ranks() -> list[Files]:
    def two(folder: Path, *, last: bool) -> None:
        for rank in (0, 1):
            rank_tests.written(folder / f"rank{rank}.json", rank, last=last, steps=(4, 5, 6, 7, 8, 9))

    return [_made(partial(two, last=last)) for last in (False, True)]


def _read_ranks(folder: Path) -> list[CaptureTables]:
    """Group the ranks of every input; the events, which are read as any trace's, of one in sixteen."""
    runs = kineto.together(sorted(folder.iterdir()))
    if sum(path.stat().st_size for path in folder.iterdir()) % 16:
        return []
    return [kineto.read(path, LIMITS) for run in runs for path in run.paths]


def _ort_profile() -> list[Files]:
    session = {"cat": "Session", "pid": 1, "tid": 1, "ph": "X", "args": {}}
    told = {
        "op_name": "Conv", "provider": "CPUExecutionProvider", "node_index": "3", "thread_scheduling_stats": "",
        "input_type_shape": [{"float": [1, 3]}, {"int64": []}], "output_type_shape": [{"float": [1, 8]}],
        "parameter_size": "24", "activation_size": "12", "output_size": "32",
    }  # fmt: skip
    node = {"cat": "Node", "pid": 1, "tid": 1, "ph": "X"}
    events = [
        {**session, "name": "model_loading_uri", "dur": 1, "ts": 1},
        {**session, "name": "session_initialization", "dur": 4, "ts": 3},
        {**node, "name": "conv_fence_before", "ts": 11, "dur": 0, "args": {"op_name": "Conv"}},
        {**node, "name": "conv_kernel_time", "ts": 11, "dur": 3, "args": told},
        {**node, "name": "loop_kernel_time", "ts": 14, "dur": 5, "args": {**told, "op_name": "Loop"}},
        {**node, "name": "inner_kernel_time", "ts": 15, "dur": 2, "args": told},
        {**session, "name": "SequentialExecutor::Execute", "dur": 9, "ts": 10},
        {**session, "name": "model_run", "dur": 10, "ts": 10},
    ]
    plain = b"[\n" + b",\n".join(map(_json, events)) + b"\n]\n"
    return [{"profile.json": plain}, {"profile.json.gz": gzip.compress(plain, 1)}]


def _rocprofv3_csv() -> list[Files]:
    kernels = csv_tests.KERNELS + "".join(
        csv_tests.KERNEL.format(agent="Agent 1", queue=1, dispatch=d, name=f"k{d}", link=d, start=9 * d, end=9 * d + 5)
        for d in (1, 2, 3)
    )
    counters = csv_tests.COUNTERS + "".join(
        csv_tests.COUNTER.format(d=d, name=f"k{d}", counter=c, value=4.5, start=9 * d, end=9 * d + 5)
        for d in (1, 2)
        for c in ("SQ_WAVES", "TCC_HIT")
    )
    calls = csv_tests.CALLS + "HIP_RUNTIME_API,hipLaunchKernel,50,50,1,2,4\nHIP_RUNTIME_API,hipMalloc,50,50,2,5,6\n"
    agents = (
        "Node_Id,Logical_Node_Id,Agent_Type,Cu_Count,Num_Xcc,Wave_Front_Size,Name,Product_Name,Logical_Node_Type_Id\n"
        "0,0,CPU,8,0,0,EPYC,EPYC 9654,0\n1,1,GPU,304,8,64,gfx942,MI300X,0\n"
    )
    copies = (
        '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp"\n"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",1,"Agent 0","Agent 1",3,20,40\n'
    )
    statistics = (
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n"k1",3,9,3,1,1,5,2'
    )
    samples = (
        "Sample_Timestamp,Exec_Mask,Dispatch_Id,Instruction,Instruction_Comment,Correlation_Id\n"
        "12,18446744073709551615,1,s_endpgm,a.hip:3,1\n"
    )
    allocations = (
        '"Kind","Operation","Agent_Id","Allocation_Size","Address","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"MEMORY_ALLOCATION","MEMORY_ALLOCATION_ALLOCATE","Agent 1",1024,"0x7f00",1,2,3\n'
    )
    texts = {
        "1_kernel_trace.csv": kernels, "1_counter_collection.csv": counters, "1_hip_api_trace.csv": calls,
        "1_agent_info.csv": agents, "1_memory_copy_trace.csv": copies, "1_kernel_stats.csv": statistics,
        "1_pc_sampling_host_trap.csv": samples, "1_memory_allocation_trace.csv": allocations,
    }  # fmt: skip
    return [
        {name: text.encode() for name, text in texts.items() if name in chosen}
        for chosen in (
            ("1_kernel_trace.csv", "1_counter_collection.csv", "1_agent_info.csv"),
            ("1_kernel_trace.csv", "1_hip_api_trace.csv", "1_memory_copy_trace.csv"),
            ("1_kernel_stats.csv", "1_pc_sampling_host_trap.csv", "1_memory_allocation_trace.csv"),
        )
    ]


def _rocprof() -> list[Files]:
    one = (
        "Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,lds,scr,arch_vgpr,SQ_WAVES,TCC_HIT_sum,BeginNs,EndNs\n"
        '0,"k<int, 3> [clone .kd]",8,0,41,42,1024,256,0,0,8,16,1.5,100,200\n1,"j",8,0,41,42,64,64,0,0,8,1,2,300,450\n'
    )
    two = "Dispatch_ID,GPU_ID,Queue_ID,PID,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES\n1,2,1,41,k.kd,5,9,16\n"
    sums = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k",3,900,300,75.5\n"j",1,300,300,24.5\n'
    return [{"results.csv": one.encode()}, {"results_41.csv": two.encode()}, {"results.stats.csv": sums.encode()}]


def _rocprof_compute() -> list[Files]:
    counters = (
        "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,SQ_WAVES,wave_size_1,TCC_HIT[0],Start_Timestamp,"
        'End_Timestamp\n0,2,1024,256,"k",16,64,7,100,200\n1,2,1024,256,"k",16,64,8,300,420\n'
    )
    long = (
        "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Counter_Name,"
        "Counter_Value\n2,0,1024,256,k,100,200,SQ_WAVES,16\n2,0,1024,256,k,100,200,TCC_HIT,7\n"
    )
    stamps = "Dispatch_ID,GPU_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n0,2,k,100,200\n1,2,k,300,420\n"
    machine = (
        "command,host_name,gpu_soc,numCU,num_xcd,sclk,hbmBW,compute_partition\n./a --token x,h,gfx942,304,8,2100,5300,"
    )
    roofline = "device,HBMBw,MALLBw,L2Bw,L1Bw,LDSBw,FP32Flops,FP64Flops\n0,4000,0,8000,16000,32000,122000,61000\n"
    settings = "profiling:\n  - a\n  - [1, 2]\nlevel: &x 3\nagain: *x\ndate: 2026-01-01\n"
    beside = {"sysinfo.csv": machine, "roofline.csv": roofline, "profiling_config.yaml": settings}
    wide = {"pmc_perf.csv": counters, "SQ_LEVEL_WAVES.csv": counters, "timestamps.csv": stamps, **beside}
    return [
        {f"workload/{name}": text.encode() for name, text in files.items()}
        for files in (wide, {"pmc_perf.csv": long, **beside})
    ]


def _thread_trace() -> list[Files]:
    traced = {name: text.encode() if isinstance(text, str) else _json(text) for name, text in trace_tests.FILES.items()}
    rows = [["s_endpgm", 0, 4, "a.cpp:3", 7, 64, 0, 0, 0, 0, 5, 3, [0, 0, 1, 2, 0, 0, 0, 0, 0, 0]]]
    sampled = {"code.json": _json({"code": rows}), "filenames.json": _json({"gfxv": "vega", "pc_sampling": True})}
    return [{f"{trace_tests.NAME}/{name}": text for name, text in files.items()} for files in (traced, sampled)]


def _gpu_metrics() -> list[Files]:
    values = [(gpu_tests.attribute("system_clock_counter"), 6, 0, [10**9]), (3, 3, 0, [1, 2, 3]), (1000, 1, 2, [-5])]
    tables = {
        f"{minor}": gpu_tests.made((major, minor), 2, system_clock_counter=[10**9, 2 * 10**9]).tobytes()
        for major, minor in VERSIONS
        if (major, minor) != SELF_DESCRIBING
    }
    tables["9"] = gpu_tests.described(values) + gpu_tests.described(values, surplus=b"\0" * 3)
    folder = {"dumps/card0.bin": tables["8"], "dumps/card1/a.bin": tables["3"], "dumps/notes.txt": b"one\n"}
    return [*({"card0.bin": content} for content in tables.values()), folder]


def _prometheus() -> list[Files]:
    made = [{name: form.encode()} for name, form in series_tests.every_form().items()]
    (text,) = (files["a.prom"] for files in made if "a.prom" in files)
    return [*made, {"a.prom.gz": gzip.compress(text, 1)}, {"b.prom": text.replace(b" 1700", b" 17")}]


def _telemetry() -> list[Files]:
    count = 5
    columns = telemetry_tests.raw_columns(
        count, process_cpu_ns=[5, 9, 12, 20, 30], rss_pages=[1, 2, 3, 4, 5], segment=[0, 0, 0, None, None],
        host_busy_ticks=[1, 3, 5, 7, 9], host_idle_ticks=[1, 1, 2, 2, 5], pressure_some_us=[0, 1, 5, 9, 9],
        load_1m_hundredths=[100, 100, 101, 103, 104], clock_khz=[10**6] * count,
    )  # fmt: skip
    tables = gpu_tests.made((1, 7), 2, system_clock_counter=[5, 6], energy_accumulator=[0, 65536 * 200]).tobytes()
    recorded = {"device": "card1", "period_ns": 10**9, "failure": None, "times_ns": [5 * 10**9, 6 * 10**9]}
    packed = base64.b64encode(zlib.compress(tables)).decode()
    gpu = {"sources": ["sysfs"], "reason": None, "samples": [{**recorded, "tables": packed}]}
    segment = telemetry_tests.a_segment(reasons={"rss_pages": "not permitted"}, overruns=2)
    reasons = {"clock_khz": "no cpufreq"}
    documents = [
        telemetry_tests.a_document(columns, segments=[segment], reasons=reasons, overruns=3, thinned=1),
        telemetry_tests.a_document(columns, segments=[segment], gpu=gpu),
    ]
    return [{telemetry.TELEMETRY_FILE: _json(document)} for document in documents]


def _read_telemetry(folder: Path) -> list[CaptureTables]:
    return [telemetry.read(telemetry.load(folder / telemetry.TELEMETRY_FILE, LIMITS), telemetry_tests.ZERO)]


def _scheduler() -> list[Files]:
    one = [
        *("@s[1000, 0, 101, 100, 1, 0]: 1", "@w[1500, 1, 101]: 1", "@s[1700, 1, 0, 0, 0, 101]: 1", ""),
        *("@s[2000, 1, 101, 100, 0, 9]: 1", "@s[2300, 1, 9, 9, 16, 101]: 1", "@s[2400, 1, 101, 100, 32, 9]: 1"),
    ]
    texts = {"bpftrace": "".join(f"{line}\n" for line in one), "perf": scheduler_tests.PERF}
    return [
        {
            scheduler.SCHEDULER_FILE: _json(
                {**scheduler_tests.scheduler_document(tool=tool), "file": "events.gz", "lost": 2, "remarks": ["slow"]}
            ),
            "events.gz": gzip.compress(text.encode(), 1),
        }
        for tool, text in texts.items()
    ]


def _read_scheduler(folder: Path) -> list[CaptureTables]:
    document = telemetry.load(folder / scheduler.SCHEDULER_FILE, LIMITS)
    return [scheduler.read(document, scheduler.event_lines(folder, "events.gz"), {100}, 0, LIMITS)]


def _native() -> list[Files]:
    plain = {f"{name}.json": _json(document) for name, document in native_tests.DOCUMENTS.items()}
    clock = {"monotonic_ns": 5, "boottime_ns": 9, "uncertainty_ns": 1}
    profiled = {**native_tests.DOCUMENTS["trace"], "boot_clock_before": clock, "boot_clock_after": clock}
    profiled["markers"] = {"library": None, "missing": "no roctx"}
    asked = {"name": "base", "kind": "base", "folder": "rocprofv3/pass_1", "command": ["rocprofv3"], "counters": []}
    passes = [{**asked, "kernel": None, "median_latency_ns": 5.5, "distortion": 1.25}]
    head = {**native_tests.DOCUMENTS["capture"], "rocprofv3": {"release": "7.0", "passes": passes}}
    return [plain, {**plain, "capture.json": _json(head), "rocprofv3/pass_1/base.json": _json(profiled)}]


def _read_native(folder: Path) -> list[CaptureTables]:
    native.probe(folder)
    capture = native.read(folder)
    tables = {
        "sessions": capture.sessions("f" * 16, "d" * 64),
        "processes": capture.processes(),
        "devices": capture.devices(),
        "iterations": capture.iterations(),
        "clock_domains": capture.clock_domains(),
    }
    for one in capture.profiler_passes:
        one.boot_clock  # noqa: B018  (a property that computes)
    return [CaptureTables(tables, capture.inference_evidence())]


def _onnx() -> list[Files]:
    def value(name: str, shape: list[int | str | None]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)
    extents = helper.make_tensor("s", TensorProto.INT64, [2], [4, -1])
    body = helper.make_graph([helper.make_node("Relu", ["y"], ["z"])], "body", [], [value("z", [None, 4])])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="first"),
        helper.make_node("Reshape", ["y", "s"], ["r"]),
        helper.make_node("If", ["c"], ["o"], then_branch=body, else_branch=body),
        helper.make_node("Conv", ["x", "w"], ["k"], pads=[0, 1], auto_pad="SAME_UPPER", alpha=0.5),
        helper.make_node("Constant", [], ["f"], value_floats=[0.25] * 8),
    ]
    inputs = [value("x", ["batch", 4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "graph", inputs, [value("o", [None, 4]), value("r", [4, None])], [weight, extents])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    linked = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)
    linked.ClearField("float_data")
    linked.data_location = TensorProto.EXTERNAL
    linked.external_data.add(key="location", value="../../weights.bin")
    small = helper.make_graph(nodes[:1], "graph", inputs[:1], [value("y", [None, 4])], [linked])
    other = helper.make_model(small, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return [{"model.onnx": one.SerializeToString()} for one in (model, other)]


def _read_onnx(folder: Path) -> list[CaptureTables]:
    kept = onnx.graph_only(folder / "model.onnx")
    graph = onnx.read(kept, "model.onnx")
    inferred = onnx.inferred_shapes(kept, {"x": [2, 4]})
    onnx.typed_edges(graph.edges, inferred.types)
    return []


def _cupti() -> list[Files]:
    plain = _made(EXAMPLES["cupti"])
    return [plain, {f"{name}.gz": gzip.compress(content, 1) for name, content in plain.items()}]


def _nsys() -> list[Files]:
    exports = [_made(partial(_nsys_export, release)) for release in nsys_exports.RELEASES]
    return [_made(EXAMPLES["nsys"]), *exports]


def _nsys_export(release: str, folder: Path) -> Path:
    return nsys_exports.made(folder / "report.sqlite", release)


def _rocprof_db() -> list[Files]:
    return [_made(EXAMPLES["rocprof_db"])]


def _rpd() -> list[Files]:
    return [_made(EXAMPLES["rpd"])]


def _rocprofv3_json() -> list[Files]:
    plain = _made(lambda folder: json_tests.written(folder / "1_results.json", json_tests.every_kind()))
    return [plain, {"1_results.json.gz": gzip.compress(plain["1_results.json"], 1)}]


TARGETS: Final[Mapping[str, Target]] = {
    "rocpd": Target(_rocpd, _one(rocpd.read)),
    "rocprof_db": Target(_rocprof_db, _one(rocprof_db.read)),
    "rpd": Target(_rpd, _one(rpd.read)),
    "nsys": Target(_nsys, _one(nsys.read)),
    "cupti": Target(_cupti, _one(cupti.read)),
    "rocprofv3_json": Target(_rocprofv3_json, _one(rocprofv3_json.read)),
    "rocprofv3_csv": Target(_rocprofv3_csv, lambda folder: [rocprofv3_csv.read_run(sorted(folder.iterdir()), LIMITS)]),
    "rocprof": Target(_rocprof, _one(rocprof.read)),
    "rocprof_compute": Target(_rocprof_compute, _one(rocprof_compute.read)),
    "thread_trace": Target(_thread_trace, _one(thread_trace.read)),
    "kineto": Target(_kineto, _one(kineto.read)),
    "kineto_ranks": Target(_kineto_ranks, _read_ranks),
    "ort_profile": Target(_ort_profile, _one(ort_profile.read)),
    "gpu_metrics": Target(_gpu_metrics, _one(gpu_metrics.read)),
    "prometheus": Target(_prometheus, _one(prometheus.read)),
    "telemetry": Target(_telemetry, _read_telemetry, merged=False),
    "scheduler": Target(_scheduler, _read_scheduler, merged=False),
    "native": Target(_native, _read_native, merged=False),
    "onnx": Target(_onnx, _read_onnx, merged=False, refusals=(ModelError,)),
}
