"""What tests of publishing, reading and health share: ids, small tables, where a table's file is, a dead process."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.store import TraceLake

SESSION: Final = "20250101T000000Z-0000000a"
LATER: Final = "20250102T000000Z-0000000b"

Metrics = Callable[..., pl.DataFrame]
Filled = Callable[[str, Mapping[str, Sequence[Any]]], pl.DataFrame]
Snapshot = Callable[[Path], dict[str, bytes | None]]


def kernels(filled: Filled, *names: str) -> pl.DataFrame:
    return filled("kernels", {"kernel_id": list(range(len(names))), "name": list(names), "short_name": list(names)})


def file_of(lake: TraceLake, table: str, session: str = SESSION) -> Path:
    (entry,) = lake.manifest(session).of_table(table)
    return lake.path / entry.file


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    return child.pid
