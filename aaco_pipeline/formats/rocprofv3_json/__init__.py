"""rocprofv3's `*_results.json` (one line, one element per process, possibly gzip-compressed).

Written by rocprofv3 with `--output-format json`. The reader relies on these properties (observed on 7.x, or else from
the writer's source): times are integer ns of the host's boot clock; grids count work-items; `kind` and `operation` of a
record index the lists in `strings`; the first kernel symbol is a placeholder; a counter has one record per dispatch and
hardware instance; handles and addresses reach 2^64 - 1. The file is written at the end of the process, so a truncated
one is read up to the cut. Not read: host functions, code objects, and call arguments.
"""

import json
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits, StatedProcess
from aaco_pipeline.formats.parsing.compression import first_bytes

ROOT: Final = "rocprofiler-sdk-tool"
_PROBED_BYTES: Final = 4096
#: The first process's metadata takes a few kilobytes, mostly its command and the tool's settings.
_METADATA_BYTES: Final = 64 << 10
_METADATA: Final = '"metadata":'


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a results file by its first key; None for anything else. Reads at most 4 KiB."""
    head = first_bytes(path, _PROBED_BYTES).lstrip()
    if head.startswith(b"{") and head[1:].lstrip().startswith(f'"{ROOT}"'.encode()):
        return DetectedFormat("rocprofv3-json", "rocprofv3 results (JSON)")
    return None


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """Return the process in the first element's metadata; none if the metadata comes later or is damaged."""
    head = first_bytes(path, _METADATA_BYTES).decode("utf-8", "replace")
    at = head.find(_METADATA)
    if at < 0:
        return ()
    try:
        found, _ = json.JSONDecoder().raw_decode(head, at + len(_METADATA) + _blanks(head[at + len(_METADATA) :]))
    except (ValueError, RecursionError):
        return ()
    return (_process(found),) if isinstance(found, dict) else ()


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())


def _process(metadata: dict[str, Any]) -> StatedProcess:
    node, settings = (value if isinstance(value := metadata.get(name), dict) else {} for name in ("node", "config"))
    command = metadata.get("command")
    output = settings.get("output_path")
    host = node.get("hostname")
    return StatedProcess(
        host=host if isinstance(host, str) else None,
        pid=_whole(metadata.get("pid")),
        command=" ".join(map(str, command)) if isinstance(command, list) and command else None,
        start_ns=_whole(metadata.get("init_time")),
        end_ns=_whole(metadata.get("fini_time")),
        output=output if isinstance(output, str) else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


DOCUMENTATION: Final = FormatRow(
    "rocprofv3 JSON (`*_results.json`), also gzip", "`rocprofiler-sdk-tool`", "as a rocpd database, and PC samples"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a results file; times are int64 ns of the host's boot clock, unshifted.

    Tables: `processes`, `devices`, `clock_domains`, `kernels` (those that were dispatched), `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `counters` (summed over hardware instances, with `pass` empty: the caller knows the
    file's pass), `memory_allocations`, `pc_samples`. Details: `source_rows`; `dispatch_keys` (`dispatch_id`,
    `source_dispatch_id`, `process_id`); `queues` and `streams` (dense id, `process_id`, `handle`, and for queues also
    `device_id`). In a run that only counted, dispatches come from the counter records.

    Memory: the columns, and one piece of the file. A truncated file is read up to its last complete record and reported
    as `partial`. CaptureError for another format, damage before the end, or beyond the limits.
    """
    from aaco_pipeline.formats.rocprofv3_json import reading

    return reading.read(path, limits or Limits())
