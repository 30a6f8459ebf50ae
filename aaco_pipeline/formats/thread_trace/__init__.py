"""A decoded thread trace (`ui_output_agent_<handle>_dispatch_<id>`), or the same folder from program-counter sampling.

Written by the decoder of rocprofv3 (`--att`) for its viewer. Every time here is in shader clock cycles with an epoch of
its own for each shader engine, never nanoseconds. Only the wavefronts of one compute unit are traced, so hits say
nothing of the whole grid. The raw trace files that the folder was decoded from are not read: no open decoder exists for
them.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.thread_trace.signs import TracedDispatch, probe, raw_trace, traced_dispatch

__all__ = ["DOCUMENTATION", "TracedDispatch", "probe", "raw_trace", "read", "traced_dispatch"]

DOCUMENTATION: Final = FormatRow(
    "decoded thread trace (`ui_output_*`) and its viewer's PC-sampling form",
    "`filenames.json`, `code.json`",
    "instructions with hits, latency, stall and idle cycles, or samples",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """The folder `path` and the `stats_*.csv` beside it. CaptureError when it is no such folder or its code is damaged.

    Tables: `att_instructions` (kernel_id and dispatch_id null: only other files of the capture know them) and
    `clock_domains` (one per shader engine, tied to nothing). Details, all times and durations in cycles:

    - `traced_dispatch`, one row: agent_handle, source_dispatch_id (from the folder's name), gfxv, gfxip,
      counter_names, kernel_names (symbols), kernel_display_names, code_object_ids
    - `functions`: line, name, display_name, code_object_id, address of each function in the listing
    - `waves`: wave_index, shader_engine, simd, slot, wave, cu, begin, end, duration, num_insts, num_stitched, file
    - `wave_instructions`: wave_index, time, category, stall, duration, line, in order of execution
    - `wave_timeline`: wave_index, time, state, cycles
    - `wait_dependencies`: wave_index, wait (number of the wait within its wavefront), line, dependency_line (null
      when it waited for nothing that is known)
    - `occupancy`: shader_engine, time, cu, simd, slot, started, source_kernel_id, kernel; every compute unit
    - `wave_states`: time, state, waves
    - `realtime`: shader_engine, gfx_clock, realtime_clock, frequency (ticks of realtime_clock a second)
    - `perf_counters`: shader_engine, time, counter_0 … counter_3, cu, bank
    - `sampled_stalls`: line, code_object_id, address, issued, stalled and one count for each reason to stall
    - `source_files`: source (path at build), file (copy in the folder), found
    - `source_rows`: item, rows_in, rows_out
    """
    from aaco_pipeline.formats.thread_trace import reading

    return reading.read(path, limits or Limits())
