"""The JSON documents of a recorded folder, checked for the fields that the tables need; further keys are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.checks import Realtime, Small, Whole, check_form
from aaco_pipeline.formats.native.program.names import CAPTURE_FILE, FORMAT
from aaco_pipeline.formats.parsing.json_document import json_document
from aaco_pipeline.formats.parsing.redaction import safe_command

FORMAT_VERSION: Final = 1
HOST_FILE: Final = "host.json"
RUN_FILE: Final = "run.json"
MARKS_FOLDER: Final = "marks"
MARKS_SUFFIX: Final = ".marks"


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program: `number` is its place in the recording, `kind` is run, trace or counters.

    `reason` is why one that counts counted nothing, or not all.
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
        """How it failed, in words; None when it ended well."""
        if self.document["timed_out"]:
            return "did not end within its time limit"
        if self.document["signal"] is not None:
            return f"was ended by {self.document['signal']}"
        status = self.document["status"]
        return None if status == 0 else "has no known end" if status is None else f"ended with status {status}"


@dataclass(frozen=True)
class ProgramDocuments:
    """A recorded folder's documents, read and checked. The axis' zero is where the first run's clocks were read."""

    folder: Path
    capture: Mapping[str, Any]
    host: Mapping[str, Any]
    runs: Sequence[ProgramRun]

    @property
    def axis_zero_monotonic_ns(self) -> int:
        return int(self.runs[0].document["clocks_before"]["monotonic_ns"])

    @property
    def command(self) -> str:
        """The program's command line, without secrets."""
        command = self.capture["workload"]["command"]
        return safe_command(command)

    @property
    def failure(self) -> str | None:
        """How the recording's first failed run failed; None when all ended well.

        One that counts is none of them: the program ended well before, and what failed is the counting.
        """
        own = (one for one in self.runs if one.kind != "counters")
        return next((f"{one.name} {one.failure}" for one in own if one.failure is not None), None)

    def fact(self, category: str, key: str) -> str | None:
        """One fact about the host by category and key; None when it is unknown."""
        found = (one["value"] for one in self.host["facts"] if (one["category"], one["key"]) == (category, key))
        return next(found, None)


def read_documents(path: Path) -> ProgramDocuments:
    """The documents in a recorded folder. CaptureError names the file, the key and what is wrong with it."""
    file = path / CAPTURE_FILE
    head = _document(file, _Head)
    if head["format"] != FORMAT or head["format_version"] > FORMAT_VERSION:
        raise CaptureError(
            f"{file}: format {head['format']} {head['format_version']}, and this aaco_pipeline reads {FORMAT} up to "
            f"{FORMAT_VERSION}; upgrade aaco_pipeline"
        )
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
    return ProgramDocuments(path, capture, _document(path / HOST_FILE, _Host), runs)


def _inside(path: Path, name: str) -> Path:
    """A folder beside the documents, by its name alone."""
    if "/" in name or "\0" in name or name.startswith(".") or not name:
        raise CaptureError(
            f"{path / CAPTURE_FILE}: passes: {name!r}: not a folder of the capture; the capture is damaged"
        )
    return path / name


def _document(path: Path, form: type) -> dict[str, Any]:
    """The JSON document at `path`, whole, after its checked part was held against `form`."""
    try:
        document = json_document(path)
    except FileNotFoundError as error:
        raise CaptureError(f"{path}: is missing; the capture is incomplete") from error
    check_form(document, form, path)
    return dict(document)


# The documents' form, as far as the tables need it. Checked strictly: nothing is converted.


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


class _Fact(TypedDict):
    category: str
    key: str
    value: str | None


class _Host(TypedDict):
    facts: list[_Fact]
    devices: list[dict[str, str | Whole | float | None]]


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
