"""The raw capture of an inference session, written by this project's runner.

Written by `aaco_pipeline.resources.measure.inference`; `aaco_pipeline.formats.ort_profile` reads the profile next to
its documents, `telemetry` the readings of host and GPUs, and `scheduler` the scheduler events.
`aaco_pipeline.analysis.sessions.metrics` computes metrics over the iterations. Versions 1 and 2 of the documents are
read: version 1 read CPU time and run-queue delay around each iteration, version 2 reads them in blocks.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.native.inference import (
    CLOCK_STEP_NS,
    FORMAT,
    FORMAT_VERSION,
    MODEL_FILE,
    OPTIMIZED_FILE,
    PASSES,
    PROFILE_FILE,
    InferenceCapture,
    ProfilerPass,
)
from aaco_pipeline.formats.parsing.json_document import (
    HostDocument,
    Realtime,
    Small,
    Whole,
    check_document,
    check_form,
    json_document,
)

__all__ = [
    "CLOCK_STEP_NS",
    "FORMAT",
    "FORMAT_VERSION",
    "MODEL_FILE",
    "OPTIMIZED_FILE",
    "PROFILE_FILE",
    "InferenceCapture",
    "ProfilerPass",
    "probe",
    "read",
]


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a raw capture's folder by its `capture.json`."""
    try:
        document = json_document(path / "capture.json")
    except CaptureError:
        return None
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return DetectedFormat(FORMAT, f"inference session captured by {document.get('writer', 'aaco_pipeline')}")
    return None


def read(path: Path) -> InferenceCapture:
    """Read the documents of a raw capture. CaptureError names the file, the key and the problem."""
    file = path / "capture.json"
    head = _document(file, _Head)
    check_document(head, FORMAT, FORMAT_VERSION, (), str(file))
    capture = _document(file, _Capture)
    host = _document(path / "host.json", HostDocument)
    version = head["format_version"]
    asked = PASSES[:1] if capture["launch"].get("untraced", False) else PASSES
    passes = {name: _pass(path / f"{name}.json", version) for name in asked}
    profiled = tuple(_profiler_pass(path, one, version) for one in capture.get("rocprofv3", {"passes": ()})["passes"])
    return InferenceCapture(path, capture, host, passes, profiled)


#: The last version whose loop read counters around each iteration.
_COUNTED_EACH: Final = 1


def _profiler_pass(path: Path, one: Mapping[str, Any], version: int) -> ProfilerPass:
    inside = PurePosixPath(one["folder"])
    name = one["name"]
    if inside.is_absolute() or ".." in inside.parts or "/" in name or name.startswith("."):
        reason = f"rocprofv3.passes: {one['folder']!r}, {name!r}: not a place within the capture"
        raise CaptureError(f"{path / 'capture.json'}: {reason}; the capture is damaged")
    return ProfilerPass(
        folder=path / inside,
        command=tuple(one["command"]),
        counters=tuple(one["counters"]),
        median_latency_ns=float(one["median_latency_ns"]),
        document=_pass(path / inside / f"{name}.json", version),
        **{key: one[key] for key in ("name", "kind", "kernel", "distortion")},
    )


def _pass(path: Path, version: int) -> dict[str, Any]:
    """Read the document that a measured process wrote about its pass."""
    each = version <= _COUNTED_EACH
    one = _document(path, _PassCountedEach if each else _PassCountedInBlocks)
    arrays = ("start_monotonic_ns", "end_monotonic_ns", *(("cpu_time_ns", "run_delay_ns") if each else ()))
    count = one["warmup"] + one["iterations"]
    if {len(one[key]) for key in arrays} != {count}:
        raise CaptureError(f"{path}: its arrays of readings differ in length; the file is damaged")
    if not each:
        _check_blocks(path, one, count)
    return one


def _check_blocks(path: Path, one: Mapping[str, Any], count: int) -> None:
    """Raise CaptureError unless the blocks are contiguous, each around iterations of one phase."""
    first, border = 0, None
    for block in one["blocks"]:
        after = first + block["iterations"]
        holds = (
            first < after <= count
            and not first < one["warmup"] < after
            and border in (None, block["start_monotonic_ns"])
            and block["start_monotonic_ns"] <= one["start_monotonic_ns"][first]
            and block["end_monotonic_ns"] >= one["end_monotonic_ns"][after - 1]
        )
        if not holds:
            raise CaptureError(f"{path}: its blocks do not fit the iterations; the file is damaged")
        first, border = after, block["end_monotonic_ns"]
    if first != count:
        raise CaptureError(f"{path}: its blocks hold {first} of {count} iterations; the file is damaged")


# Document format, as needed for the tables; further keys are kept. Checks are strict: nothing is converted.


_Positive = Annotated[int, Field(ge=1, lt=2**31)]


class _Head(TypedDict):
    format: str
    format_version: int


class _Launch(TypedDict):
    backend: str
    precision: str
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    allow_fallback: bool
    batch_size: Small | None
    campaign_id: str | None
    arm: str | None
    block: Small | None
    untraced: NotRequired[bool]


class _Model(TypedDict):
    name: str
    sha256: str
    artefact_sha256: NotRequired[str]
    weights: str


class _ProfilerPass(TypedDict):
    name: str
    kind: Literal["base", "counters", "thread_trace"]
    folder: str
    command: list[str]
    counters: list[str]
    kernel: str | None
    median_latency_ns: float
    distortion: float | None


class _Profiler(TypedDict):
    release: str
    passes: list[_ProfilerPass]


class _Slot(TypedDict):
    file: str
    container: str | None


class _Capture(_Head):
    launch: _Launch
    model: _Model
    provider: str
    threads: Small | None
    measurement_slot: NotRequired[_Slot]
    rocprofv3: NotRequired[_Profiler]


class _Clocks(TypedDict):
    monotonic_ns: Whole
    realtime_ns: Realtime
    uncertainty_ns: Whole


class _BootClock(TypedDict):
    monotonic_ns: Whole
    boottime_ns: Whole
    uncertainty_ns: Whole


class _Markers(TypedDict):
    library: str | None
    missing: str | None


class _Profile(TypedDict):
    start_realtime_ns: Realtime


class _Placement(TypedDict):
    active: list[str]
    node_counts: dict[str, Whole]


class _Input(TypedDict):
    shape: list[Small]
    dtype: str


class _Probe(TypedDict):
    before_iteration: Small
    cpu: Small | None
    start_ns: Whole
    end_ns: Whole
    gaps: list[Annotated[list[Whole], Field(min_length=2, max_length=2)]]


class _Probed(TypedDict):
    minor_fault_ns: float
    probes: list[_Probe]


class _Pass(TypedDict):
    process_id: Whole
    warmup: Whole
    iterations: Whole
    iterations_asked: Whole
    start_monotonic_ns: list[Whole]
    end_monotonic_ns: list[Whole]
    clocks_before: _Clocks
    clocks_after: _Clocks
    boot_clock_before: NotRequired[_BootClock | None]
    boot_clock_after: NotRequired[_BootClock | None]
    markers: NotRequired[_Markers | None]
    profile: _Profile | None
    placement: _Placement
    inputs: dict[str, _Input]
    prompt_tokens: NotRequired[Small | None]
    output_tokens: NotRequired[_Positive | None]
    io_binding: str
    kernel_plane: NotRequired[_Probed | None]


class _PassCountedEach(_Pass):
    cpu_time_ns: list[Whole]
    run_delay_ns: list[Whole | None]


class _Block(TypedDict):
    iterations: Whole
    start_monotonic_ns: Whole
    end_monotonic_ns: Whole
    cpu_time_ns: Whole
    run_delay_ns: Whole | None


class _PassCountedInBlocks(_Pass):
    blocks: list[_Block]


def _document(path: Path, form: type) -> dict[str, Any]:
    """Read the JSON document at `path` and check its format; further keys are kept."""
    document = json_document(path)
    check_form(document, form, path)
    return dict(document)
