"""Fixtures of the lake: a lake, frames that fulfil a contract, snapshots of folders, child processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import aaco_pipeline
from aaco_pipeline.lake.contracts import contract, polars_dtype
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import Filled
from tests.lake.two_sessions import two_sessions as made_of_two_sessions

DEFAULTS: Final[Mapping[str, object]] = {
    "string": "x",
    "bool": False,
    "int32": 0,
    "int64": 0,
    "uint64": 0,
    "float64": 0.0,
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
}


def _filled(table: str, columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """A frame that fulfils the contract of `table`: the given columns, else null, else a plain value."""
    height = max(len(values) for values in columns.values())
    series = []
    for declared in contract(table).columns:
        default = None if declared.nullable else DEFAULTS.get(declared.dtype, [])
        values = columns.get(declared.name, [default] * height)
        series.append(pl.Series(declared.name, values, dtype=polars_dtype(declared.dtype)))
    return pl.DataFrame(series)


def _snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below `folder` with its bytes, None for a folder; empty when there is no such folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def _command(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(aaco_pipeline.__file__).parents[1])}


def _run_python(code: str, *arguments: object) -> str:
    done = subprocess.run(
        _command(code, *arguments), env=_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _start_python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        _command(code, *arguments), env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def lake(tmp_path: Path) -> TraceLake:
    return TraceLake(tmp_path / "lake")


@pytest.fixture(scope="session")
def filled() -> Callable[[str, Mapping[str, Sequence[Any]]], pl.DataFrame]:
    return _filled


@pytest.fixture
def metrics() -> Callable[..., pl.DataFrame]:
    """Frames of `session_metrics` with the given values."""
    return lambda *values: _filled(
        "session_metrics", {"metric": [f"metric_{i}" for i in range(len(values))], "value": list(values)}
    )


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    return _snapshot


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run code in a fresh interpreter that sees this package; its output."""
    return _run_python


@pytest.fixture
def start_python() -> Callable[..., "subprocess.Popen[str]"]:
    """Start code in a fresh interpreter that sees this package, with pipes to its input and output."""
    return _start_python


@pytest.fixture(scope="module")
def two_sessions(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of two sessions with what the helper views read, which no test changes."""
    return made_of_two_sessions(filled, tmp_path_factory.mktemp("two_sessions"))


@pytest.fixture
def populated(lake: TraceLake, two_sessions: Path) -> TraceLake:
    """A lake of two sessions of one's own."""
    shutil.copytree(two_sessions, lake.path)
    return lake


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the lakes' caches, private to the test."""
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lakes"
