"""`aaco calibrate`: measure this machine's ceilings and store them in the lake, for the rooflines of its sessions.

`aaco_pipeline.resources.calibrate` measures, `aaco_pipeline.lake.calibrations` stores.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from aaco_pipeline.cli.options import new_lake_option, wait_option
from aaco_pipeline.cli.output import console, data_format, print_json, print_table, progress_bar, tell
from aaco_pipeline.cli.run import Sizes

if TYPE_CHECKING:
    from aaco_pipeline.lake.calibrations import Calibration
    from aaco_pipeline.resources.project import Project

_COLUMNS: Final = ("ceiling", "best", "median", "2nd round", "before", "reached by")
_NUMERIC: Final = ("best", "median", "2nd round", "before")
_NOTE: Final = (
    "best: the quickest window · median: how far the middle window fell short of it · 2nd round: how far the next best "
    "round did · before: the previous calibration against this one. Bytes are what a kernel reads plus what it "
    "writes; what a store makes the processor read first is not counted."
)


@click.command()
@click.option("--threads", type=Sizes(), help="Thread counts, such as 1,8 (default: 1 and all usable CPUs).")
@click.option(
    "--device",
    type=click.IntRange(min=0),
    help="Calibrate this GPU, by number, instead of the CPU; needs hipcc or nvcc.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    help="Total time: over all thread counts (default 16), or for the GPU (default 20).",
)
@wait_option(tell)
@new_lake_option
@data_format
def calibrate(
    project: "Project", as_json: bool, threads: list[int] | None, device: int | None, seconds: float | None
) -> None:
    """Measure this machine's peak arithmetic and memory rates.

    The ceilings are stored in the lake, one file per thread count, and apply to sessions on this machine with the same
    thread count; GPU ceilings apply to all sessions on that GPU. Leave the machine idle during the measurement; any
    disturbance is reported.
    """
    from aaco_pipeline.errors import UsageError
    from aaco_pipeline.lake.calibrations import write_calibration

    if threads and device is not None:
        raise UsageError("--threads is for the CPU and --device for a GPU; measure one after the other")
    with progress_bar(as_json, single=True):
        made = _of_cpu(project, threads, seconds) if device is None else _of_gpu(device, seconds)
    kept = []
    for calibration in made:
        earlier = _earlier(project, calibration.machine, calibration.threads)
        file = write_calibration(project.lake, calibration)
        kept.append({"file": str(file), **calibration.document()})
        if not as_json:
            _print(calibration, earlier)
    if as_json:
        print_json(kept)
    else:
        _print_foot(made, [document["file"] for document in kept])


def _of_cpu(project: "Project", threads: list[int] | None, seconds: float | None) -> "list[Calibration]":
    from aaco_pipeline.resources.calibrate import calibration as measuring

    wanted = threads or measuring.default_threads()
    for count in wanted:  # fail before measuring if a result could not be stored
        _earlier(project, measuring.this_machine(), count)
    return measuring.calibrate(wanted, seconds or measuring.DEFAULT_SECONDS, tell)


def _of_gpu(device: int, seconds: float | None) -> "list[Calibration]":
    from aaco_pipeline.resources.calibrate import gpu

    return [gpu.calibrate_gpu(device, seconds or gpu.DEFAULT_SECONDS, tell)]


def _earlier(project: "Project", machine: "Mapping[str, str | None]", threads: int | None) -> "Calibration | None":
    """Read the calibration to be replaced; ignore a damaged one, refuse one from a newer version."""
    from aaco_pipeline.lake.calibrations import DamagedCalibrationError, read_calibration

    try:
        return read_calibration(project.lake, machine, threads)
    except DamagedCalibrationError:
        return None


def _print(calibration: "Calibration", before: "Calibration | None") -> None:
    from aaco_pipeline.resources.calibrate.calibration import (
        best_outcomes,
        resource_name,
        rounds_spread,
        shortfall,
        what_was_run,
    )

    earlier = {} if before is None else {(c.resource, c.dtype): c.value for c in before.ceilings}
    best = {(o["resource"], o["dtype"]): o for o in best_outcomes(calibration.details["measurements"])}
    rows = []
    for ceiling in calibration.ceilings:
        outcome = best[key := (ceiling.resource, ceiling.dtype)]
        rows.append(
            (
                resource_name(outcome),
                _rate(ceiling.value, ceiling.unit),
                _change(-shortfall(outcome)),
                _change(None if (spread := rounds_spread(outcome)) is None else -spread),
                _change(earlier[key] / ceiling.value - 1 if key in earlier else None),
                what_was_run(outcome, calibration.threads, briefly=True),
            )
        )
    print_table(_COLUMNS, rows, title=_title(calibration), numeric=_NUMERIC)


def _print_foot(made: "list[Calibration]", files: list[str]) -> None:
    """Explain the columns and doubtful or missing figures, and print where the calibration is stored."""
    from aaco_pipeline.report.formatting import counted

    screen = console()
    screen.print(_NOTE, style="dim", markup=False)
    for calibration in made:
        where = "" if calibration.threads is None else f" with {counted(calibration.threads, 'thread')}"
        for reservation in calibration.reservations:
            screen.print(f"doubtful{where}: {reservation}", style="yellow", markup=False)
    for name, reason in {name: why for c in made for name, why in c.absent.items()}.items():
        screen.print(f"absent: {name.replace('_', ' ')}: {reason}", markup=False)
    if any(calibration.reservations for calibration in made):
        screen.print("Nothing was corrected. Calibrate again when the machine is quiet.", markup=False)
    for file in files:
        screen.print(f"kept in {file}", markup=False, soft_wrap=True)


def _rate(value: float, unit: str) -> str:
    """Format a rate in G units per second with four digits, so that all ceilings of a machine are comparable."""
    from aaco_pipeline.report.formatting import number

    spoken = {"flop/s": "Gflop/s", "op/s": "Gop/s", "byte/s": "GB/s"}[unit]
    return f"{number(value / 1e9)} {spoken}"


def _change(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:+.1f} %"


def _title(calibration: "Calibration") -> str:
    """Return the device's name and how much of it was used."""
    from aaco_pipeline.report.formatting import counted, size

    if calibration.threads is None:
        device = calibration.details["device"]
        kind = "multiprocessors" if device["arch"].startswith("sm_") else "compute units"
        sizes = f"L2 {size(device['l2_bytes'])}, memory {size(device['memory_bytes'])}"
        return f"{device['name']} ({device['arch']}), {device['compute_units']} {kind} ({sizes})"
    model = calibration.machine.get("cpu.model") or "CPU of unknown model"
    return f"{model}, {counted(calibration.threads, 'thread')} {_caches(calibration)}"


def _caches(calibration: "Calibration") -> str:
    """Format the cache sizes per level as the kernel reports them: `(L1 48 KiB, L2 1 MiB, L3 32 MiB)`."""
    from aaco_pipeline.report.formatting import size

    told = [f"L{cache['level']} {size(cache['size_bytes'])}" for cache in calibration.details["caches"]]
    return f"({', '.join(told)})" if told else "(no caches stated)"
