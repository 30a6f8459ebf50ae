"""Generate a rocpd database (schema 3) of any number of dispatches, the same for the same seed."""

import argparse
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

GUID: Final = "00003fdc-92cb-72cb-9169-c7e541b1fcdf"
CHUNK: Final = 50_000
_KEY: Final = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, guid TEXT DEFAULT '@' NOT NULL"
_OWNER: Final = "nid INTEGER NOT NULL, pid INTEGER NOT NULL"
_TIMES: Final = "start BIGINT NOT NULL, end BIGINT NOT NULL"
_DATA: Final = "extdata JSONB DEFAULT '{}' NOT NULL"
#: Columns of schema 3 by kind of table, in the writer's order and types.
SCHEMA: Final = {
    "metadata": "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": f"{_KEY}, string TEXT NOT NULL",
    "info_node": f"{_KEY}, hash BIGINT NOT NULL, machine_id TEXT NOT NULL, system_name TEXT, "
    "hostname TEXT, release TEXT, "
    "version TEXT, hardware_name TEXT, domain_name TEXT",
    "info_process": f"{_KEY}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, init BIGINT, fini BIGINT, "
    f"start BIGINT, end BIGINT, command TEXT, environment JSONB DEFAULT '{{}}' NOT NULL, {_DATA}",
    "info_thread": f"{_KEY}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, "
    "tid INTEGER NOT NULL, name TEXT, "
    f"start BIGINT, end BIGINT, {_DATA}",
    "info_agent": f"{_KEY}, {_OWNER}, type TEXT, absolute_index INTEGER, logical_index INTEGER, type_index INTEGER, "
    f"uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT, product_name TEXT, user_name TEXT, {_DATA}",
    "info_queue": f"{_KEY}, {_OWNER}, name TEXT, {_DATA}",
    "info_stream": f"{_KEY}, {_OWNER}, name TEXT, {_DATA}",
    "info_pmc": f"{_KEY}, {_OWNER}, agent_id INTEGER, target_arch TEXT, event_code INT, instance_id INTEGER, "
    "name TEXT NOT NULL, symbol TEXT NOT NULL, description TEXT, long_description TEXT, component TEXT, units TEXT, "
    f"value_type TEXT, block TEXT, expression TEXT, is_constant INTEGER, is_derived INTEGER, {_DATA}",
    "info_code_object": f"{_KEY}, {_OWNER}, agent_id INTEGER, uri TEXT, load_base BIGINT, load_size BIGINT, "
    f"load_delta BIGINT, storage_type TEXT, {_DATA}",
    "info_kernel_symbol": f"{_KEY}, {_OWNER}, code_object_id INTEGER NOT NULL, kernel_name TEXT, display_name TEXT, "
    "kernel_object INTEGER, kernarg_segment_size INTEGER, kernarg_segment_alignment INTEGER, "
    "group_segment_size INTEGER, "
    f"private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER, accum_vgpr_count INTEGER, {_DATA}",
    "track": f"{_KEY}, nid INTEGER NOT NULL, pid INTEGER, tid INTEGER, name_id INTEGER, {_DATA}",
    "event": f"{_KEY}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, "
    f"call_stack JSONB DEFAULT '{{}}' NOT NULL, line_info JSONB DEFAULT '{{}}' NOT NULL, {_DATA}",
    "arg": f"{_KEY}, event_id INTEGER NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, "
    f"value TEXT, {_DATA}",
    "pmc_event": f"{_KEY}, event_id INTEGER, pmc_id INTEGER NOT NULL, value REAL DEFAULT 0.0, {_DATA}",
    "region": f"{_KEY}, {_OWNER}, tid INTEGER NOT NULL, {_TIMES}, name_id INTEGER NOT NULL, event_id INTEGER, {_DATA}",
    "sample": f"{_KEY}, track_id INTEGER NOT NULL, timestamp BIGINT NOT NULL, event_id INTEGER, {_DATA}",
    "kernel_dispatch": f"{_KEY}, {_OWNER}, tid INTEGER, agent_id INTEGER NOT NULL, kernel_id INTEGER NOT NULL, "
    f"dispatch_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, stream_id INTEGER NOT NULL, {_TIMES}, "
    "private_segment_size INTEGER, group_segment_size INTEGER, "
    + "".join(f"{what}_size_{axis} INTEGER NOT NULL, " for what in ("workgroup", "grid") for axis in "xyz")
    + f"region_name_id INTEGER, event_id INTEGER, {_DATA}",
    "memory_copy": f"{_KEY}, {_OWNER}, tid INTEGER, {_TIMES}, name_id INTEGER NOT NULL, dst_agent_id INTEGER, "
    "dst_address INTEGER, src_agent_id INTEGER, src_address INTEGER, size INTEGER NOT NULL, queue_id INTEGER, "
    f"stream_id INTEGER, region_name_id INTEGER, event_id INTEGER, {_DATA}",
    "memory_allocate": f"{_KEY}, {_OWNER}, tid INTEGER, agent_id INTEGER, type TEXT, level TEXT, {_TIMES}, "
    f"address INTEGER, size INTEGER NOT NULL, queue_id INTEGER, stream_id INTEGER, event_id INTEGER, {_DATA}",
}
_AGENT: Final = (
    '{"id":{"handle":5600},"type":2,"lds_size_in_kb":64,"wave_front_size":64,"num_xcc":8,"cu_count":304,"simd_per_cu":4,'
    '"max_engine_clk_fcompute":2100,"location_id":3072,"domain":0,"mem_banks":[{"heap_type":1,"width":8192,'
    '"mem_clk_max":1300,"size_in_bytes":206141652992}],"caches":[{"size":32,"level":1},{"size":4096,"level":2}],'
    '"hive_id":16755515690413798653}'
)
NODE, PROCESS, THREAD, AGENT = 1966562287, 28, 28, 2
FIRST_NS: Final = 10_714_201_075_920_031
STRINGS: Final = (
    *("", "HIP_RUNTIME_API_EXT", "HIP_COMPILER_API_EXT", "KERNEL_DISPATCH", "MEMORY_COPY", "MARKER_CORE_RANGE_API"),
    *("hipLaunchKernel", "__hipPushCallConfiguration", "MEMORY_COPY_HOST_TO_DEVICE", "roctxRangePushA"),
)
QUEUES, STREAMS, KERNELS = 5, 32, 200


def create(path: Path, guid: str = GUID) -> sqlite3.Connection:
    """An empty database at `path` with the tables of one process, its views as the plain names, and its lookup rows."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    suffix = add_tables(connection, guid)
    insert(
        connection, suffix, "metadata", ("tag", "value"), [("schema_version", "3"), ("uuid", suffix), ("guid", guid)]
    )
    insert(connection, suffix, "string", ("id", "string"), enumerate(STRINGS, 1))
    node = [(NODE, 8897504836413362797, "b24179676c5e4726b05ad347fb9b55cf", "37ca13315e70")]
    insert(connection, suffix, "info_node", ("id", "hash", "machine_id", "hostname"), node)
    process = [(PROCESS, NODE, 1, PROCESS, FIRST_NS, FIRST_NS + 10**13, "./train --steps 50", "{}")]
    columns: tuple[str, ...] = ("id", "nid", "ppid", "pid", "start", "fini", "command", "environment")
    insert(connection, suffix, "info_process", columns, process)
    insert(connection, suffix, "info_thread", ("id", "nid", "pid", "tid"), [(THREAD, NODE, PROCESS, THREAD)])
    columns = (
        *("id", "nid", "pid", "type", "absolute_index", "type_index", "name"),
        *("vendor_name", "product_name", "extdata"),
    )
    agents = [
        (0, NODE, PROCESS, "CPU", 0, 0, "Intel(R) Xeon(R)", "CPU", "Intel(R) Xeon(R)", "{}"),
        (AGENT, NODE, PROCESS, "GPU", AGENT, 0, "gfx942", "AMD", "AMD Instinct MI300X", _AGENT),
    ]
    insert(connection, suffix, "info_agent", columns, agents)
    for kind, count in (("queue", QUEUES), ("stream", STREAMS)):
        rows = [(one, NODE, PROCESS, f"{kind.title()} {one}") for one in range(count)]
        insert(connection, suffix, f"info_{kind}", ("id", "nid", "pid", "name"), rows)
    kernels = [
        (one, NODE, PROCESS, 1, f"_ZN2ck{one}kernelE.kd", kernel_name(one), 0, 0, 32, 64 + one % 64, 4)
        for one in range(1, KERNELS + 1)
    ]
    columns = (
        *("id", "nid", "pid", "code_object_id", "kernel_name", "display_name", "group_segment_size"),
        *("private_segment_size", "sgpr_count", "arch_vgpr_count", "accum_vgpr_count"),
    )
    insert(connection, suffix, "info_kernel_symbol", columns, kernels)
    return connection


def kernel_name(number: int) -> str:
    """A demangled template instance of the length that real ones have, about 400 characters."""
    return (
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<ck::tensor_layout::gemm::RowMajor, "
        "ck::tensor_layout::gemm::ColumnMajor, ck::tensor_layout::gemm::RowMajor, unsigned short, float, "
        f"ck::Sequence<{number}, 1, 8>, ck::Sequence<1, 0, 2>, ck::Sequence<1, 0, 2>, 2, 8, 8, true, 0, 1, 1>, true, "
        "(ck::InMemoryDataOperationEnum)0, 2, (ck::TailNumber)10>(ck::GridwiseGemm_xdl_cshuffle_v3::Argument)"
    )


def add_tables(connection: sqlite3.Connection, guid: str, schema: dict[str, str] | None = None) -> str:
    """The tables of one more process; returns their suffix."""
    suffix = "_" + guid.replace("-", "_")
    for kind, columns in (schema or SCHEMA).items():
        connection.execute(f'CREATE TABLE "rocpd_{kind}{suffix}" ({columns.replace("@", guid)})')
        connection.execute(f'CREATE VIEW IF NOT EXISTS "rocpd_{kind}" AS SELECT * FROM "rocpd_{kind}{suffix}"')
    return suffix


def insert(
    connection: sqlite3.Connection,
    suffix: str,
    kind: str,
    columns: Sequence[str],
    rows: "Iterator[tuple[object, ...]] | Sequence[tuple[object, ...]] | enumerate[str] | zip[tuple[object, ...]]",
) -> None:
    """Rows of some columns into the table of a kind; the others get what the schema sets."""
    listed = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    connection.executemany(f'INSERT INTO "rocpd_{kind}{suffix}" ({listed}) VALUES ({marks})', rows)


def generate(path: Path, dispatches: int, arguments: int = 1, seed: int = 0) -> None:
    """A database of `dispatches` with two calls each and `arguments` rows of `rocpd_arg` a call."""
    random = np.random.default_rng(seed)
    suffix = "_" + GUID.replace("-", "_")
    with closing(create(path)) as connection:
        now = FIRST_NS + 10**9
        for first in range(0, dispatches, CHUNK):
            count = min(CHUNK, dispatches - first)
            launch = now + np.cumsum(random.integers(2_000, 6_000, count))
            now = int(launch[-1])
            _calls(connection, suffix, first, launch, arguments)
            _dispatches(connection, suffix, (first, dispatches), launch, random)
        connection.commit()


def _calls(connection: sqlite3.Connection, suffix: str, first: int, launch: np.ndarray, arguments: int) -> None:
    count = 2 * len(launch)
    ids = np.arange(2 * first + 1, 2 * first + 1 + count)
    start = np.stack([launch - 900, launch], axis=1).ravel()
    end = np.stack([launch - 500, launch + 1_200], axis=1).ravel()
    category, name = np.tile([3, 2], len(launch)), np.tile([8, 7], len(launch))
    columns: tuple[str, ...] = ("id", "category_id", "stack_id", "parent_stack_id", "correlation_id")
    events = zip(*(one.tolist() for one in (ids, category, ids, 0 * ids, 0 * ids)), strict=True)
    insert(connection, suffix, "event", columns, events)
    owner = [[number] * count for number in (NODE, PROCESS, THREAD)]
    regions = zip(ids.tolist(), *owner, *(one.tolist() for one in (start, end, name, ids)), strict=True)
    columns = ("id", "nid", "pid", "tid", "start", "end", "name_id", "event_id")
    insert(connection, suffix, "region", columns, regions)
    for position in range(arguments):
        rows = ((event, position, "void const*", "data", hex(event * 4096)) for event in ids.tolist())
        insert(connection, suffix, "arg", ("event_id", "position", "type", "name", "value"), rows)


def _dispatches(
    connection: sqlite3.Connection, suffix: str, place: tuple[int, int], launch: np.ndarray, random: np.random.Generator
) -> None:
    first, total = place
    count = len(launch)
    ids = np.arange(first + 1, first + 1 + count)
    stack, event = 2 * ids, 2 * total + ids
    columns: tuple[str, ...] = ("id", "category_id", "stack_id", "parent_stack_id", "correlation_id")
    rows = zip(*(one.tolist() for one in (event, 0 * ids + 4, stack, stack, 0 * ids)), strict=True)
    insert(connection, suffix, "event", columns, rows)
    start = launch + 4_000 + random.integers(0, 500, count)
    values = (
        *(ids, np.full(count, NODE), np.full(count, PROCESS), np.full(count, THREAD), np.full(count, AGENT)),
        *(random.integers(1, KERNELS + 1, count), ids, random.integers(1, QUEUES, count)),
        *(random.integers(0, STREAMS, count), start, start + random.integers(1_500, 5_000, count), 0 * ids),
        *(random.choice([0, 16_384, 65_536], count), np.full(count, 256), ids * 0 + 1, ids * 0 + 1),
        *(256 * random.integers(1, 4_096, count), ids * 0 + 1, ids * 0 + 1, ids * 0 + 1, event),
    )
    columns = (
        *("id", "nid", "pid", "tid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", "start", "end"),
        *("private_segment_size", "group_segment_size", "workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
        *("grid_size_x", "grid_size_y", "grid_size_z", "region_name_id", "event_id"),
    )
    insert(connection, suffix, "kernel_dispatch", columns, zip(*(one.tolist() for one in values), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--dispatches", type=int, default=1_000_000)
    parser.add_argument("--arguments", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    generate(asked.path, asked.dispatches, asked.arguments, asked.seed)
    print(f"{asked.path}: {asked.dispatches} dispatches, {asked.path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
