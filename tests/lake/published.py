"""Helpers for tests of publishing, reading and health: ids, small tables, files of tables, a dead process."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake

SESSION: Final = "20250101T000000Z-0000000a"
LATER: Final = "20250102T000000Z-0000000b"

Metrics = Callable[..., pl.DataFrame]
Filled = Callable[[str, Mapping[str, Sequence[Any]]], pl.DataFrame]
Snapshot = Callable[[Path], dict[str, bytes | None]]


def every_table() -> list[Any]:
    """Parametrize by table: in CI those that together have each type of column in each scope, at night all."""
    wanted = {(table.scope, column.dtype) for table in all_tables().values() for column in table.all_columns}
    parameters = []
    for table in sorted(all_tables().values(), key=lambda one: -len({column.dtype for column in one.all_columns})):
        kinds = {(table.scope, column.dtype) for column in table.all_columns}
        parameters.append(pytest.param(table.name, marks=() if kinds & wanted else pytest.mark.nightly))
        wanted -= kinds
    return parameters


def kernels(filled: Filled, *names: str) -> pl.DataFrame:
    return filled("kernels", {"kernel_id": list(range(len(names))), "name": list(names), "short_name": list(names)})


def file_of(lake: TraceLake, table: str, session: str = SESSION) -> Path:
    (entry,) = lake.manifest(session).of_table(table)
    return lake.path / entry.file


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    return child.pid


def values(lake: TraceLake, session: str | Sequence[str] | None = SESSION) -> list[Any]:
    return lake.read("session_metrics", session).get_column("value").to_list()


def kinds(lake: TraceLake) -> dict[str, bool]:
    """The kinds of all faults, and whether they can be repaired."""
    return {fault.kind: fault.mendable for fault in faults(lake)}


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


class Killed(BaseException):
    """A simulated kill, which nothing catches."""
