"""The raw capture of an inference session, as this project's own runner leaves it, to canonical tables.

The runner and its files are `aaco_pipeline.resources.measure.inference`; the profile beside them is read by
`aaco_pipeline.formats.ort_profile`. Metrics over the iterations are `aaco_pipeline.analysis.sessions.metrics`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NotRequired

import polars as pl
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import to_contract

FORMAT: Final = "aaco-inference"
FORMAT_VERSION: Final = 1
PROFILE_FILE: Final = "onnxruntime_profile.json.gz"
#: The model's graph, and the graph the runtime made of it, both without weights.
MODEL_FILE: Final = "model.onnx"
OPTIMIZED_FILE: Final = "optimized_model.onnx"
#: CLOCK_REALTIME moving this much against CLOCK_MONOTONIC within a pass is a step, not a slow correction.
CLOCK_STEP_NS: Final = 1_000_000
_PASSES: Final = ("latency", "trace")
#: The profile's times are cut to whole microseconds.
_PROFILE_TICK_NS: Final = 1_000


@dataclass(frozen=True)
class ProfilerPass:
    """One run of the session's program under rocprofv3: what it was asked for, and how far that slowed it.

    `kind` is base, counters or thread_trace; `folder` holds the tool's files; `document` is what the measured process
    wrote. `distortion` is the median latency over the unprofiled pass's; its times are never the session's latencies.
    """

    name: str
    kind: str
    folder: Path
    command: tuple[str, ...]
    counters: tuple[str, ...]
    kernel: str | None
    median_latency_ns: float
    distortion: float | None
    document: Mapping[str, Any]

    @property
    def boot_clock(self) -> tuple[int, int] | None:
        """What to add to CLOCK_BOOTTIME, which the tool's times are of, for CLOCK_MONOTONIC, and how uncertain that is.

        Both in ns; the uncertainty covers both readings, and the host sleeping between them. None without readings.
        """
        before, after = self.document.get("boot_clock_before"), self.document.get("boot_clock_after")
        if before is None or after is None:
            return None
        offset = int(before["monotonic_ns"] - before["boottime_ns"])
        moved = abs(int(after["monotonic_ns"] - after["boottime_ns"]) - offset)
        return offset, int(before["uncertainty_ns"]) + int(after["uncertainty_ns"]) + moved


@dataclass(frozen=True)
class InferenceCapture:
    """A session's raw documents, read and checked for the fields that the tables need.

    The session's axis is the host's CLOCK_MONOTONIC, with zero where the unprofiled pass first read its clocks.
    `profiler_passes` are those under rocprofv3, in their order; none when no profile was asked for.
    """

    folder: Path
    capture: Mapping[str, Any]
    host: Mapping[str, Any]
    passes: Mapping[str, Mapping[str, Any]]
    profiler_passes: tuple[ProfilerPass, ...] = ()

    @property
    def axis_zero_monotonic_ns(self) -> int:
        return int(self.passes["latency"]["clocks_before"]["monotonic_ns"])

    @property
    def tokens_per_request(self) -> int | None:
        """How many tokens each request generated; None when an iteration is a whole inference."""
        tokens: int | None = self.passes["latency"].get("output_tokens")
        return tokens

    def sessions(self, fingerprint: str, capture_digest: str) -> pl.DataFrame:
        """The one row of `sessions`."""
        launch = self.capture["launch"]
        inputs = self.passes["latency"]["inputs"]
        floats = sorted({i["dtype"] for i in inputs.values() if i["dtype"].startswith(("float", "bfloat"))})
        firsts = {i["shape"][0] for i in inputs.values() if i["shape"]}
        started = self.passes["latency"]["clocks_before"]["realtime_ns"]
        return to_contract(
            "sessions",
            pl.DataFrame(
                {
                    "source_kind": ["live"],
                    "source_format": [FORMAT],
                    "workload": ["generation" if self.tokens_per_request else "inference"],
                    "model_name": [self.capture["model"]["name"]],
                    "model_sha256": [self.capture["model"]["sha256"]],
                    "backend": [launch["backend"]],
                    "provider": [self.capture["provider"]],
                    "precision": [
                        launch["precision"]
                        if launch["precision"] != "model"
                        else (floats[0] if len(floats) == 1 else None)
                    ],
                    "batch_size": [firsts.pop() if len(firsts) == 1 else launch["batch_size"]],
                    "campaign_id": [launch["campaign_id"]],
                    "arm": [launch["arm"]],
                    "block": [launch["block"]],
                    "started_at": [datetime.fromtimestamp(started / 1e9, UTC)],
                    "host": [self.fact("host", "name")],
                    "fingerprint": [fingerprint],
                    "capture_digest": [capture_digest],
                    "threads": [self.capture["threads"]],
                    "prompt_tokens": [self.passes["latency"].get("prompt_tokens")],
                    "output_tokens": [self.tokens_per_request],
                    "seed": [launch["seed"]],
                    "allow_fallback": [launch["allow_fallback"]],
                }
            ),
        )

    def processes(self) -> pl.DataFrame:
        """One row per measured process: 0 ran the unprofiled pass, 1 the profiled one."""
        return to_contract(
            "processes",
            pl.DataFrame(
                {
                    "process_id": list(range(len(_PASSES))),
                    "host": [self.fact("host", "name")] * len(_PASSES),
                    "pid": [self.passes[name]["process_id"] for name in _PASSES],
                    "command": [f"aaco {name} pass of {self.capture['model']['name']}" for name in _PASSES],
                }
            ),
        )

    def devices(self) -> pl.DataFrame:
        """The devices the session could use: device 0 is the CPU."""
        return to_contract("devices", pl.DataFrame(self.host["devices"], infer_schema_length=None))

    def iterations(self) -> pl.DataFrame:
        """All iterations of both passes, the warm-up ones marked, on the session's axis.

        The pass `trace` is the one whose kernels the session shows: under rocprofv3 where that was asked for.
        """
        traced = next((one.document for one in self.profiler_passes if one.kind == "base"), self.passes["trace"])
        of_pass = {"latency": self.passes["latency"], "trace": traced}
        return to_contract("iterations", pl.concat([self._iterations(name, one) for name, one in of_pass.items()]))

    def clock_domains(self) -> pl.DataFrame:
        """How the host's clocks and the profile's clock map onto the session's axis."""
        latency, trace = (self.passes[name]["clocks_before"] for name in _PASSES)
        zero = self.axis_zero_monotonic_ns
        rows = [
            {
                "domain": "monotonic",
                "offset_ns": -zero,
                "uncertainty_ns": 0,
                "anchor": "CLOCK_MONOTONIC of the host; zero is the start of the unprofiled pass",
            },
            {
                "domain": "realtime",
                "offset_ns": latency["monotonic_ns"] - latency["realtime_ns"] - zero,
                "uncertainty_ns": latency["uncertainty_ns"],
                "anchor": "bracketed readings of CLOCK_REALTIME and CLOCK_MONOTONIC before the unprofiled pass",
            },
        ]
        if self.passes["trace"]["profile"] is not None:
            rows.append(
                {
                    "domain": "onnxruntime_profile",
                    "offset_ns": self.profile_axis_start_ns(),
                    "uncertainty_ns": trace["uncertainty_ns"] + abs(self.clock_drift_ns("trace")) + _PROFILE_TICK_NS,
                    "anchor": "the runtime's own wall-clock start of profiling, mapped by the readings of the pass",
                }
            )
        return to_contract("clock_domains", pl.DataFrame(rows))

    def profile_axis_start_ns(self) -> int:
        """Where the profile's time zero lies on the session's axis."""
        trace = self.passes["trace"]
        clocks = trace["clocks_before"]
        since = int(trace["profile"]["start_realtime_ns"]) - int(clocks["realtime_ns"])
        return since + int(clocks["monotonic_ns"]) - self.axis_zero_monotonic_ns

    def clock_drift_ns(self, name: str) -> int:
        """How far CLOCK_REALTIME moved against CLOCK_MONOTONIC during a pass."""
        before, after = self.passes[name]["clocks_before"], self.passes[name]["clocks_after"]
        return int((after["realtime_ns"] - after["monotonic_ns"]) - (before["realtime_ns"] - before["monotonic_ns"]))

    def inference_evidence(self) -> tuple[Evidence, ...]:
        """What the passes had and lacked."""
        items = []
        for name in _PASSES:
            one = self.passes[name]
            source = f"{name}.json"
            cut = one["iterations"] < one["iterations_asked"]
            items.append(
                Evidence(
                    f"{name} pass",
                    "partial" if cut else "present",
                    f"{one['iterations']} of {one['iterations_asked']} iterations, so that the profile stays below the "
                    "runtime's cap on events"
                    if cut
                    else None,
                    source,
                    one["warmup"] + one["iterations"],
                )
            )
            unread = sum(delay is None for delay in one["run_delay_ns"])
            if unread:
                items.append(
                    Evidence(
                        f"run-queue delay of the {name} pass",
                        "absent" if unread == len(one["run_delay_ns"]) else "partial",
                        f"{unread} iterations have none: /proc/self/task/*/schedstat could not be read",
                        source,
                    )
                )
            drift = self.clock_drift_ns(name)
            if abs(drift) > CLOCK_STEP_NS:
                items.append(
                    Evidence(
                        f"wall clock of the {name} pass",
                        "partial",
                        f"CLOCK_REALTIME moved {drift} ns against CLOCK_MONOTONIC during the pass; wall-clock times "
                        "are uncertain by as much, latencies are not concerned",
                        source,
                    )
                )
        elsewhere = {
            provider: count
            for provider, count in self.passes["latency"]["placement"]["node_counts"].items()
            if provider != self.capture["provider"]
        }
        asked = self.capture["provider"]
        if elsewhere or asked not in self.passes["latency"]["placement"]["active"]:
            where = ", ".join(f"{count} nodes on {provider}" for provider, count in sorted(elsewhere.items()))
            items.append(
                Evidence(
                    "execution provider", "partial", f"{asked} was asked for; fallback was allowed: {where}", asked
                )
            )
        else:
            items.append(Evidence("execution provider", "present", None, asked))
        items.append(Evidence("io binding", "present", None, self.passes["latency"]["io_binding"]))
        return (*items, *self._profiler_evidence())

    def _profiler_evidence(self) -> list[Evidence]:
        """Each pass under rocprofv3 with its distortion, and the markers that could not be set."""
        items = []
        for one in self.profiler_passes:
            source = one.folder.relative_to(self.folder).as_posix()
            ratio = "unknown" if one.distortion is None else f"{one.distortion:.3g}"
            told = f"median latency {one.median_latency_ns:.0f} ns, {ratio} times that of the unprofiled pass"
            count = one.document["warmup"] + one.document["iterations"]
            items.append(Evidence(f"rocprofv3 {one.name} pass", "present", told, source, count))
            markers = one.document.get("markers")
            if markers is not None:
                status: Status = "present" if markers["library"] is not None else "absent"
                rows = count if markers["library"] is not None else None
                reason = markers["missing"] or f"set with {markers['library']}"
                items.append(Evidence("iteration markers", status, reason, source, rows))
        return items

    def fact(self, category: str, key: str) -> str | None:
        """One fact about the host by category and key; None when it is unknown."""
        for one in self.host["facts"]:
            if (one["category"], one["key"]) == (category, key):
                value: str | None = one["value"]
                return value
        return None

    def _iterations(self, name: str, one: Mapping[str, Any]) -> pl.DataFrame:
        frame = pl.DataFrame(
            {
                "start_ns": one["start_monotonic_ns"],
                "end_ns": one["end_monotonic_ns"],
                "cpu_time_ns": one["cpu_time_ns"],
                "run_delay_ns": one["run_delay_ns"],
            },
            schema_overrides={"run_delay_ns": pl.Int64},
        ).with_row_index("iteration")
        zero = self.axis_zero_monotonic_ns
        tokens = self.tokens_per_request
        token_index = pl.lit(None) if tokens is None else pl.col("iteration") % tokens
        return frame.with_columns(
            pl.lit(name).alias("pass"),
            pl.when(pl.col("iteration") < one["warmup"])
            .then(pl.lit("warmup"))
            .otherwise(pl.lit("measure"))
            .alias("phase"),
            token_index.alias("token_index"),
            pl.col("start_ns") - zero,
            pl.col("end_ns") - zero,
            (pl.col("end_ns") - pl.col("start_ns")).alias("latency_ns"),
        )


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a raw capture's folder by its `capture.json`."""
    try:
        document = json.loads((path / "capture.json").read_bytes())
    except (OSError, ValueError):
        return None
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return DetectedFormat(FORMAT, f"inference session captured by {document.get('writer', 'aaco_pipeline')}")
    return None


def read(path: Path) -> InferenceCapture:
    """Read the documents of a raw capture. CaptureError names the file, the key and what is wrong with it."""
    head = _document(path / "capture.json", _Head)
    if head["format"] != FORMAT or head["format_version"] > FORMAT_VERSION:
        raise CaptureError(
            f"{path / 'capture.json'}: format {head['format']} {head['format_version']}, and this "
            f"aaco_pipeline reads {FORMAT} up to {FORMAT_VERSION}; upgrade aaco_pipeline"
        )
    capture = _document(path / "capture.json", _Capture)
    host = _document(path / "host.json", _Host)
    passes = {name: _document(path / f"{name}.json", _Pass) for name in _PASSES}
    for name, one in passes.items():
        _check_lengths(path / f"{name}.json", one)
    return InferenceCapture(path, capture, host, passes, _profiler_passes(path, capture))


def _profiler_passes(path: Path, capture: Mapping[str, Any]) -> tuple[ProfilerPass, ...]:
    return tuple(_profiler_pass(path, one) for one in capture.get("rocprofv3", {"passes": ()})["passes"])


def _profiler_pass(path: Path, one: Mapping[str, Any]) -> ProfilerPass:
    inside = PurePosixPath(one["folder"])
    name = one["name"]
    if inside.is_absolute() or ".." in inside.parts or "/" in name or name.startswith("."):
        raise CaptureError(
            f"{path / 'capture.json'}: rocprofv3.passes: {one['folder']!r}, {name!r}: not a place within the capture; "
            "the capture is damaged"
        )
    document = _document(path / inside / f"{name}.json", _Pass)
    _check_lengths(path / inside / f"{name}.json", document)
    return ProfilerPass(
        name,
        one["kind"],
        path / inside,
        tuple(one["command"]),
        tuple(one["counters"]),
        one["kernel"],
        float(one["median_latency_ns"]),
        one["distortion"],
        document,
    )


def _check_lengths(path: Path, one: Mapping[str, Any]) -> None:
    lengths = {len(one[key]) for key in ("start_monotonic_ns", "end_monotonic_ns", "cpu_time_ns", "run_delay_ns")}
    if lengths != {one["warmup"] + one["iterations"]}:
        raise CaptureError(f"{path}: its arrays of readings differ in length; the file is damaged")


# The documents' form, as far as the tables need it; further keys are kept. Checked strictly: nothing is converted.


class _Head(TypedDict):
    format: str
    format_version: int


class _Launch(TypedDict):
    backend: str
    precision: str
    seed: int
    allow_fallback: bool
    batch_size: int | None
    campaign_id: str | None
    arm: str | None
    block: int | None


class _Model(TypedDict):
    name: str
    sha256: str
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


class _Capture(_Head):
    launch: _Launch
    model: _Model
    provider: str
    threads: int | None
    rocprofv3: NotRequired[_Profiler]


class _Fact(TypedDict):
    category: str
    key: str
    value: str | None


class _Host(TypedDict):
    facts: list[_Fact]
    devices: list[dict[str, str | int | float | None]]


class _Clocks(TypedDict):
    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


class _BootClock(TypedDict):
    monotonic_ns: int
    boottime_ns: int
    uncertainty_ns: int


class _Markers(TypedDict):
    library: str | None
    missing: str | None


class _Profile(TypedDict):
    start_realtime_ns: int


class _Placement(TypedDict):
    active: list[str]
    node_counts: dict[str, int]


class _Input(TypedDict):
    shape: list[int]
    dtype: str


class _Pass(TypedDict):
    process_id: int
    warmup: int
    iterations: int
    iterations_asked: int
    start_monotonic_ns: list[int]
    end_monotonic_ns: list[int]
    cpu_time_ns: list[int]
    run_delay_ns: list[int | None]
    clocks_before: _Clocks
    clocks_after: _Clocks
    boot_clock_before: NotRequired[_BootClock | None]
    boot_clock_after: NotRequired[_BootClock | None]
    markers: NotRequired[_Markers | None]
    profile: _Profile | None
    placement: _Placement
    inputs: dict[str, _Input]
    io_binding: str


def _document(path: Path, form: type) -> dict[str, Any]:
    """The JSON document at `path`, whole, after its checked part was held against `form`."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: cannot be read as JSON: {error}") from error
    try:
        TypeAdapter(form).validate_python(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CaptureError(f"{path}: {where}: {first['msg']}; the capture is incomplete or damaged") from error
    return dict(document)
