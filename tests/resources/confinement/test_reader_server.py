"""A child's work for each request, in this process: its answer, or one line about what is wrong."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import CaptureError, ModelError, SourceError
from aaco_pipeline.resources import ingestion
from aaco_pipeline.resources.confinement import reader_server
from aaco_pipeline.resources.confinement.client import raise_told
from aaco_pipeline.resources.confinement.requests import bounds_for
from tests.formats.examples import EXAMPLES


def answer_of(request: Mapping[str, Any], results: Path) -> dict[str, Any]:
    reader_server.perform(
        {"about": "/in/x", "results": str(results), "unconfined": [], "result_bytes": 1 << 20, **request}
    )
    answer: dict[str, Any] = json.loads((results / reader_server.REPLY_FILE).read_text())
    return answer


def test_a_look_takes_the_digest_along_where_that_is_soon_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EXAMPLES["rocprofv3_csv"](tmp_path / "in")
    request = {"work": "discover", "path": str(tmp_path / "in")}
    (run,) = answer_of(request, tmp_path)["runs"]
    assert run["digest"] == ingestion.capture_digest(discover_runs(tmp_path / "in").runs[0])
    monkeypatch.setattr(reader_server, "_SOON_READ_BYTES", 100)
    (run,) = answer_of(request, tmp_path)["runs"]
    assert run["digest"] is None


class Panic(BaseException):
    """As Polars' panics are: no Exception."""


@pytest.mark.parametrize(
    ("error", "kind", "line", "number"),
    [
        (CaptureError("x: bad"), CaptureError, "x: bad", None),
        (ModelError("x: bad\nvery"), ModelError, "x: bad very", None),
        (SourceError("x: gone"), SourceError, "x: gone", None),
        (ValueError("odd \x1b[2J\u202e\nsecond"), CaptureError, "/in/x: its reader failed: ValueError: odd [2J", None),
        (Panic("index out of bounds"), CaptureError, "/in/x: its reader failed: Panic: index out of bounds", None),
        (KeyError("x" * 9_000), CaptureError, "/in/x: its reader failed: KeyError: '" + "x" * 1963, None),
        (OSError(errno.EIO, "Input/output error", "/in/x/y"), CaptureError, "/in/x/y: Input/output error", errno.EIO),
        (OSError(errno.ENOSPC, "No space"), CaptureError, "/in/x: No space", errno.ENOSPC),
        (MemoryError(), CaptureError, "/in/x: reading it took more than 4.0 GiB of memory; not read", None),
    ],
)
def test_an_error_arrives_as_its_class_in_one_line_with_the_systems_behind_it(
    *,
    error: BaseException,
    kind: type[Exception],
    line: str,
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*arguments: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(reader_server, "_WORK", {"fail": fails})
    monkeypatch.setenv("AACO_READER_MEMORY", "4G")
    told = answer_of({"work": "fail"}, tmp_path)["error"]
    with pytest.raises(kind) as caught:
        raise_told(told, Path("/in/x"), bounds_for(0))
    assert (type(caught.value), str(caught.value)) == (kind, line)
    cause = caught.value.__cause__
    assert (cause.errno if isinstance(cause, OSError) else None) == number


def test_a_class_that_is_no_error_of_ours_is_a_capture_error() -> None:
    for kind in ("SystemExit", "AacoErrorr", "ClassVar"):
        with pytest.raises(CaptureError, match=r"^x$"):
            raise_told({"kind": kind, "line": "x", "cause": None}, Path("x"), bounds_for(0))


def test_the_systems_error_is_found_behind_a_readers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> dict[str, Any]:
        try:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/in/x/y")
        except OSError as error:
            raise CaptureError("/in/x/y: cannot be copied") from error

    monkeypatch.setattr(reader_server, "_WORK", {"fail": fails})
    assert answer_of({"work": "fail"}, tmp_path)["error"]["cause"] == [errno.EACCES, "/in/x/y"]


def test_tables_beyond_the_bound_are_refused_and_the_same_table_is_kept_once(tmp_path: Path) -> None:
    files = reader_server._Files(tmp_path, 10_000)
    frame = pl.DataFrame({"a": list(range(1_000))})
    assert files.keep(frame) == files.keep(frame) == "0.arrow"
    with pytest.raises(CaptureError, match="many times larger than the capture"):
        files.keep(frame.clone())
    assert pl.read_ipc_stream(tmp_path / "0.arrow").equals(frame)
