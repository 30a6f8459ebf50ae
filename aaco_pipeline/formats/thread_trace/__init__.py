"""A decoded thread trace (`ui_output_agent_<handle>_dispatch_<id>`), or the same folder from program-counter sampling.

Written by rocprofv3's decoder (`--att`) for its viewer. All times are shader clock cycles with a separate epoch per
shader engine, never nanoseconds. Only the wavefronts of one compute unit are traced, so hits do not describe the full
grid. The raw trace files are not read, because there is no open decoder for them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.regular_files import is_regular, open_regular

FORMAT: Final = "rocprofv3-thread-trace"
_HEAD_BYTES: Final = 4096
#: Words in the first bytes of a file in the folder.
_MARKS: Final = {"filenames.json": (b'"gfxv"', b'"wave_filenames"', b'"global_begin_time"'), "code.json": (b'"code"',)}
#: Suffixes of a kernel descriptor's name.
_DESCRIPTOR: Final = re.compile(r"(\[clone\.kd\]|\.kd)$")
#: The decoder's name for a folder, and the tool's name for one shader engine's raw file (process, agent, engine,
#: dispatch).
FOLDER: Final = re.compile(r"ui_output_agent_(\d{1,20})_dispatch_(\d{1,20})")
_RAW: Final = re.compile(r"(\d{1,18})_(\d{1,20})_shader_engine_\d{1,9}_(\d{1,20})\.att")
#: Function headings are in the first kilobytes of a listing, starting with the traced kernel's.
_LISTING_BYTES: Final = 256 << 10
_HEADING: Final = re.compile(r'\[\s*"; ([^"\\]{1,65536})"\s*,[^,"]*,[^,"]*,\s*"([^"\\]{0,65536})"')


@dataclass(frozen=True)
class TracedDispatch:
    """A folder's dispatch: agent handle and number, and the functions named in its listing."""

    agent: str | None
    dispatch: int | None
    kernels: frozenset[str]


def traced_dispatch(path: Path) -> TracedDispatch:
    """Read a folder's name and the start of its listing; None if they state nothing."""
    named = FOLDER.fullmatch(path.name)
    listing = path / "code.json"
    head = first_bytes(listing, _LISTING_BYTES).decode("utf-8", "replace") if is_regular(listing) else ""
    kernels = frozenset(name for pair in _HEADING.findall(head) for name in pair if name)
    if named is None:
        return TracedDispatch(None, None, kernels)
    return TracedDispatch(named[1], int(named[2]), kernels)


def raw_trace(path: Path) -> tuple[str, int, int] | None:
    """Return agent handle, dispatch and process from the name of a raw thread trace; None for other files."""
    named = _RAW.fullmatch(path.name)
    return None if named is None else (named[2], int(named[3]), int(named[1]))


def plain_name(name: str | None) -> str:
    """Normalize a kernel's name for comparison between tools: no spaces and no descriptor suffix."""
    return _DESCRIPTOR.sub("", re.sub(r"\s+", "", name or ""))


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a folder by the first bytes of its `filenames.json` or `code.json`; None for anything else."""
    for name, marks in _MARKS.items():
        try:
            with open_regular(path / name) as stream:
                head = stream.read(_HEAD_BYTES)
        except (OSError, ValueError, CaptureError):
            continue
        if head.lstrip().startswith(b"{") and any(mark in head for mark in marks):
            sampled = re.search(rb'"pc_sampling"\s*:\s*true', head) is not None
            what = "program-counter samples by instruction" if sampled else "decoded thread trace"
            return DetectedFormat(FORMAT, what)
    return None


DOCUMENTATION: Final = FormatRow(
    "decoded thread trace (`ui_output_*`) and its viewer's PC-sampling form",
    "`filenames.json`, `code.json`",
    "instructions with hits, latency, stall and idle cycles, or samples",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read the folder `path` and its `stats_*.csv`. CaptureError if it is not such a folder or its code is damaged.

    Tables: `att_instructions` (kernel_id and dispatch_id are null, because only other files of the capture give them)
    and `clock_domains` (one per shader engine, tied to no other). Details, all times and durations in cycles:

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
