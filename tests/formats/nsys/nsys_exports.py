"""Makes small exports of Nsight Systems in the schemas of several releases, with the columns that each release has.

Between them tables and columns were renamed, and 2019's has no more than the first documentation of the format lists.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

PID: Final = 4242
#: Hardware and virtual machine 1, process 4242; its thread 4243.
PROCESS: Final = 1 << 48 | PID << 24
THREAD: Final = PROCESS | 4243
NO_STREAM: Final = 0xFFFFFFFF
_ACTIVITY: Final = "start, end, deviceId, contextId, streamId, correlationId"
_SIZES: Final = "gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory"
_COPY: Final = "bytes, copyKind, srcDeviceId, dstDeviceId"
_KERNEL: Final = f"registersPerThread, {_SIZES}, localMemoryPerThread"
_GPU_2019: Final = (
    "deviceId, name, numMultiprocessors, numThreadsPerWarp, computeCapabilityMajor, computeCapabilityMinor"
)
_GPU: Final = (
    "id, name, busLocation, totalMemory, clockRate, smCount, l2CacheSize, threadsPerWarp, maxShmemPerSm, "
    "computeMajor, computeMinor, cuDevice"
)
_COMMON: Final = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "PROCESSES": "globalPid, pid, name",
    "ANALYSIS_DETAILS": "globalVid, duration, startTime, stopTime",
    "TARGET_INFO_SYSTEM_ENV": "globalVid, devStateName, name, nameEnum, value",
}
#: Tables with their columns, by release.
SCHEMAS: Final[Mapping[str, Mapping[str, str]]] = {
    "2019.3": {
        **_COMMON,
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId, returnValue",
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, demangledName, shortName, {_KERNEL}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY}, {_COPY}",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY}, bytes, value",
        "NVTX_EVENTS": "start, end, eventType, rangeId, text, globalTid, endGlobalTid, domainId",
        "TARGET_INFO_CUDA_GPU": _GPU_2019,
    },
    "2022.4": {
        **_COMMON,
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, callchainId",
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, globalPid, demangledName, shortName, mangledName, {_KERNEL}, "
        "graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY}, globalPid, {_COPY}, graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY}, globalPid, bytes, value, graphNodeId",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY}, globalPid, syncType, eventId",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY}, globalPid, graphId, graphExecId",
        "NVTX_EVENTS": "start, end, eventType, rangeId, text, globalTid, textId, domainId",
        "TARGET_INFO_GPU": _GPU,
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs, utcTime, localTime",
        "DIAGNOSTIC_EVENT": "timestamp, timestampType, source, severity, text, globalPid",
        "META_DATA_CAPTURE": "name, value",
        "META_DATA_EXPORT": "name, value",
        "ProcessStreams": "globalPid, filenameId, contentId",
    },
}
_LATEST: Final = {
    **SCHEMAS["2022.4"],
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, greenContextId, globalPid, demangledName, shortName, mangledName, "
    f"{_KERNEL}, graphNodeId, graphId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY}, globalPid, deprecatedSyncType, syncType, "
    "eventId, eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp, deviceId, contextId, streamId, correlationId, globalPid, eventId, "
    "eventSyncId",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid, uuid, numMultiprocessors",
    "MPI_RANKS": "globalTid, rank",
}
RELEASES: Final = ("2019.3", "2022.4", "2026.2")
STRINGS: Final = {
    1: "void saxpy<float>(int, T1, T1 *)",
    2: "saxpy",
    3: "_Z5saxpyIfEviT_PS0_",
    4: "cudaLaunchKernel_v7000",
    5: "cudaMemcpyAsync_v3020",
    6: "cudaDeviceSynchronize_v3020",
    7: "cuLaunchKernel",
    8: "step#0",
    9: "cudaMemsetAsync_v3020",
    10: "cudaGraphLaunch_v10000",
    11: "cudaStreamWaitEvent_v3020",
}
_OF_ALL: Final = {"globalPid": PROCESS, "globalTid": THREAD, "deviceId": 0, "contextId": 1, "streamId": 7}
_KERNEL_ROW: Final = {
    **{"gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 32},
    **{"staticSharedMemory": 1024, "dynamicSharedMemory": 512, "localMemoryPerThread": 16},
    **{"demangledName": 1, "shortName": 2, "mangledName": 3},
}
_GPU_ROW: Final = {
    **{"id": 0, "deviceId": 0, "cuDevice": 0, "name": "NVIDIA A100-SXM4-40GB", "busLocation": "0000:03:00.0"},
    **{"totalMemory": 42297524224, "clockRate": 1410000000, "smCount": 108, "numMultiprocessors": 108},
    **{"l2CacheSize": 41943040, "threadsPerWarp": 32, "numThreadsPerWarp": 32, "maxShmemPerSm": 167936},
    **{"computeMajor": 8, "computeMinor": 0, "computeCapabilityMajor": 8, "computeCapabilityMinor": 0},
}
#: A launch, a copy in, a fill and a wait; by table the rows, of which a release takes the columns that it has.
RECORDS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        {"start": 1000, "end": 1500, "eventClass": 0, "correlationId": 10, "nameId": 5},
        {"start": 2000, "end": 2400, "eventClass": 0, "correlationId": 11, "nameId": 9},
        {"start": 3000, "end": 3600, "eventClass": 0, "correlationId": 12, "nameId": 4},
        {"start": 4000, "end": 9100, "eventClass": 0, "correlationId": 13, "nameId": 6},
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ({"start": 1600, "end": 1900, "correlationId": 10, "bytes": 4096, "copyKind": 1},),
    "CUPTI_ACTIVITY_KIND_MEMSET": ({"start": 2500, "end": 2600, "correlationId": 11, "bytes": 64, "value": 0},),
    "CUPTI_ACTIVITY_KIND_KERNEL": ({"start": 5000, "end": 9000, "correlationId": 12, **_KERNEL_ROW},),
    # Numbered as before schema 3.25: 1 is a wait for the context.
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        {
            "start": 4100,
            "end": 9050,
            "correlationId": 13,
            "syncType": 1,
            "streamId": NO_STREAM,
            "eventSyncId": NO_STREAM,
        },
    ),
    "NVTX_EVENTS": ({"start": 900, "end": 9200, "eventType": 59, "text": "step#0", "domainId": 0},),
    "TARGET_INFO_CUDA_GPU": (_GPU_ROW,),
    "TARGET_INFO_GPU": (_GPU_ROW,),
    "TARGET_INFO_SYSTEM_ENV": (
        {"name": "Hostname", "value": "node7"},
        {"name": "NvDriverVersion", "value": "550.54.15"},
    ),
    "TARGET_INFO_SESSION_START_TIME": ({"utcEpochNs": 1_700_000_000_000_000_000},),
    "ANALYSIS_DETAILS": ({"duration": 10_000, "startTime": 5, "stopTime": 10_005},),
    "PROCESSES": ({"globalPid": PROCESS, "pid": PID, "name": "saxpy"},),
    "META_DATA_CAPTURE": (
        {"name": "PROCESS_0:COMMAND", "value": "./saxpy"},
        {"name": "PROCESS_0:ARGUMENT_0", "value": "--n"},
        {"name": "PROCESS_0:ARGUMENT_1", "value": "1024"},
        {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'OMP_NUM_THREADS="2"'},
        {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'SLURM_PROCID="3"'},
    ),
    "ProcessStreams": ({"globalPid": PROCESS},),
}


def made(path: Path, release: str = "2026.2", records: Mapping[str, Sequence[Mapping[str, Any]]] = RECORDS) -> Path:
    """An export in the schema of a release; rows lose the columns, and the tables, that it does not have."""
    schema = {**SCHEMAS, "2026.2": _LATEST}[release]
    exported = {"2022.4": "3.2.0", "2026.2": "3.24.14"}.get(release)
    stated: list[Mapping[str, Any]] = [
        {"name": "EXPORT_SCHEMA_VERSION", "value": exported},
        {"name": "EXPORT_PRODUCT_VERSION", "value": release},
    ]
    every: dict[str, Sequence[Mapping[str, Any]]] = {"META_DATA_EXPORT": stated, **records}
    with closing(sqlite3.connect(path)) as database, database:
        for table, columns in schema.items():
            declared = ", ".join('"end"' if column == "end" else column for column in columns.split(", "))
            database.execute(f"CREATE TABLE {table} ({declared})")
            names = {column.split()[0] for column in columns.split(", ")}
            for row in every.get(table, ()):
                own = {name: value for name, value in {**_OF_ALL, **row}.items() if name in names}
                listed = ", ".join(f'"{name}"' for name in own)
                marks = ", ".join("?" * len(own))
                database.execute(f"INSERT INTO {table} ({listed}) VALUES ({marks})", list(own.values()))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
    return path


def changed(path: Path, *statements: str) -> Path:
    """The export after some SQL."""
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path
