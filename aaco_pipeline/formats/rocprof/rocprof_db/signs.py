"""How the database of rocprof version 1 is recognized: by the columns of its table of kernels.

Reading it is `aaco_pipeline.formats.rocprof.rocprof_db.reading`.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.rocpd.signs import MAGIC, connected

KERNELS: Final = "KERN"
#: The writer makes the table of kernels in every database, with these columns at least.
SIGNATURE: Final = frozenset({"Index", "KernelName"})
_PROBED_BYTES: Final = 256 << 10
_DECLARED: Final = re.compile(rb"CREATE TABLE KERN \(([^()]{0,65536})\)")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its table `KERN`; None for anything else."""
    head = first_bytes(path, _PROBED_BYTES)
    if not head.startswith(MAGIC):
        return None
    try:
        with closing(connected(path)) as connection:
            columns = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({KERNELS})")}
    except (sqlite3.Error, ValueError):  # packed, or damaged up to the names in it: by what its beginning declares
        declared = _DECLARED.search(head)
        columns = {name.decode() for name in re.findall(rb'"(\w+)"', declared[1])} if declared else set()
    return DetectedFormat("rocprof-database", "rocprof version 1 trace (SQLite)") if columns >= SIGNATURE else None
