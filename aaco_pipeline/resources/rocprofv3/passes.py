"""A session's passes under rocprofv3: their requirements, their order, and their section of capture.json.

`aaco_pipeline.resources.rocprofv3.command` defines the command of a pass and its required files;
`aaco_pipeline.resources.measure.inference` starts the measured process.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import CaptureError, UnavailableError, UsageError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.providers import MIGRAPHX_PROVIDER, ROCM_PROVIDER
from aaco_pipeline.resources.configuration import COUNTER_SETS_FILE, BackendEntry, load_counter_sets
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    ProfilerPass,
    Release,
    check_thread_trace,
    counter_input,
    counter_passes,
    expected_outputs,
    find_tool,
    folder_name,
    gpu_architecture,
    installed_release,
    rocprofv3_command,
    stated,
)
from aaco_pipeline.resources.sqlite_copy import copy_database

#: Providers that run on devices visible to rocprofv3.
PROFILED_PROVIDERS: Final = (MIGRAPHX_PROVIDER, ROCM_PROVIDER)
#: The folder of all rocprofv3 passes within a raw capture.
FOLDER: Final = "rocprofv3"
AUTOMATIC_KERNEL: Final = "auto"
#: Subfolders that rocprofv3 creates in its output folder when it reads counters from a file.
_OWN_FOLDERS: Final = ("pmc_1", "pass_1")

#: Returns the command that wraps a program.
Around = Callable[[Sequence[str]], tuple[str, ...]]
#: Runs the measured program once, given the pass, the folder for its document, and the wrapping command.
RunPass = Callable[[ProfilerPass, Path, Around], Mapping[str, Any]]


@dataclass(frozen=True)
class Profiler:
    """This host's rocprofv3 and the requested passes, resolved before anything is timed."""

    tool: Path
    version: str
    release: Release
    counter_passes: tuple[ProfilerPass, ...]
    thread_trace: str | None
    architecture: str | None


def check_profiling(request: MeasurementRequest, backend: BackendEntry, configs: Path) -> None:
    """Raise UsageError if the request wants a profile that its backend does not support, or an unknown counter set."""
    if not request.profile:
        return
    if backend.provider not in PROFILED_PROVIDERS:
        raise UsageError(
            f"backend {request.backend!r}: rocprofv3 sees AMD GPUs only, and {backend.provider} runs on none; profile "
            "with --backend migraphx, or leave --profile, --counters and --thread-trace out: the runtime's own trace "
            "of the operators is always taken, and --kernel-plane adds what the kernel did"
        )
    if request.counters is not None:
        load_counter_sets(configs / COUNTER_SETS_FILE).named(request.counters)


def prepare_profiler(request: MeasurementRequest, backend: BackendEntry, configs: Path) -> Profiler | None:
    """Prepare rocprofv3 for the request; None if it is not needed. Starts `rocprofv3 --version`. AacoError."""
    if not request.profile:
        return None
    tool = find_tool()
    version, release = installed_release(tool)
    if request.thread_trace is not None:
        check_thread_trace(release)
    architecture = gpu_architecture(backend.device_id or 0)
    groups: tuple[tuple[str, ...], ...] = ()
    if request.counters is not None:
        groups = load_counter_sets(configs / COUNTER_SETS_FILE).groups(request.counters, stated(architecture))
    return Profiler(tool, version, release, counter_passes(groups), request.thread_trace, architecture)


def run_profiled_passes(profiler: Profiler, raw: Path, unprofiled: Mapping[str, Any], run: RunPass) -> dict[str, Any]:
    """Run all passes, each in a separate folder below `raw`; return the section `rocprofv3` of capture.json.

    `unprofiled` is the document of the reference pass: the distortion of a pass is its median latency divided by the
    reference's. A thread trace comes last, because the kernel and the execution to trace are taken from the base pass.
    Raises AacoError; CaptureError if a pass does not leave its files.
    """
    passes = []
    base = median_latency_ns(unprofiled)
    for number, profiler_pass in enumerate(_passes(profiler, raw), start=1):
        folder = raw / FOLDER / folder_name(number)
        folder.mkdir(parents=True)
        command, document = _run_one(profiler, profiler_pass, folder, run)
        median = median_latency_ns(document)
        passes.append(
            {
                "name": profiler_pass.name,
                "kind": profiler_pass.kind,
                "folder": f"{FOLDER}/{folder.name}",
                "command": list(command),
                "counters": list(profiler_pass.counters),
                "kernel": profiler_pass.kernel,
                "execution": profiler_pass.execution if profiler_pass.kernel is not None else None,
                "median_latency_ns": median,
                "distortion": median / base if base else None,
            }
        )
    return {
        "tool": str(profiler.tool),
        "version": profiler.version,
        "release": profiler.release.name,
        "architecture": profiler.architecture,
        "passes": passes,
    }


def median_latency_ns(document: Mapping[str, Any]) -> float:
    """Return the median latency of a pass's measured iterations, without warm-up."""
    times = zip(document["start_monotonic_ns"], document["end_monotonic_ns"], strict=True)
    return float(statistics.median([end - start for start, end in times][document["warmup"] :]))


def kernel_to_trace(folder: Path, asked: str) -> tuple[str, int]:
    """Return the full name of the kernel to trace, and the number of its execution: the middle one, which is warm.

    `asked` is a name, a substring that only one kernel's name contains, or `auto`: the kernel with the most time on the
    critical path of the base pass, whose files are in `folder`. Raises UsageError if no kernel or several match.
    """
    # Imported here because only this function needs the readers and the analysis.
    from aaco_pipeline.capture.merging import kernels_on_path

    kernels = kernels_on_path(folder)
    if not kernels:
        raise UnavailableError(f"{folder}: the base pass saw no kernel; check that the model runs on the GPU")
    if asked == AUTOMATIC_KERNEL:
        name = max(kernels, key=lambda one: (kernels[one][0], one))
    elif asked in kernels:
        name = asked
    else:
        meant = sorted(one for one in kernels if asked in one)
        if len(meant) != 1:
            longest = sorted(kernels, key=lambda one: -kernels[one][0])[:3]
            raise UsageError(
                f"thread trace: {len(meant) or 'no'} kernels of this run are named {asked!r}; give a whole name or "
                f"'{AUTOMATIC_KERNEL}'; those with the most time: {', '.join(longest)}"
            )
        (name,) = meant
    return name, kernels[name][1] // 2 + 1


def _passes(profiler: Profiler, raw: Path) -> Iterator[ProfilerPass]:
    yield BASE_PASS
    yield from profiler.counter_passes
    if profiler.thread_trace is not None:
        name, execution = kernel_to_trace(raw / FOLDER / folder_name(1), profiler.thread_trace)
        yield ProfilerPass("thread_trace", "thread_trace", kernel=name, execution=execution)


def _run_one(
    profiler: Profiler, profiler_pass: ProfilerPass, folder: Path, run: RunPass
) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Run one pass and check its files; return its command and the measured process's document."""
    given = counter_input(profiler.release, profiler_pass)
    if given is not None:
        (folder / given[0]).write_text(given[1])
    commands: list[tuple[str, ...]] = []

    def around(program: Sequence[str]) -> tuple[str, ...]:
        commands.append(rocprofv3_command(profiler.release, profiler_pass, folder, program, profiler.tool))
        return commands[-1]

    document = run(profiler_pass, folder, around)
    _gather(folder)
    _without_secrets(folder)
    _check_outputs(profiler, profiler_pass, folder, int(document["process_id"]))
    return commands[-1], document


def _gather(folder: Path) -> None:
    """Move the files out of the tool's own subfolder, so that every release leaves the same names."""
    for own in (folder / name for name in _OWN_FOLDERS):
        if own.is_dir():
            for entry in list(own.iterdir()):
                entry.rename(folder / entry.name)
            own.rmdir()


def _without_secrets(folder: Path) -> None:
    """Remove secrets from the tool's databases, which contain the program's complete environment."""
    for database in folder.glob("*.db"):
        clean = database.with_name(f"{database.name}.clean")
        copy_database(database, clean, Limits())
        clean.replace(database)


def _check_outputs(profiler: Profiler, profiler_pass: ProfilerPass, folder: Path, process_id: int) -> None:
    for pattern in expected_outputs(profiler.release, profiler_pass, process_id):
        if next(folder.glob(pattern), None) is not None:
            continue
        advice = "check that the model runs on the GPU and that `rocprofv3 --kernel-trace` works for a program by hand"
        if profiler_pass.kind == "thread_trace":
            decoder = "" if profiler.release.decoder_included else ", and that rocprof-trace-decoder is installed"
            advice = f"check that execution {profiler_pass.execution} of {profiler_pass.kernel} takes place{decoder}"
        raise CaptureError(
            f"{FOLDER}/{folder.name}: rocprofv3 of ROCm {profiler.version} left no {pattern} in the "
            f"{profiler_pass.name} pass; {advice}"
        )
