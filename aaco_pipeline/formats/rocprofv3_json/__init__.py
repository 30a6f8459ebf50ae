"""rocprofv3's `*_results.json` (one line, one element per process, possibly gzip-compressed).

Written by rocprofv3 with `--output-format json`. Facts of the format this reader relies on (seen on 7.x, read in the
writer's source for the rest): times are integer ns of the host's boot clock; grids count work-items; `kind` and
`operation` of a record index the lists in `strings`; the first kernel symbol is a placeholder; a counter has one record
per dispatch and hardware instance; handles and addresses reach 2^64 - 1. The file is written at the end of the process,
so a cut one is read up to the cut. Not taken: host functions, code objects, and arguments of calls.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.rocprofv3_json.signs import probe, stated_processes

__all__ = ["DOCUMENTATION", "probe", "read", "stated_processes"]

DOCUMENTATION: Final = FormatRow(
    "rocprofv3 JSON (`*_results.json`), also gzip", "`rocprofiler-sdk-tool`", "as a rocpd database, and PC samples"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a results file; times are int64 ns of the host's boot clock, unshifted.

    Tables: `processes`, `devices`, `clock_domains`, `kernels` (those that were dispatched), `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `counters` (summed over hardware instances, `pass` empty: the caller knows which pass
    a file is), `memory_allocations`, `pc_samples`. Details: `source_rows`; `dispatch_keys` (`dispatch_id`,
    `source_dispatch_id`, `process_id`); `queues` and `streams` (dense id, `process_id`, `handle`, of queues also
    `device_id`). A run that only counted has its dispatches from the counter records.

    Memory: the columns, and one piece of the file. A file that stops in the middle is read up to its last whole record
    and told as `partial`. Raises CaptureError for another format, damage before the end, or beyond the limits.
    """
    from aaco_pipeline.formats.rocprofv3_json import reading

    return reading.read(path, limits or Limits())
