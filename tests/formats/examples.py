"""The smallest capture of each format, made here, by the name of its reader.

Traps and damage of a format are its own tests' business.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.formats.gpu_metrics.layouts import layout
from tests.formats.cupti import streams
from tests.formats.program.recorded import recorded


def _json(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def _text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _cupti(folder: Path) -> Path:
    path = folder / "41-1000.cupti"
    path.write_bytes(b"".join(streams.whole()))
    return path


def _gpu_metrics(folder: Path) -> Path:
    form = layout((1, 8))
    table = np.full(form.itemsize, 0xFF, np.uint8).view(form)
    table["structure_size"], table["format_revision"], table["content_revision"] = form.itemsize, 1, 8
    table["system_clock_counter"] = 10**9
    path = folder / "card0.bin"
    path.write_bytes(table.tobytes())
    return path


def _kineto(folder: Path) -> Path:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}
    arguments = {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 1, 1], "block": [64, 1, 1]}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    events = [{**kernel, "args": arguments}, {**call, "args": {"correlation": 3}}]
    return _json(folder / "trace.json", {"schemaVersion": 1, "traceEvents": events})


def _nsys(folder: Path) -> Path:
    path = folder / "report.sqlite"
    activity = '"start", "end", deviceId, contextId, streamId, correlationId, globalPid'
    process = 1 << 48 | 41 << 24
    sizes = "gridX, gridY, gridZ, blockX, blockY, blockZ"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'k'), (2, 'cudaLaunchKernel_v7000')")
        connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({activity}, demangledName, {sizes})")
        kernel = (10, 20, 0, 1, 7, 3, process, 1, 8, 1, 1, 64, 1, 1)
        connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 14)})", kernel)
        calls = 'CUPTI_ACTIVITY_KIND_RUNTIME ("start", "end", eventClass, globalTid, correlationId, nameId)'
        connection.execute(f"CREATE TABLE {calls}")
        connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (5, 6, 0, {process | 42}, 3, 2)")
    return path


def _ncu(folder: Path) -> Path:
    described = '"Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
    kernel = '"0","41","program","127.0.0.1","k","1","7","(64, 1, 1)","(8, 1, 1)","0","9.0","1024"'
    return _text(
        folder / "ncu.csv",
        "==PROF== Connected to process 41",
        f'"ID","Process ID",{described},"dram__bytes_read.sum"',
        ",".join(['""'] * 11 + ['"byte"']),
        kernel,
    )


def _ort_profile(folder: Path) -> Path:
    session = {"cat": "Session", "pid": 1, "tid": 1, "args": {}}
    node = {"cat": "Node", "pid": 1, "tid": 1, "name": "conv_kernel_time", "ts": 11, "dur": 3}
    events = [
        {**session, "name": "model_loading_uri", "dur": 1, "ts": 1},
        {**node, "args": {"op_name": "Conv", "provider": "CPUExecutionProvider", "node_index": "0"}},
        {**session, "name": "model_run", "dur": 9, "ts": 10},
    ]
    path = folder / "profile.json"
    path.write_text("[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n")
    return path


def _rocpd(folder: Path) -> Path:
    path = folder / "1_results.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rocpd_metadata_1 (tag TEXT, value TEXT)")
        connection.execute("INSERT INTO rocpd_metadata_1 VALUES ('schema_version', '3')")
        columns = "pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, start, end"
        connection.execute(f"CREATE TABLE rocpd_kernel_dispatch_1 (id INTEGER PRIMARY KEY, {columns})")
        connection.execute("INSERT INTO rocpd_kernel_dispatch_1 VALUES (1, 5, 5, 1, 1, 1, 100, 200)")
        connection.commit()
    return path


def _rocprof(folder: Path) -> Path:
    header = "Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,SQ_WAVES,BeginNs,EndNs"
    return _text(folder / "results.csv", header, '0,"k",8,0,41,42,1024,256,16,100,200')


def _prometheus(folder: Path) -> Path:
    labels = 'instance="node01",card="0"'
    return _text(
        folder / "scrapes.txt",
        "# HELP rocm_average_socket_power_watts Average power",
        f"rocm_average_socket_power_watts{{{labels}}} 412.0 1700000000000",
        f"rocm_average_socket_power_watts{{{labels}}} 415.0 1700000001000",
    )


def _rocprof_compute(folder: Path) -> Path:
    header = "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES"
    _text(folder / "workload" / "pmc_perf.csv", header, '0,2,1024,256,"k",100,200,16')
    return folder / "workload"


def _rocprofv3_csv(folder: Path) -> Path:
    header = "Kind,Agent_Id,Queue_Id,Dispatch_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp"
    return _text(folder / "1_kernel_trace.csv", header, 'KERNEL_DISPATCH,"Agent 2",1,1,"k",1,100,200')


def _rocprofv3_json(folder: Path) -> Path:
    handle = {"handle": 500}
    size = {"x": 64, "y": 1, "z": 1}
    what = {"agent_id": handle, "queue_id": {"handle": 1}, "kernel_id": 1, "dispatch_id": 1, "grid_size": size}
    record = {"kind": 0, "operation": 0, "thread_id": 7, "start_timestamp": 10, "end_timestamp": 20}
    traced = {**record, "correlation_id": {"internal": 1}, "dispatch_info": {**what, "workgroup_size": size}}
    process = {"metadata": {"pid": 7}, "agents": [{"id": handle, "type": 2, "name": "gfx942"}]}
    records = {"buffer_records": {"kernel_dispatch": [traced]}}
    return _json(folder / "1_results.json", {"rocprofiler-sdk-tool": [{**process, **records}]})


def _rocprof_db(folder: Path) -> Path:
    path = folder / "results.db"
    times = '"BeginNs" INTEGER, "EndNs" INTEGER'
    host = f'{times}, "pid" INTEGER, "tid" INTEGER, "Name" TEXT, "args" TEXT, "Index" INTEGER'
    device = f'{times}, "dev-id" INTEGER, "queue-id" INTEGER, "Name" TEXT, "pid" INTEGER, "tid" INTEGER'
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE KERN ("Index" INTEGER, "KernelName" TEXT)')
        connection.execute(f"CREATE TABLE HIP ({host})")
        connection.execute("INSERT INTO HIP VALUES (5, 6, 41, 42, 'hipLaunchKernel', '( )', 1)")
        connection.execute(f'CREATE TABLE OPS ({device}, "stream-id" INTEGER, "Index" INTEGER)')
        connection.execute("INSERT INTO OPS VALUES (10, 20, 0, 1, 'k', 41, 42, 0, 1)")
    return path


def _rpd(folder: Path) -> Path:
    path = folder / "trace.rpd"
    tables = {
        "metadata": ("id INTEGER PRIMARY KEY, tag, value", (1, "schema_version", "2")),
        "string": ("id INTEGER PRIMARY KEY, string", (1, "k")),
        "op": (
            "id INTEGER PRIMARY KEY, gpuId, queueId, start, end, description_id, opType_id",
            (1, 2, 0, 10, 20, 1, 2),
        ),
        "api": ("id INTEGER PRIMARY KEY, pid, tid, start, end, apiName_id, args_id", (1, 41, 42, 5, 6, 3, 4)),
        "api_ops": ("id INTEGER PRIMARY KEY, api_id, op_id", (1, 1, 1)),
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, (columns, row) in tables.items():
            connection.execute(f"CREATE TABLE rocpd_{kind} ({columns})")
            connection.execute(f"INSERT INTO rocpd_{kind} VALUES ({', '.join('?' * len(row))})", row)
        texts = [(2, "KernelExecution"), (3, "hipLaunchKernel"), (4, "")]
        connection.executemany("INSERT INTO rocpd_string VALUES (?, ?)", texts)
    return path


def _thread_trace(folder: Path) -> Path:
    path = folder / "ui_output_agent_5600_dispatch_3"
    _json(path / "filenames.json", {"gfxv": "vega", "global_begin_time": 0, "wave_filenames": {}})
    rows = [["; kernel", 0, 0, "kernel(int)", 7, 256, 0, 0, 0, 0], ["s_endpgm", 0, 1, "", 7, 260, 1, 4, 0, 0]]
    _json(path / "code.json", {"code": rows})
    return path


#: Makers of a capture in a folder, by the last word of the reader's module.
EXAMPLES: Final[Mapping[str, Callable[[Path], Path]]] = {
    "cupti": _cupti,
    "gpu_metrics": _gpu_metrics,
    "kineto": _kineto,
    "ncu": _ncu,
    "nsys": _nsys,
    "ort_profile": _ort_profile,
    "program": lambda folder: recorded(folder / "solve"),
    "prometheus": _prometheus,
    "rocpd": _rocpd,
    "rocprof": _rocprof,
    "rocprof_compute": _rocprof_compute,
    "rocprof_db": _rocprof_db,
    "rocprofv3_csv": _rocprofv3_csv,
    "rocprofv3_json": _rocprofv3_json,
    "rpd": _rpd,
    "thread_trace": _thread_trace,
}
