"""How a rocpd database is recognized, and told from one of rocmProfileData.

Opening and reading it is `aaco_pipeline.formats.parsing.sqlite_database`.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes

MAGIC: Final = b"SQLite format 3\0"
#: Tables of rocmProfileData, which calls its databases rocpd too.
RPD_TABLES: Final = frozenset({"rocpd_op", "rocpd_api", "rocpd_api_ops", "rocpd_kernelapi", "rocpd_copyapi"})
_PROBED_BYTES: Final = 256 << 10
#: What SQLite's module raises for damaged databases; ValueError for messages and names that are not text.
_FAILURES: Final = (sqlite3.Error, ValueError)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its tables' names; None for anything else, such as one of rocmProfileData."""
    names = table_names(path)
    if any(name.startswith(("rocpd_kernel_dispatch", "rocpd_metadata_")) for name in names):
        return DetectedFormat("rocpd", "rocpd database of rocprofv3 (SQLite)")
    return None


def connected(path: Path) -> sqlite3.Connection:
    """The database at `path`, opened for reading alone. Nothing named in its schema runs. sqlite3.Error as it comes.

    That the path is a regular file, and reached through no link, is looked at before.
    """
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        # No function named in a hostile schema runs, and what does not fit into its page is an error.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        # A confined reader may not write where SQLite would put temporary files.
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def table_names(path: Path) -> set[str]:
    """The tables of a database; of one that is compressed or damaged those that its beginning names."""
    head = first_bytes(path, _PROBED_BYTES)
    if not head.startswith(MAGIC):
        return set()
    try:
        with closing(connected(path)) as connection:
            listed = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd%'").fetchall()
            return {str(name) for (name,) in listed}
    except _FAILURES:  # its reader says how it is damaged, if it is a rocpd database
        return {name.decode() for name in re.findall(rb"rocpd_[A-Za-z0-9_]+", head)}
