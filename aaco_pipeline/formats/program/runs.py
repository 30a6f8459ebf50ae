"""Validated documents of a recorded program's runs, and the tables built from them.

`marks` reads the marks set by the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

import polars as pl
from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, table_of
from aaco_pipeline.formats.parsing.json_document import (
    HostDocument,
    Realtime,
    Small,
    Whole,
    as_table,
    check_document,
    check_form,
    json_document,
)
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_text
from aaco_pipeline.formats.parsing.regular_files import is_folder, open_regular, readable_entries
from aaco_pipeline.formats.program import CAPTURE_FILE, FORMAT
from aaco_pipeline.formats.program.marks import INSTANT, ITERATION, Marks, read_marks
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import Status
from aaco_pipeline.lake.validation import to_contract

FORMAT_VERSION: Final = 1
HOST_FILE: Final = "host.json"
RUN_FILE: Final = "run.json"
MARKS_FOLDER: Final = "marks"
MARKS_SUFFIX: Final = ".marks"


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program: `number` is its place in the recording, `kind` is run, trace or counters.

    `reason` explains why a counter run produced no counters, or not all of them.
    """

    number: int
    name: str
    kind: str
    folder: Path
    profiler: str | None
    is_warmup: bool
    document: Mapping[str, Any]
    reason: str | None = None

    @property
    def failure(self) -> str | None:
        """Describe how it failed; None if it succeeded."""
        if self.document["timed_out"]:
            return "did not end within its time limit"
        if self.document["signal"] is not None:
            return f"was ended by {self.document['signal']}"
        status = self.document["status"]
        return None if status == 0 else "has no known end" if status is None else f"ended with status {status}"


@dataclass(frozen=True)
class ProgramDocuments:
    """A recorded folder's validated documents. The axis begins at the first run's first clock reading."""

    folder: Path
    capture: Mapping[str, Any]
    host: Mapping[str, Any]
    runs: Sequence[ProgramRun]

    @property
    def axis_zero_monotonic_ns(self) -> int:
        return int(self.runs[0].document["clocks_before"]["monotonic_ns"])

    @property
    def command(self) -> str:
        """Return the program's command line, without secrets."""
        command = self.capture["workload"]["command"]
        return safe_command(command)

    @property
    def failure(self) -> str | None:
        """Describe the failure of the first failed run; None if all succeeded.

        Counter runs are excluded: the program had succeeded before, and only the counting failed.
        """
        own = (one for one in self.runs if one.kind != "counters")
        return next((f"{one.name} {one.failure}" for one in own if one.failure is not None), None)

    def fact(self, category: str, key: str) -> str | None:
        """Return one fact about the host by category and key; None if unknown."""
        found = (one["value"] for one in self.host["facts"] if (one["category"], one["key"]) == (category, key))
        return next(found, None)


def read_documents(path: Path) -> ProgramDocuments:
    """Read the documents in a recorded folder. CaptureError names the file, the key and the problem."""
    file = path / CAPTURE_FILE
    check_document(_document(file, _Head), FORMAT, FORMAT_VERSION, (), str(file))
    capture = _document(file, _Capture)
    if not capture["passes"]:
        raise CaptureError(f"{file}: passes is empty: no run was recorded; record the program again")
    names = [one["name"] for one in capture["passes"]]
    if len(set(names)) < len(names):
        raise CaptureError(f"{file}: two passes have one name; the capture is damaged")
    warmup = capture["request"].get("warmup_runs", 0)
    runs, plain = [], 0
    for number, one in enumerate(capture["passes"]):
        folder = _inside(path, one["folder"])
        document = _document(folder / RUN_FILE, _Run)
        if document["end_monotonic_ns"] < document["start_monotonic_ns"]:
            raise CaptureError(f"{folder / RUN_FILE}: ends before it begins; the file is damaged")
        is_warmup = one["kind"] == "run" and plain < warmup
        plain += one["kind"] == "run"
        reason = one.get("reason")
        runs.append(ProgramRun(number, one["name"], one["kind"], folder, one["profiler"], is_warmup, document, reason))
    return ProgramDocuments(path, capture, _document(path / HOST_FILE, HostDocument), runs)


def _inside(path: Path, name: str) -> Path:
    """Return a folder next to the documents, by name only."""
    if "/" in name or "\0" in name or name.startswith(".") or not name:
        reason = f"passes: {name!r}: not a folder of the capture"
        raise CaptureError(f"{path / CAPTURE_FILE}: {reason}; the capture is damaged")
    return path / name


def _document(path: Path, form: type) -> dict[str, Any]:
    """Read the JSON document at `path` and check its format."""
    try:
        document = json_document(path)
    except FileNotFoundError as error:
        raise CaptureError(f"{path}: is missing; the capture is incomplete") from error
    check_form(document, form, path)
    return dict(document)


# Document format, as needed for the tables. Checks are strict: nothing is converted.


class _Head(TypedDict):
    format: str
    format_version: int


class _Workload(TypedDict):
    kind: Literal["program"]
    name: str | None
    command: str | list[str]


class _Request(TypedDict):
    warmup_runs: NotRequired[Annotated[int, Field(ge=0, lt=2**31)]]
    count_first: NotRequired[Small | None]
    iterations_from: NotRequired[str | None]
    campaign_id: NotRequired[str | None]
    arm: NotRequired[str | None]
    block: NotRequired[Small | None]


class _Pass(TypedDict):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    kind: Literal["run", "trace", "counters"]
    folder: str
    profiler: str | None
    reason: NotRequired[str | None]


class _Profiler(TypedDict):
    name: str
    present: bool
    reason: str | None


class _Slot(TypedDict):
    file: str
    container: str | None


class _Capture(_Head):
    workload: _Workload
    request: _Request
    passes: list[_Pass]
    profilers: list[_Profiler]
    measurement_slot: NotRequired[_Slot]


class _Clocks(TypedDict):
    monotonic_ns: Whole
    realtime_ns: Realtime
    uncertainty_ns: Whole
    boottime_ns: NotRequired[Whole]


class _Output(TypedDict):
    bytes: Annotated[Whole, Field(ge=0)]
    tail_file: str


class _Left(TypedDict):
    pid: Whole
    command: str


class _Run(TypedDict):
    process_id: Whole
    start_monotonic_ns: Whole
    end_monotonic_ns: Whole
    user_ns: Annotated[Whole, Field(ge=0)] | None
    system_ns: Annotated[Whole, Field(ge=0)] | None
    max_rss_bytes: Annotated[Whole, Field(ge=0)] | None
    status: Annotated[int, Field(ge=0, le=255)] | None
    signal: str | None
    timed_out: bool
    left_running: list[_Left]
    clocks_before: _Clocks
    clocks_after: _Clocks
    stdout: _Output
    stderr: _Output


#: Iterations within a phase of this name are excluded, as warm-up runs are.
_WARM_UP: Final = r"(?i)^warm[-_ ]?up$"
_PASS_OF: Final = {"run": "latency", "trace": "trace", "counters": "counters"}
_TOLD_LINES: Final = 5
_TOLD_LETTERS: Final = 600
_MARKS: Final = pl.Schema(polars_types("program_marks"))


@dataclass(frozen=True)
class _Marked:
    """The marks of one run's processes combined, with the process of each."""

    run: ProgramRun
    ranges: pl.DataFrame


def tables_of(documents: ProgramDocuments, limits: Limits) -> CaptureTables:
    """Build all tables of a recorded folder, with evidence; details `iteration_threads` and `source_rows`.

    For each run that marks its iterations, `iteration_threads` has the marking thread: run, thread_id.
    """
    findings = Findings()
    # If kernels run one at a time and several times each, marks do not reflect the program's own time.
    marked = [_marked(run, limits, findings) for run in documents.runs if run.kind != "counters"]
    iterations = pl.concat([_of_run(one, documents, findings) for one in marked])
    threads = [(one.run.number, _first_of(one)["thread"]) for one in marked if _iterations_of(one).height]
    ordered = iterations.sort("pass", "run", "start_ns", maintain_order=True).with_columns(
        iteration=pl.int_range(pl.len()).over("pass"), latency_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    listed = partial(pl.DataFrame, documents.host["devices"], infer_schema_length=None)
    tables = {
        "program_runs": _runs(documents),
        "program_marks": _marks(marked, ordered, documents.axis_zero_monotonic_ns),
        "iterations": to_contract("iterations", ordered),
        "processes": _processes(documents),
        "devices": as_table("devices", listed, documents.folder / HOST_FILE),
        "clock_domains": _clocks(documents),
    }
    for run in documents.runs:
        _say_run(run, findings)
    findings.took("runs", len(documents.runs))
    details = {
        "source_rows": findings.source_rows(),
        "iteration_threads": pl.DataFrame(threads, schema={"run": pl.Int32, "thread_id": pl.Int64}, orient="row"),
    }
    return CaptureTables(tables, tuple(findings.evidence), details)


def _marked(run: ProgramRun, limits: Limits, findings: Findings) -> _Marked:
    """Read the marks of a run's processes; an unreadable file becomes evidence."""
    schema = {"pid": pl.Int64, "thread": pl.Int64, "kind": pl.UInt16, "name": pl.String, "start": pl.Int64}
    frames = [pl.DataFrame(schema={**schema, "end": pl.Int64})]
    folder = run.folder / MARKS_FOLDER
    files = [one.path for one in readable_entries(folder)] if is_folder(folder) else []
    for file in files:
        if file.suffix != MARKS_SUFFIX:
            continue
        source = f"{run.name}/{MARKS_FOLDER}/{file.name}"
        try:
            marks = read_marks(file, limits)
        except CaptureError as error:
            findings.say(f"marks {source}", "invalid", str(error), source=source)
            continue
        _say_marks(marks, source, findings)
        frames.append(marks.ranges.select(pl.lit(marks.process, pl.Int64).alias("pid"), pl.all()))
    return _Marked(run, pl.concat(frames).sort("start", maintain_order=True))


def _say_marks(marks: Marks, source: str, findings: Findings) -> None:
    reasons = []
    if marks.unpaired:
        reasons.append(f"{marks.unpaired} beginnings or ends are without the other and left out")
    if marks.impossible:
        reasons.append(f"{marks.impossible} records are none that a helper writes and left out")
    if marks.error:
        reasons.append(f"marking ended with the system's error {marks.error}: later marks are missing")
    status: Status = "partial" if reasons else "present"
    findings.took(f"marks {source}", marks.ranges.height + marks.unpaired + marks.impossible, marks.ranges.height)
    findings.say(f"marks {source}", status, "; ".join(reasons) or None, marks.ranges.height, source)


def _of_run(one: _Marked, documents: ProgramDocuments, findings: Findings) -> pl.DataFrame:
    """Return a run's iterations on the axis: those of the thread that began first, or else the entire run.

    A run under a profiler is not an iteration by itself.
    """
    run, zero = one.run, documents.axis_zero_monotonic_ns
    ranges = _iterations_of(one)
    phase = "warmup" if run.is_warmup else "measure"
    document = run.document
    if ranges.height:
        first = _first_of(one)
        own = ranges.filter((pl.col("pid") == first["pid"]) & (pl.col("thread") == first["thread"]))
        if own.height < ranges.height:
            others = f"{ranges.height - own.height} iterations of other threads and processes are not counted"
            reason = f"{others}: those of the one that began first are"
            findings.say(f"iterations of {run.name}", "partial", reason, own.height)
        warm = one.ranges.filter(pl.col("name").str.contains(_WARM_UP) & pl.col("end").is_not_null())
        spans = list(warm.filter(pl.col("pid") == first["pid"]).select("start", "end").iter_rows())
        within = pl.any_horizontal(pl.lit(False), *(pl.col("start").is_between(*span) for span in spans[:1_000]))
        return own.select(
            pl.lit(_PASS_OF[run.kind]).alias("pass"),
            run=pl.lit(run.number, pl.Int32),
            phase=pl.when(within).then(pl.lit("warmup")).otherwise(pl.lit(phase)),
            start_ns=pl.col("start") - zero,
            end_ns=pl.col("end") - zero,
            cpu_time_ns=pl.lit(None, pl.Int64),
        )
    times = (document["user_ns"], document["system_ns"])
    row = {
        "pass": "latency",
        "run": run.number,
        "phase": phase,
        "start_ns": document["start_monotonic_ns"] - zero,
        "end_ns": document["end_monotonic_ns"] - zero,
        "cpu_time_ns": None if None in times else sum(times),
    }
    times_of = dict.fromkeys(("start_ns", "end_ns", "cpu_time_ns"), pl.Int64)
    schema = {"pass": pl.String, "run": pl.Int32, "phase": pl.String, **times_of}
    return pl.DataFrame([row] if run.kind == "run" else [], schema=schema)


def _iterations_of(one: _Marked) -> pl.DataFrame:
    return one.ranges.filter(pl.col("kind") == ITERATION)


def _first_of(one: _Marked) -> dict[str, Any]:
    """Return the iteration that began first; only its thread's iterations count."""
    return _iterations_of(one).row(0, named=True)


def _marks(marked: Sequence[_Marked], iterations: pl.DataFrame, zero: int) -> pl.DataFrame:
    """Build phases and instants of all runs, each with the iteration in which it began."""
    frames = [_MARKS.to_frame()]
    for one in marked:
        named = one.ranges.filter(pl.col("kind") != ITERATION)
        own = iterations.filter(pl.col("run") == one.run.number).select("iteration", start="start_ns", until="end_ns")
        placed = (
            named.with_columns(pl.col("start") - zero, pl.col("end") - zero)
            .sort("start", maintain_order=True)
            .join_asof(own.sort("start"), on="start", strategy="backward", check_sortedness=False)
        )
        frames.append(
            placed.select(
                run=pl.lit(one.run.number, pl.Int32),
                kind=pl.when(pl.col("kind") == INSTANT).then(pl.lit("instant")).otherwise(pl.lit("phase")),
                name="name",
                pid="pid",
                thread_id="thread",
                iteration=pl.when(pl.col("start") < pl.col("until")).then("iteration").cast(pl.Int32),
                start_ns="start",
                end_ns=pl.coalesce("end", "start"),
            )
        )
    return to_contract("program_marks", pl.concat(frames))


def _runs(documents: ProgramDocuments) -> pl.DataFrame:
    zero = documents.axis_zero_monotonic_ns
    rows: list[dict[str, Any]] = []
    for run in documents.runs:
        one = run.document
        rows.append(
            {
                "run": run.number,
                "name": run.name,
                "pass": _PASS_OF[run.kind],
                "phase": "warmup" if run.is_warmup else "measure",
                "profiler": run.profiler,
                "pid": one["process_id"],
                "start_ns": one["start_monotonic_ns"] - zero,
                "end_ns": one["end_monotonic_ns"] - zero,
                "wall_ns": one["end_monotonic_ns"] - one["start_monotonic_ns"],
                **{key: one[key] for key in ("user_ns", "system_ns", "max_rss_bytes", "status", "signal", "timed_out")},
                "failure": run.failure,
                "left_running": len(one["left_running"]),
                "stdout_bytes": one["stdout"]["bytes"],
                "stderr_bytes": one["stderr"]["bytes"],
                "stderr_end": _last_lines(run),
            }
        )
    return as_table("program_runs", partial(pl.DataFrame, rows, infer_schema_length=None), documents.folder)


def _last_lines(run: ProgramRun) -> str | None:
    """Return the last lines of a run's standard error, without secrets; None if it is empty."""
    name = Path(run.document["stderr"]["tail_file"]).name
    try:
        with open_regular(run.folder / name) as stream:
            text = stream.read(1 << 20).decode("utf-8", "replace")
    except (OSError, CaptureError):
        return None
    shown = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in safe_text(text))
    lines = [line.strip() for line in shown.split("\n") if line.strip()][-_TOLD_LINES:]
    return " | ".join(lines)[-_TOLD_LETTERS:] or None


def _processes(documents: ProgramDocuments) -> pl.DataFrame:
    """Build one row per unprofiled run; profiler files state their processes themselves."""
    runs = [run for run in documents.runs if run.kind == "run"]
    common = {"host": documents.fact("host", "name"), "command": documents.command}
    pids = (run.document["process_id"] for run in runs)
    return table_of("processes", ({"process_id": number, "pid": pid, **common} for number, pid in enumerate(pids)))


def _clocks(documents: ProgramDocuments) -> pl.DataFrame:
    clocks, zero = documents.runs[0].document["clocks_before"], documents.axis_zero_monotonic_ns
    anchor = "bracketed readings of it and CLOCK_MONOTONIC before the first run"
    rows = [("monotonic", -zero, 0, "CLOCK_MONOTONIC of the host; zero is just before the first run")]
    for domain in ("realtime", "boottime"):
        if f"{domain}_ns" in clocks:
            offset = clocks["monotonic_ns"] - clocks[f"{domain}_ns"] - zero
            rows.append((domain, offset, clocks["uncertainty_ns"], anchor))
    return pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row")


def _say_run(run: ProgramRun, findings: Findings) -> None:
    what = {"run": "unprofiled run", "trace": "traced run", "counters": "counting run"}[run.kind]
    if run.kind == "counters" and (run.reason or run.failure) is not None:
        findings.say(f"{what} {run.name}", "partial", run.reason or run.failure, 1, f"{run.name}/run.json")
        return
    if run.failure is not None:
        findings.say(f"{what} {run.name}", "invalid", f"the program {run.failure}", 1, f"{run.name}/run.json")
        return
    left = run.document["left_running"]
    reason = f"{len(left)} processes still ran when the program had ended, and were ended" if left else None
    findings.say(f"{what} {run.name}", "partial" if left else "present", reason, 1, f"{run.name}/run.json")
