"""Generate a lake of any number of sessions from a hundred real ones.

    python -m benchmarks.performance.generate_lake --sessions 10000 FOLDER/lake_10000

Originals are measured and taken in once, beside the lake. Copies are published stage by stage under other ids, their
times scaled by one factor each; raw captures are hard links. A lake that was begun is continued.
"""

import argparse
import os
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Final
from unittest.mock import patch

import polars as pl

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import BYTE_PER_S, FLOP_PER_S, NS, PER_S
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import SHARED
from benchmarks.performance.command_cost import call

DISTINCT: Final = 100
SEED: Final = 16
#: A session of more rows would be most of a lake of its copies.
_MOST_ROWS: Final = 30_000
_ORIGINALS: Final = "originals"
_DONE: Final = "done"
#: Of `SHARED`.
_CAPTURES: Final = (
    "gpu_sessions/sessions",
    "gpu_sessions/traces",
    "captures/documentation_csv",
    "captures/gfx1151_rocprofv3_csv",
    "captures/gfx1250_rocpd",
    "captures/mi210_kineto_gpu_only",
    "captures/mi300x_att_ck_batched_gemm",
    "captures/rpd_not_rocprofv3",
    "kineto/a100_alexnet_cudasync.json.gz",
    "kineto/a100_event_sync.json.gz",
    "kineto/h100_qwen1.5_0.5b.json.gz",
    "kineto/mi300x_qwen1.5_0.5b.json.gz",
    "counters/laplacian_k1",
    "counters/legacy_rocprofv1_header",
    "counters/llamacpp_decode",
    "counters/mem_levels_HBM",
    "counters/mixbench_SQ",
    "counters/mixbench",
    "counters/vcopy",
    "captures/mi300_pc_sampling_code_json",
    "captures/mi300x_rocpd_pmc_passes",
    "captures/mi350x_rocprofv3_json",
    "kineto/mi300x_resnet_train_ddp.json.gz",
)
_RUNS: Final = (
    *(("--model", "control_flow", "--threads", f"{n}", "--optimization", o) for n in (1, 2) for o in ("all", "basic")),
    *(("--model", "gpt_tiny", "--threads", f"{n}", "--optimization", o) for n in (1, 2) for o in ("all", "none")),
    *(("--model", "squeezenet", "--threads", f"{n}", "--optimization", o) for n in (1, 2) for o in ("all", "extended")),
    *(("--model", model) for model in ("resnet50", "densenet121")),
    *(("--model", "control_flow", "--batch", f"{n}") for n in (1, 4, 64)),
    *(("--model", "squeezenet", "--seed", f"{n}") for n in range(1, 6)),
)
_FEW: Final = ("--iterations", "20", "--warmup", "2")
_PROGRAMS: Final = (
    ("sort", "print(len(sorted(str(i) for i in range(200000))))"),
    ("sleep", "import time; time.sleep(0.2)"),
    ("write", "import tempfile; f = tempfile.TemporaryFile(); f.write(b'x' * 5000000)"),
    ("numpy", "import numpy; a = numpy.ones((400, 400)); print((a @ a).sum())"),
)
_BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
_APART: Final = timedelta(minutes=47)
_RATES: Final = (PER_S, FLOP_PER_S, BYTE_PER_S)
_VALUES: Final = ("value", "ci_low", "ci_high", "mean", "min", "max")
_THOUSANDTHS: Final = (800, 1_250)


@dataclass(frozen=True)
class Original:
    """One real session: what is published of it, by stage in the order they run."""

    lake: TraceLake
    manifest: Manifest
    tables: Mapping[str, Mapping[str, pl.DataFrame]]


@dataclass(frozen=True)
class Copy:
    """Under which id and start time a session is published again, and its factor in thousandths."""

    session: str
    started_at: datetime
    thousandths: int


def originals(folder: Path) -> TraceLake:
    """The lake of real sessions in `folder`; what it lacks is measured and taken in first."""
    lake = TraceLake(folder / "lake")
    environment = {LAKE_VARIABLE: str(lake.path), HOME_VARIABLE: str(folder / "home")}
    commands = [
        *(("ingest", str(SHARED / name), "--partial-ok") for name in _CAPTURES),
        *(("record", "--no-output", "--runs", "3", "--workload", name, "--", sys.executable, "-c", text)
          for name, text in _PROGRAMS),
        *(("run", *run, *_FEW) for run in _RUNS),
    ]  # fmt: skip
    for command in commands:
        mark = folder / _DONE / sha256("\0".join(command).encode()).hexdigest()[:16]
        if not mark.exists():
            call(command, environment)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            print(f"{len(lake.sessions()):4} originals after aaco {' '.join(command[:4])}", flush=True)
    return lake


def chosen(lake: TraceLake) -> list[str]:
    """The first `DISTINCT` sessions that are whole and not too large."""
    manifests = [lake.manifest(session) for session in lake.sessions()]
    fit = [one.id for one in manifests if lake.progress(one.id).is_whole and _rows(one) <= _MOST_ROWS]
    if len(fit) < DISTINCT:
        raise SystemExit(f"{lake.path}: {len(fit)} sessions are whole and small enough, {DISTINCT} are needed")
    return fit[:DISTINCT]


def read_original(lake: TraceLake, session: str) -> Original:
    """All tables of a session, in memory."""
    manifest = lake.manifest(session)
    published = {state.stage for state in manifest.stages if state.failure is None}
    tables = {
        stage: {entry.table: lake.read_entry(entry).drop("session_id") for entry in manifest.of_stage(stage)}
        for stage in manifest.expected
        if stage in published
    }
    return Original(lake, manifest, tables)


def copy_number(original: str, number: int, place: int) -> Copy:
    """The `number`th copy of an original, which is the `place`th session of its lake."""
    chance = random.Random(f"{SEED} {original} {number}")
    started_at = _BEGIN + place * _APART
    session = f"{started_at:%Y%m%dT%H%M%SZ}-{chance.getrandbits(32):08x}{original[25:]}"
    return Copy(session, started_at, chance.randint(*_THOUSANDTHS))


def scaled(table: str, frame: pl.DataFrame, copy: Copy, moved: timedelta) -> pl.DataFrame:
    """A table as the copy has it: times and durations by the factor, rates by its inverse, wall clocks moved."""
    by = copy.thousandths
    if frame.is_empty():
        return frame
    if table == "sessions":
        return frame.with_columns(pl.lit(copy.started_at, frame.schema["started_at"]).alias("started_at"))
    if table == "clock_domains":
        wall, shift = pl.col("domain") == "realtime", pl.col("offset_ns") - moved // timedelta(microseconds=1) * 1_000
        return frame.with_columns(
            pl.when(wall).then(shift).otherwise(_times(pl.col("offset_ns"), by)).alias("offset_ns")
        )
    changed = []
    for column in contract(table).columns:
        if column.unit == NS:
            whole = frame.schema[column.name].is_integer()
            changed.append(_times(pl.col(column.name), by) if whole else pl.col(column.name) * (by / 1_000))
        elif column.unit in _RATES and table != "ceilings":
            changed.append(pl.col(column.name) / (by / 1_000))
        elif column.name in _VALUES and "unit" in frame.columns and table != "ceilings":
            unit, value = pl.col("unit"), pl.col(column.name)
            inverse = pl.when(unit.str.ends_with("/s")).then(value / (by / 1_000)).otherwise(value)
            changed.append(pl.when(unit == NS).then(value * (by / 1_000)).otherwise(inverse).alias(column.name))
    return frame.with_columns(changed) if changed else frame


def publish(lake: TraceLake, original: Original, copy: Copy) -> None:
    """Publish a copy as a run of its stages would: what is expected, the capture, each stage."""
    lake.expect(copy.session, original.manifest.expected)
    if not lake.raw(copy.session).exists():
        with lake.receive_raw(copy.session) as folder:
            _link(original.lake.raw(original.manifest.id), folder)
    states = {state.stage: state.code_version for state in original.manifest.stages}
    sessions = original.tables["capture"]["sessions"]
    began = sessions.item(0, "started_at")
    moved = copy.started_at - began if began is not None else timedelta()
    for stage, tables in original.tables.items():
        made = {name: scaled(name, frame, copy, moved) for name, frame in tables.items()}
        lake.publish(copy.session, stage, made, code_version=states[stage])  # last: then the session is whole


def fill(lake: Path, made: Path, source: str, copies: Sequence[Copy]) -> float:
    """Publish what the lake lacks of these copies of one session; the CPU seconds that it took."""
    began, opened = process_time(), TraceLake(lake)
    lacking = [copy for copy in copies if not opened.progress(copy.session).is_whole]
    # A kill loses nothing by it, only a host that goes down.
    with patch.object(os, "fsync", lambda descriptor: None):
        original = read_original(TraceLake(made), source) if lacking else None
        for copy in lacking:
            assert original is not None
            publish(opened, original, copy)
    return process_time() - began


def _rows(manifest: Manifest) -> int:
    return sum(entry.rows for entry in manifest.entries)


def _times(values: pl.Expr, thousandths: int) -> pl.Expr:
    """Integers times a factor, rounded down, without leaving 64 bits on the way."""
    return values // 1_000 * thousandths + values % 1_000 * thousandths // 1_000


def _link(source: Path, target: Path) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = file.relative_to(source)
        if name.as_posix() != RAW_LIST:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the lake, or go on with it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("lake", type=Path)
    options = parser.parse_args(arguments)
    made = originals(options.lake.absolute().parent / _ORIGINALS)
    sources = chosen(made)
    spent = 0.0
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        parts = []
        for first, source in enumerate(sources):
            places = range(first, options.sessions, len(sources))
            copies = [copy_number(source, number, place) for number, place in enumerate(places)]
            parts.append(pool.submit(fill, options.lake, made.path, source, copies))
        for done, part in enumerate(as_completed(parts), 1):
            spent += part.result()
            print(f"{done:4} of {len(parts)} originals, {spent:.1f} s CPU", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LakeError as error:
        sys.exit(str(error))
