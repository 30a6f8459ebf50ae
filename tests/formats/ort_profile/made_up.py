"""Made-up profiles of ONNX Runtime, and reading them, for the tests of this folder."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import polars as pl
from hypothesis import HealthCheck, settings

from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import Evidence, evidence_frame

Event = dict[str, Any]

CPU = "CPUExecutionProvider"
AXIS = 1_000_000_007
REAL = [("control_flow", 1), ("squeezenet", 1), ("squeezenet", 2)]


class Real(Protocol):
    path: Path
    runs: int


Profiled = Callable[[str, int], Real]


def node(name: str, ts: int, dur: int, *, tid: int = 1, **args: str) -> Event:
    arguments = {"op_name": "Add", "provider": CPU, "node_index": "0", **args}
    shapes = {"output_type_shape": [{"float": [32, 64]}], "thread_scheduling_stats": ""}
    return event("Node", f"{name}_kernel_time", ts, dur, tid=tid, args={**arguments, **shapes})


def call(name: str, ts: int, dur: int, *, tid: int = 1, **args: str) -> Event:
    return event("Session", name, ts, dur, tid=tid, args=args)


def event(category: str, name: str, ts: int, dur: int, *, tid: int = 1, args: dict[str, Any]) -> Event:
    return {"cat": category, "pid": 9, "tid": tid, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": args}


def text(events: Iterable[Event], *, ascii_only: bool = False) -> bytes:
    """The events as the runtime writes them: one a line, a comma after each but the last."""
    lines = ",\n".join(json.dumps(one, ensure_ascii=ascii_only) for one in events)
    return f"[\n{lines}\n]\n".encode()


def written(folder: Path, content: bytes | Iterable[Event], name: str = "profile.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else text(content))
    return path


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    return ort_profile.read(path, axis_start_ns=AXIS, process_id=3, limits=limits)


LOADING = call("model_loading_uri", 0, 5)

#: Two runs of three nodes, the second of which holds the first, and one node after the last run.
SMALL = [
    LOADING,
    node("inner", 12, 3),
    node("outer", 11, 6, op_name="If"),
    node("last", 18, 9),
    call("model_run", 10, 20),
    node("inner", 42, 3),
    node("outer", 41, 7, op_name="If"),
    node("last", 49, 2),
    call("model_run", 40, 15),
    node("late", 60, 4),
]


def rows(reading: CaptureTables, *columns: str) -> list[tuple[Any, ...]]:
    named = reading.tables["dispatches"].join(
        reading.tables["kernels"].select("kernel_id", "name", "short_name"), on="kernel_id"
    )
    return named.sort("dispatch_id").select(columns).rows()


def items(reading: CaptureTables) -> dict[str, Evidence]:
    evidence_frame("kernel_trace", reading.evidence)  # an item that is not present must have a reason
    return {item.item: item for item in reading.evidence}


def same(left: CaptureTables, right: CaptureTables) -> bool:
    return all(left.tables[name].equals(right.tables[name]) for name in ("kernels", "dispatches", "api_calls"))


def events_of(path: Path) -> list[Event]:
    loaded: list[Event] = json.loads(path.read_bytes())
    return loaded


def is_node(one: Event) -> bool:
    return bool(one["cat"] == "Node") and str(one["name"]).endswith("_kernel_time")


def conserved(dispatches: pl.DataFrame) -> bool:
    """Return whether the self times below every top-level dispatch sum to its duration, and none is negative."""
    all_rows = {row["dispatch_id"]: row for row in dispatches.iter_rows(named=True)}
    sums: Counter[int] = Counter()
    for row in all_rows.values():
        top = row
        while top["parent_dispatch_id"] is not None:
            top = all_rows[top["parent_dispatch_id"]]
        sums[top["dispatch_id"]] += row["self_ns"]
    return all(row["self_ns"] >= 0 for row in all_rows.values()) and all(
        all_rows[top]["end_ns"] - all_rows[top]["start_ns"] == total for top, total in sums.items()
    )


#: A profile that was cut, and one that is packed.
CUT = text([SMALL[0], SMALL[1], SMALL[4]]).rstrip()
PACKED = gzip.compress(text(SMALL * 20), mtime=0)
from_disk = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
