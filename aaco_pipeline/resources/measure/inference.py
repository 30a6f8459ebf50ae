"""Run a model in measured child processes, one for each pass, and leave the raw capture of a session in a folder.

The measured process is `aaco_pipeline.resources.measure.inference_worker`; `aaco_pipeline.formats` reads its files;
`aaco_pipeline.resources.rocprofv3.passes` runs the passes under rocprofv3. The capture asset decides when this runs.
"""

import gzip
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from aaco_pipeline import __version__
from aaco_pipeline.capture.request import DEFAULT_ITERATIONS, DEFAULT_WARMUP, MeasurementRequest
from aaco_pipeline.errors import AacoError, ModelError, UnavailableError, UsageError
from aaco_pipeline.formats.native import FORMAT, FORMAT_VERSION, MODEL_FILE, OPTIMIZED_FILE, PROFILE_FILE
from aaco_pipeline.formats.native.telemetry import TELEMETRY_FILE
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake.files import file_digest, lake_errors
from aaco_pipeline.providers import CPU_PROVIDER, MIGRAPHX_PROVIDER
from aaco_pipeline.resources.configuration import BackendEntry, load_backends, load_models
from aaco_pipeline.resources.host.facts import host_facts, momentary_facts, software_of
from aaco_pipeline.resources.kernel_plane.page_reader import PERIOD_NS
from aaco_pipeline.resources.kernel_plane.recording import DOCUMENT_FILE, KernelPlane
from aaco_pipeline.resources.measure.inference_worker import LOOP, Refusal, plan_inputs
from aaco_pipeline.resources.measure.measurement_slot import (
    last_line,
    measurement_slot,
    own_container,
    run_measured,
    slot_path,
)
from aaco_pipeline.resources.measure.models import ModelChoice, model_digest, resolve_model
from aaco_pipeline.resources.progress import report_progress
from aaco_pipeline.resources.rocprofv3.command import ProfilerPass
from aaco_pipeline.resources.rocprofv3.passes import Around, check_profiling, prepare_profiler, run_profiled_passes
from aaco_pipeline.resources.telemetry.sampler import SystemSampler
from aaco_pipeline.resources.toolchains.limited import ending

PASSES: Final = ("latency", "trace")
_ANSWERS: Final = "answers.npz"
#: With less free disk space, a failed measured process may have run out of space.
_ROOM_BYTES: Final = 1 << 20
_PRECISION_OPTIONS: Final = {
    MIGRAPHX_PROVIDER: {
        "fp16": {"migraphx_fp16_enable": "1"},
        "bf16": {"migraphx_bf16_enable": "1"},
        "fp8": {"migraphx_fp8_enable": "1"},
        "int8": {"migraphx_int8_enable": "1"},
    }
}
#: The runtime's names for its graph optimization levels.
_OPTIMIZATION_LEVELS: Final = {
    "none": "disable_all",
    "basic": "enable_basic",
    "extended": "enable_extended",
    "all": "enable_all",
}
_ERRORS: Final[dict[str, type[AacoError]]] = {"usage": UsageError, "model": ModelError, "unavailable": UnavailableError}


def plan(request: MeasurementRequest, configs: Path) -> tuple[ModelChoice, BackendEntry]:
    """Look up the model and backend of `request` in the registries of the folder `configs`. Raises AacoError."""
    backends = load_backends(configs / "backends.yaml")
    if request.backend not in backends:
        raise UsageError(f"unknown backend {request.backend!r}; known: {', '.join(sorted(backends))}")
    backend = backends[request.backend]
    if request.precision != "model" and request.precision not in _PRECISION_OPTIONS.get(backend.provider, {}):
        raise UnavailableError(
            f"{backend.provider} cannot convert a model to {request.precision}; give a model of that precision, "
            "or use the migraphx backend"
        )
    check_profiling(request, backend, configs)
    file = None if request.artefact is None else Path(request.artefact)
    return resolve_model(request.model, load_models(configs / "models.yaml"), file), backend


def check_request(request: MeasurementRequest, configs: Path) -> Mapping[str, Sequence[int]]:
    """Refuse an impossible request before a session is created; return the known input shapes.

    Refuses everything that `plan` refuses, an interpreter without a runtime, and mismatched input shapes.
    """
    from aaco_pipeline.formats import onnx as onnx_format
    from aaco_pipeline.formats.onnx.weightless import graph_only

    model, backend = plan(request, configs)
    if request.interpreter is not None:
        software_of(request.interpreter)
    if request.output_tokens is not None:
        return {}  # a language model's inputs follow from the prompt
    try:
        inputs = onnx_format.read(graph_only(model.path), str(model.path)).inputs
    except ModelError:
        return {}  # the runtime decides which models it can load
    declared = {one.name: (one.dtype, list(one.dims)) for one in inputs if one.dtype and one.dims is not None}
    if len(declared) == len(inputs) and all(one.kind == "tensor" for one in inputs):
        try:
            planned = plan_inputs(declared, _job(request, model, backend))
            return {name: shape for name, (_, shape) in planned.items()}
        except Refusal as refusal:
            raise _ERRORS[refusal.kind](str(refusal)) from refusal
    return {}


def capture_inference(
    request: MeasurementRequest, folder: Path, configs: Path, log: Callable[[str], None], held: int | None = None
) -> None:
    """Measure `request` and fill `folder` with the raw capture. Waits for the host's measurement slot.

    `held` is the slot's descriptor if the caller already holds it for several consecutive captures.

    Writes `capture.json` (what was run), `host.json`, `telemetry.json` (the sampler's readings), and `<pass>.json` for
    each pass; the traced pass also leaves `onnxruntime_profile.json.gz` and, if the runtime can write it,
    `optimized_model.onnx`. The model's own graph is kept as `model.onnx`; both are stored without weights. With
    `request.kernel_plane`, also writes `kernel_plane.json` and the event files. With `request.profile`, writes a folder
    `rocprofv3/pass_N` for each pass under rocprofv3, with `<pass>.json` and the tool's own files. Raises AacoError; the
    folder's content is then not a valid capture.
    """
    model, backend = plan(request, configs)
    profiler = prepare_profiler(request, backend, configs)
    job = _job(request, model, backend)
    software = None if request.interpreter is None else software_of(request.interpreter)
    plane = KernelPlane(folder) if request.kernel_plane else None
    with measurement_slot(on_wait=log) if held is None else nullcontext(held) as slot:
        facts = host_facts(software)
        facts["facts"] += momentary_facts()
        kind = next(f["value"] for f in facts["facts"] if (f["category"], f["key"]) == ("container", "kind"))
        lock = {"file": str(slot_path()), "container": own_container(kind)}
        facts["facts"].append({"category": "measurement", "key": "loop", "value": LOOP, "volatile": False})
        # Anything that starts a process of its own is started before the first measured process.
        sampling = SystemSampler() if plane is None else SystemSampler(PERIOD_NS)
        with plane or nullcontext(), sampling as sampler:
            deadline = time.monotonic() + request.timeout_seconds
            measurement = _Measurement(folder, slot, deadline, request.timeout_seconds, sampler, plane)
            for name in PASSES[:1] if request.untraced else PASSES:
                _run_pass({**job, "pass": name}, measurement)
            if profiler is not None:
                unprofiled = json.loads((folder / "latency.json").read_text())
                profiled = run_profiled_passes(profiler, folder, unprofiled, partial(_profiled_pass, job, measurement))
    _write(folder / "host.json", facts)
    (folder / TELEMETRY_FILE).write_text(json.dumps(sampler.samples()))
    if plane is not None:
        _write(folder / DOCUMENT_FILE, plane.document())
    _keep_graphs(model.path, folder)
    _write(
        folder / "capture.json",
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "writer": f"aaco_pipeline {__version__}",
            "launch": {
                **request.model_dump(mode="json"),
                **{name: _safe_path(path) for name in ("model", "artefact") if (path := getattr(request, name))},
            },
            "model": {
                "name": safe_name(model.name),
                "origin": model.origin,
                "weights": model.weights,
                "file": safe_name(model.path.name),
                "sha256": file_digest(model.path),
                "artefact_sha256": model_digest(model.path),
            },
            "provider": backend.provider,
            "provider_options": job["provider_options"],
            "batch_size": job["batch_size"],
            "threads": job["threads"],
            "measurement_slot": lock,
            **({} if profiler is None else {"rocprofv3": profiled}),
        },
    )


def answer_inference(
    request: MeasurementRequest,
    folder: Path,
    configs: Path,
    held: int,
    *,
    runs: int,
    inputs_of: Path | None = None,
    joined: int = 1,
) -> list[dict[str, Any]]:
    """Run the model in a fresh process and return the output arrays of each run by name, without timing.

    Inputs are drawn from the request's seed, different for each run, or taken from the folder `inputs_of` of an earlier
    answer, with `joined` of them forming one batch. `folder` keeps inputs and outputs. Raises AacoError.
    """
    import numpy as np

    model, backend = plan(request, configs)
    file = folder / _ANSWERS
    asked = {"runs": runs, "inputs_of": inputs_of and str(inputs_of / _ANSWERS), "joined": joined, "answers": str(file)}
    deadline = time.monotonic() + request.timeout_seconds
    measurement = _Measurement(folder, held, deadline, request.timeout_seconds, None)
    _run_pass({**_job(request, model, backend), "pass": "answer", **asked}, measurement)
    names = json.loads((folder / "answer.json").read_text())["outputs"]
    with np.load(file) as kept:
        return [
            {name: kept[f"output_{run}_{place}"] for place, name in enumerate(names)} for run in range(runs // joined)
        ]


def _safe_path(path: str) -> str:
    """Return a model's name or path without secrets."""
    return "/".join(map(safe_name, path.split("/")))


def _job(request: MeasurementRequest, model: ModelChoice, backend: BackendEntry) -> dict[str, Any]:
    """Return the measured process's job: the request, completed from the registries and defaults."""
    options: dict[str, str] = {}
    if backend.device_id is not None:
        options["device_id"] = str(backend.device_id)
    if backend.fp16_enable is not None:
        options["migraphx_fp16_enable"] = "1" if backend.fp16_enable else "0"
    options.update(_PRECISION_OPTIONS.get(backend.provider, {}).get(request.precision, {}))
    options.update(request.provider_options)
    one = 1 if backend.provider == CPU_PROVIDER else None
    return {
        **request.model_dump(mode="json"),
        "model_path": str(model.path),
        "provider": backend.provider,
        "provider_options": options,
        "threads": _first_given(request.threads, backend.intra_op_threads, one),
        "inter_op_threads": backend.inter_op_threads,
        "input_shapes": {name: list(shape) for name, shape in {**model.input_shapes, **request.input_shapes}.items()},
        "shapes_asked": sorted(request.input_shapes),
        "dtype": model.dtype,
        "integer_upper_bound": dict(model.integer_upper_bound),
        "optimization": _OPTIMIZATION_LEVELS[request.optimization],
        "warmup": _first_given(request.warmup, model.warmup, DEFAULT_WARMUP),
        "iterations": _first_given(request.iterations, model.iterations, DEFAULT_ITERATIONS),
        "markers": False,
    }


def _keep_graphs(model: Path, folder: Path) -> None:
    """Keep the model's graph and the runtime's optimized graph, without weights."""
    from aaco_pipeline.formats.onnx.weightless import graph_only

    (folder / MODEL_FILE).write_bytes(graph_only(model))
    optimized = folder / OPTIMIZED_FILE
    if optimized.exists():
        optimized.write_bytes(graph_only(optimized))


@dataclass(frozen=True)
class _Measurement:
    """Shared state of a session's passes: the folder for their files, the slot, the time limit and the sampler.

    The sampler is missing if nothing is timed; the kernel's events are recorded only on request.
    """

    folder: Path
    slot: int
    deadline: float
    timeout_seconds: float
    sampler: SystemSampler | None
    plane: KernelPlane | None = None

    def began(self, process: int, label: str) -> None:
        """Sample and record a process that has just started."""
        if self.plane is not None:
            self.plane.follow(process, label)
        if self.sampler is not None:
            self.sampler.watch(process, label=label)


def _profiled_pass(
    job: dict[str, Any], measurement: _Measurement, profiler_pass: ProfilerPass, folder: Path, around: Around
) -> Mapping[str, Any]:
    """Run a pass under the command `around` it; keep its document in `folder`. Only the base pass gets markers."""
    name = profiler_pass.name
    _run_pass({**job, "pass": name, "markers": profiler_pass.kind == "base"}, measurement, folder, around)
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return document


def _run_pass(
    job: dict[str, Any], measurement: _Measurement, home: Path | None = None, around: Around | None = None
) -> None:
    """Run a pass in a fresh process, which inherits the measurement slot and ends with this one.

    Its document goes to `home`, or by default to the measurement's folder; `around` is the command of a profiler.
    """
    name = job["pass"]
    work = measurement.folder / f".{name}"
    work.mkdir()
    job_file = work / "job.json"
    _write(job_file, job)
    errors = work / "stderr"
    command: tuple[str, ...] = (
        *(job["interpreter"] or sys.executable, "-P", str(Path(__file__).with_name("inference_worker.py"))),
        *(str(job_file), str(work), str(os.getpid())),
    )
    if around is not None:
        command = around((*command, "nested"))
    status = run_measured(
        command,
        measurement.slot,
        errors,
        measurement.deadline,
        progress=lambda done, total: report_progress(f"{name} pass", int(done), int(total)),
        started=lambda process: measurement.began(process, name),
    )
    if status is None:
        raise ModelError(
            f"{job['model_path']}: the {name} pass did not end within the time limit of "
            f"{measurement.timeout_seconds:g} s; raise --timeout or lower --iterations"
        )
    refused = work / "error.json"
    if status != 0 or refused.is_file():
        _require_room(work)
    if refused.is_file():
        refusal = json.loads(refused.read_text())
        raise _ERRORS[refusal["kind"]](refusal["message"])
    if status != 0 and around is not None:
        raise UnavailableError(
            f"rocprofv3: ended with {ending(status)} in the {name} pass: {last_line(errors)}; the model runs "
            "without it, so check the tool, or run without --profile"
        )
    if status != 0:
        raise ModelError(
            f"{job['model_path']}: the measured process ended with {ending(status)} in the {name} pass: "
            f"{last_line(errors)}"
        )
    if not (work / "pass.json").is_file():
        raise UnavailableError(
            f"{command[0]}: the {name} pass exited cleanly, but the process wrote no output: {last_line(errors)}"
        )
    (work / "pass.json").rename((home or measurement.folder) / f"{name}.json")
    for profile in work.glob("onnxruntime_profile*.json"):
        _compress(profile, measurement.folder / PROFILE_FILE)
    if (work / OPTIMIZED_FILE).exists():
        (work / OPTIMIZED_FILE).rename(measurement.folder / OPTIMIZED_FILE)
    shutil.rmtree(work)


def _require_room(folder: Path) -> None:
    """Raise LakeError if the disk is full, because the measured process's failure is then not the model's fault."""
    probe = folder / "room"
    with lake_errors(folder):
        try:
            probe.write_bytes(bytes(_ROOM_BYTES))
        finally:
            probe.unlink(missing_ok=True)


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, gzip.GzipFile(target, "wb", compresslevel=1, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, 1 << 20)


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _first_given(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
