"""CSV that NVIDIA's Nsight Compute (`ncu --csv`) writes: hardware counters of each kernel that it profiled.

Both pages are read: `--page raw`, a row a kernel and a column a metric, with a row of units behind the header; and the
plain one, a row a kernel and metric. Lines of ncu's own (`==PROF==`) and of the program stand around the table and are
passed over. Values come in base units (byte, byte/second, nsecond, hz), whatever prefix the file has. No duration is
taken: ncu runs kernels one after another and several times each, by default at clocks of its own.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.nvidia.ncu.signs import probe

__all__ = ["DOCUMENTATION", "probe", "read"]

DOCUMENTATION: Final = FormatRow("Nsight Compute, `ncu --csv`, both pages", "the header", "counters of NVIDIA GPUs")


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table of ncu.

    Tables: `processes`, `devices`, `kernels` (names as they are, mangled where they were asked for so), `counters`
    (`counter` is ncu's name of the metric with its roll-up, `dram__bytes_read.sum`). Details: `counter_dispatches` (see
    `aaco_pipeline.formats.parsing.counter_passes`; no execution has times), `mangled_kernels` (the column `name`),
    `source_rows`. Raises CaptureError for anything else.
    """
    from aaco_pipeline.formats.nvidia.ncu import reading

    return reading.read(path, limits or Limits())
