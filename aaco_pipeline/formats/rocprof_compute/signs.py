"""How a workload folder of rocprof-compute is recognized: by its table of counters.

Reading it is `aaco_pipeline.formats.rocprof_compute.reading`.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.csv_header import header_of
from aaco_pipeline.formats.parsing.regular_files import is_regular
from aaco_pipeline.formats.rocprof.signs import is_wide

#: The table of counters, and the columns of its long form.
MAIN: Final = "pmc_perf.csv"
LONG: Final = frozenset(("dispatch_id", "kernel_name", "counter_name", "counter_value"))


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a workload folder by the header of its `pmc_perf.csv`; None for anything else."""
    main = path / MAIN
    names = frozenset(header_of(main) or ()) if is_regular(main) else frozenset[str]()
    if names >= LONG and "gpu_id" in names:
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (long counters)")
    if is_wide(names):
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (wide counters)")
    return None
