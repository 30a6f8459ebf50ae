"""Folders as `aaco record` leaves them, written by hand: nothing is run, and every time is chosen."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ZERO = 5_000_000_000
MS = 1_000_000
REAL = 1_700_000_000_000_000_000


def marks_file(records: Sequence[tuple[int, int, int, int]], names: Sequence[str] = ()) -> bytes:
    """A file of marks: names numbered from 1, then records of (time, thread, kind, name)."""
    content = struct.pack("<8sIIqq", b"AACOMARK", 1, 4321, ZERO, REAL).ljust(64, b"\0")
    for number, name in enumerate(names, 1):
        text = name.encode()
        content += struct.pack("<qIHH16x", 0, len(text), 6, number) + text.ljust(-(-len(text) // 32) * 32, b"\0")
    return content + b"".join(struct.pack("<qIHH16x", *record) for record in records)


def run_document(number: int, wall_ms: float = 100.0, **more: Any) -> dict[str, Any]:
    start = ZERO + number * 1_000 * MS + MS
    clocks = {"monotonic_ns": start - MS, "realtime_ns": REAL + start, "boottime_ns": start, "uncertainty_ns": 100}
    return {
        "process_id": 4321 + number,
        "start_monotonic_ns": start,
        "end_monotonic_ns": start + int(wall_ms * MS),
        "user_ns": int(wall_ms * MS) // 2,
        "system_ns": int(wall_ms * MS) // 10,
        "max_rss_bytes": 50 << 20,
        "status": 0,
        "signal": None,
        "timed_out": False,
        "left_running": [],
        "clocks_before": clocks,
        "clocks_after": clocks,
        "marks_files": [],
        "stdout": {"bytes": 6, "tail_file": "stdout_tail"},
        "stderr": {"bytes": 0, "tail_file": "stderr_tail"},
        **more,
    }


def recorded(
    folder: Path,
    walls_ms: Sequence[float] = (100.0, 101.0, 99.0, 102.0, 98.0),
    *,
    runs: Sequence[dict[str, Any]] | None = None,
    kinds: Sequence[str] | None = None,
    stderr: str = "",
    **more: Any,
) -> Path:
    """A recorded folder of these runs; `kinds` are run, trace or counters, and `more` is of capture.json."""
    documents = [run_document(i, wall) for i, wall in enumerate(walls_ms)] if runs is None else list(runs)
    kinds = kinds or ["run"] * len(documents)
    passes: list[dict[str, Any]] = []
    for kind, document in zip(kinds, documents, strict=True):
        name = kind if kind == "trace" else f"{kind}_{1 + sum(one['kind'] == kind for one in passes)}"
        place = folder / name
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(document))
        (place / "stdout_tail").write_text("hello\n")
        (place / "stderr_tail").write_text(stderr)
        passes.append({"name": name, "kind": kind, "folder": name, "profiler": None, "command": ["./solve"]})
    capture = {
        "format": "aaco-program",
        "format_version": 1,
        "writer": "aaco_pipeline test",
        "workload": {"kind": "program", "name": None, "command": "./solve --size 12"},
        "request": {"runs": len(documents), "warmup_runs": 0},
        "measurement_slot": {"file": "/run/lock/aaco", "container": None},
        "passes": passes,
        "profilers": [{"name": "cupti", "present": False, "reason": "no NVIDIA driver", "version": None}],
        **more,
    }
    (folder / "capture.json").write_text(json.dumps(capture))
    facts = [{"category": "host", "key": "name", "value": "node7", "volatile": True}]
    device = {"device_id": 0, "vendor": "GenuineIntel", "arch": "x86_64", "handle": "cpu"}
    (folder / "host.json").write_text(json.dumps({"facts": facts, "devices": [device]}))
    return folder
