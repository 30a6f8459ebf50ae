"""The files of one process's run of rocprofv3 as text, each with what its header and its name say it is.

What the tables become is `aaco_pipeline.formats.rocprofv3_csv.tables`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.parsing.csv_text import read_text
from aaco_pipeline.formats.rocprofv3_csv import tables
from aaco_pipeline.formats.rocprofv3_csv.frames import ESSENTIAL
from aaco_pipeline.formats.rocprofv3_csv.signs import file_name, kind_of
from aaco_pipeline.lake.evidence import Evidence

_PASS_FOLDER: Final = re.compile(r"pass_\d+", re.IGNORECASE)


def read_run(paths: Sequence[Path], limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprofv3_csv.read_run`."""
    if not paths:
        raise CaptureError("no files of a rocprofv3 run given; name at least one")
    names = Counter(path.name for path in paths)
    labels = [path.name if names[path.name] == 1 else str(path) for path in paths]
    files: list[tables.SourceFile] = []
    refused: list[tuple[str, CaptureError]] = []
    for path, label in zip(paths, labels, strict=True):
        try:
            files.append(_file(path, label, limits))
        except CaptureError as error:
            refused.append((label, error))
    if not files:
        raise refused[0][1]
    if sum(file.table.frame.height for file in files) > limits.events:
        raise CaptureError(f"{paths[0]}: more than {limits.events} rows in its run; raise the limit or capture less")
    told = [Evidence(f"file {label}", "invalid", str(error), label) for label, error in refused]
    read = tables.assembled(files)
    return CaptureTables(read.tables, (*read.evidence, *told), read.details)


def _file(path: Path, label: str, limits: Limits) -> tables.SourceFile:
    table = read_text(path, limits)
    kind = kind_of(frozenset(table.frame.columns))
    if kind is None:
        raise CaptureError(f"{path}: not a table of rocprofv3; its columns are {', '.join(table.header[:8])}")
    table.require(f"a {kind} table of rocprofv3", *ESSENTIAL[kind])
    return tables.SourceFile(table, kind, _pass_name(path), label)


def _pass_name(path: Path) -> str:
    """The counter pass of a file: its folder `pass_n` if it lies in one, else the prefix of its name."""
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        if _PASS_FOLDER.fullmatch(folder.name):
            return folder.name
    named = file_name(path.name)
    return (named["prefix"] or named["kind"]) if named else path.name.split(".")[0]
