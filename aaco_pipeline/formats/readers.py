"""The only list of capture readers, in the order in which they are tried, and their table in the docs.

A reader is a package in `aaco_pipeline.formats`: `probe` recognizes a path by its first bytes, `read` reads all of it,
and `DOCUMENTATION` is its row in docs/captures.md. Heavy code is imported inside `read`, so that examining a folder
loads no unneeded reader. `native` and `onnx` read no foreign captures and are not listed.

Run `python -m aaco_pipeline.formats.readers docs/captures.md` to write the table into the page.
"""

import sys
from pathlib import Path
from typing import Final, Protocol

from aaco_pipeline.formats import (
    cupti,
    gpu_metrics,
    kineto,
    ncu,
    nsys,
    ort_profile,
    program,
    prometheus,
    rocpd,
    rocprof,
    rocprof_compute,
    rocprof_db,
    rocprofv3_csv,
    rocprofv3_json,
    rpd,
    thread_trace,
)
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits


class Reader(Protocol):
    """The interface of every reader; `__name__` is its module's."""

    @property
    def __name__(self) -> str: ...

    @property
    def DOCUMENTATION(self) -> FormatRow: ...

    def probe(self, path: Path) -> DetectedFormat | None: ...

    def read(self, path: Path, limits: Limits | None = None) -> CaptureTables: ...


#: Formats that are a folder; the contents of a recognized folder are not examined further.
FOLDER_READERS: Final[tuple[Reader, ...]] = (program, thread_trace, rocprof_compute)
FILE_READERS: Final[tuple[Reader, ...]] = (
    rocpd,
    rpd,
    rocprof_db,
    nsys,
    rocprofv3_json,
    kineto,
    ort_profile,
    rocprofv3_csv,
    rocprof,
    ncu,
    gpu_metrics,
    prometheus,
    cupti,
)
READERS: Final = (*FOLDER_READERS, *FILE_READERS)
_BEGIN: Final = "<!-- Made by `python -m aaco_pipeline.formats.readers docs/captures.md`; change the readers. -->\n"
_END: Final = "<!-- End of the table. -->\n"


def formats_table() -> str:
    """Write a Markdown table with a row for each reader, in their order."""
    rows = [("format", "recognized by", "gives"), ("---", "---", "---")]
    rows += [(one.written_by, one.recognized_by, one.gives) for one in (reader.DOCUMENTATION for reader in READERS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(page: str) -> str:
    """Replace the table in the page with the current one."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{formats_table()}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_table(place.read_text(encoding="utf-8")), encoding="utf-8")
