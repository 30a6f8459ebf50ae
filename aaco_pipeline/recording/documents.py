"""The files of a recorded folder: their names, their keys, and how they are written.

They are read by `aaco_pipeline.formats.native.program`; what is raw telemetry is `aaco_pipeline.resources.telemetry`'s.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aaco_pipeline import __version__
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_name, safe_text, safe_words
from aaco_pipeline.recording.output import Written
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.recording.runs import Run

FORMAT: Final = "aaco-program"
FORMAT_VERSION: Final = 1
CAPTURE: Final = "capture.json"
HOST: Final = "host.json"
TELEMETRY: Final = "telemetry.json"
KERNEL_PLANE: Final = "kernel_plane.json"
RUN: Final = "run.json"
#: Within a run's folder, where the processes of the program leave their marks.
MARKS: Final = "marks"
#: Characters; what is longer is a program of its own, such as that of `python -c`.
_LONGEST_WORD: Final = 16 << 10
#: What the keeper says of a run that its document keeps.
_OF_THE_KEEPER: Final = (
    *("process_id", "start_monotonic_ns", "end_monotonic_ns", "user_ns", "system_ns", "max_rss_bytes"),
    *("max_rss_floor_bytes", "status", "signal", "timed_out", "clocks_before", "clocks_after"),
)


def capture_document(
    request: RecordRequest,
    slot: Mapping[str, Any],
    passes: Sequence[Mapping[str, Any]],
    profilers: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What was recorded: the program, what was asked, the passes in their order, and which profilers there were."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "writer": f"aaco_pipeline {__version__}",
        "workload": {"kind": "program", "name": safe_name(request.name), "command": _shown(request.command)},
        "request": request.document(),
        "measurement_slot": dict(slot),
        "passes": list(passes),
        "profilers": list(profilers),
    }


def pass_document(name: str, kind: str, command: Sequence[str], profiler: str | None = None) -> dict[str, Any]:
    """One pass: its folder is called as it is. `kind` is `run`, `trace` or `counters`."""
    return {
        "name": name,
        "kind": kind,
        "folder": name,
        "profiler": profiler,
        "command": _shown(command),
        "counters": [],
    }


def counting_document(document: Mapping[str, Any], counters: Sequence[str], reason: str | None) -> dict[str, Any]:
    """The document of a pass that counted, with what it was asked for, and why it counted nothing or not all."""
    return {**document, "counters": list(counters), "reason": None if reason is None else safe_text(reason)}


def write_run(folder: Path, run: Run) -> None:
    """Leave a run's document and the ends of its output in its folder."""
    marks = folder / MARKS
    left = [{**one, "command": safe_command(one["command"])} for one in run.ended["left_running"]]
    write_json(
        folder / RUN,
        {
            **{key: run.ended[key] for key in _OF_THE_KEEPER},
            "left_running": left,
            "marks_files": sorted(file.name for file in marks.glob("*.marks")),
            "stdout": _kept(folder, "stdout", run.stdout),
            "stderr": _kept(folder, "stderr", run.stderr),
        },
    )
    if not any(marks.iterdir()):
        marks.rmdir()


def _shown(command: Sequence[str]) -> list[str]:
    """A command line for a document: without secrets, and no word longer than anybody reads."""
    return safe_words([word[:_LONGEST_WORD] for word in command])


def _kept(folder: Path, name: str, written: Written) -> dict[str, int | str]:
    file = f"{name}_tail"
    (folder / file).write_bytes(written.tail)
    return {"bytes": written.total_bytes, "tail_file": file}


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def sync(folder: Path) -> None:
    """Have the disk hold all of a folder, so that it is whole wherever it is found. Raises OSError."""
    for path in (*folder.rglob("*"), folder):
        sync_names(path)


def sync_names(path: Path) -> None:
    """Have the disk hold one file, or the names in one folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
