"""Measure this machine's ceilings in fresh processes that hold the host's measurement slot.

`aaco_pipeline.resources.calibrate.kernels` chooses the kernels, `aaco_pipeline.resources.calibrate.worker` runs them,
and `aaco_pipeline.lake.calibrations` stores the results.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.lake.calibrations import Calibration, Ceiling, machine_of
from aaco_pipeline.resources.calibrate import kernels
from aaco_pipeline.resources.calibrate.worker import SETTLED_WITHIN
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.host.kernel_files import caches
from aaco_pipeline.resources.measure.measurement_slot import last_line, measurement_slot, run_measured
from aaco_pipeline.resources.progress import report_progress
from aaco_pipeline.resources.toolchains.limited import ending

#: Time budget for all thread counts together; starting the processes is extra.
DEFAULT_SECONDS: Final = 16.0
#: A process that overruns its time by this much is killed.
_PATIENCE: Final = 10
_LEAST_PATIENCE_SECONDS: Final = 120.0
_STEPS: Final = 1000
#: Fraction of lost time above which a calibration is doubtful.
NOISY_RATIO: Final = 0.02
#: A ceiling is called unsteady if its median window falls short of the best by this fraction.
UNSTEADY_RATIO: Final = 0.10
_LATENCY: Final = "dram_latency"
_NO_LATENCY: Final = "a chain of dependent loads needs compiled code, and nothing here is compiled"
_KERNEL_TEXTS: Final = {
    "read": "NumPy vecdot, two arrays read",
    "update": "NumPy add.reduce, two arrays read and one of them written",
    "scale": "NumPy multiply in place, one array read and written",
    "copy": "NumPy copyto, one array read and one written",
}

#: Display names of resources whose name is not simply their identifier in capitals.
_SPOKEN: Final = {
    "vector": "arithmetic",
    "vector_integer": "arithmetic",
    "vector_packed": "packed arithmetic",
    "matrix": "matrix",
    "vl1d": "L1",
    "lds": "shared memory",
}

Outcome = dict[str, Any]


def default_threads() -> tuple[int, ...]:
    """Return one thread, the default of CPU sessions, and the number of usable CPUs."""
    return tuple(sorted({1, len(os.sched_getaffinity(0))}))


def this_machine() -> dict[str, str | None]:
    """Return the facts that identify this machine and its state, as stored in a calibration."""
    return machine_of({(fact["category"], fact["key"]): fact["value"] for fact in host_facts()["facts"]})


def calibrate(threads: Sequence[int], seconds: float, log: Callable[[str], None]) -> list[Calibration]:
    """Return one calibration for each of `threads`, measured within about `seconds` in total.

    Waits for the host's measurement slot. Raises UsageError if there are more threads than usable CPUs, and
    UnavailableError if a measured process fails or no ceiling could be measured.
    """
    usable = os.sched_getaffinity(0)
    for count in threads:
        if not 1 <= count <= len(usable):
            raise UsageError(
                f"--threads {count}: {len(usable)} CPUs are usable here, and threads that wait for one another "
                f"have no ceiling; give 1 to {len(usable)}"
            )
    wanted = sorted(set(threads))
    made = []
    with measurement_slot(on_wait=log) as slot:
        machine = this_machine()
        for place, count in enumerate(wanted):
            progress = _Progress(place, len(wanted))
            made.append(_calibrate(count, seconds / len(wanted), slot, machine, progress))
    return made


class _Progress:
    """Convert the progress of one process to progress of the whole calibration."""

    def __init__(self, place: int, places: int) -> None:
        self._place, self._places = place, places
        self.before = 0.0
        self.share = 0.0
        self.doing = ""

    def tell(self, done: float) -> None:
        whole = (self._place + self.before + self.share * min(max(done, 0.0), 1.0)) / self._places
        report_progress(self.doing, round(_STEPS * whole), _STEPS)


def _calibrate(
    threads: int, seconds: float, slot: int, machine: Mapping[str, str | None], progress: _Progress
) -> Calibration:
    usable = os.sched_getaffinity(0)
    cpus = kernels.cpus_in_order(usable)[:threads]
    known = caches(usable)
    sets, absent = kernels.working_sets(known, cpus, kernels.available_bytes())
    measured_at = datetime.now(UTC).replace(microsecond=0)
    outcomes: list[Outcome] = []
    noise: dict[str, Any] = {}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="aaco-calibrate-") as name:
        folder = Path(name)
        kernels.write_models(folder, kernels.sides_for(threads))
        for process in kernels.processes(sets, threads, _cpu_features(), folder):
            progress.share = process.time_share
            progress.doing = f"{process.name}, {threads} thread{'' if threads == 1 else 's'}"
            job = {
                "threads": threads,
                "cpus": cpus,
                "seconds": seconds * process.time_share,
                "measurements": [dict(measurement) for measurement in process.measurements],
            }
            result = _run(job, process, folder, slot, progress.tell)
            progress.before += process.time_share
            outcomes += result["measurements"]
            noise[process.name] = result["noise"]
            versions |= result["versions"]
    date = measured_at.isoformat().replace("+00:00", "Z")
    best = best_outcomes(outcomes)
    if not best:
        raise UnavailableError(f"nothing could be measured with {threads} threads: {outcomes[0].get('failed')}")
    for outcome in outcomes:
        outcome.pop("model", None)  # the path of a deleted file
    usual = DEFAULT_SECONDS / 2
    quick = [f"quick: {seconds:.3g} s of measuring, where {usual:.3g} s and more are usual"] if seconds < usual else []
    return Calibration(
        machine=machine,
        threads=threads,
        measured_at=date,
        ceilings=tuple(_ceiling(outcome, threads, date) for outcome in best),
        absent={**absent, **failures(outcomes, best, "_"), _LATENCY: _NO_LATENCY},
        reservations=(*quick, *reservations(best, noise)),
        details={
            "caches": kernels.cache_documents(known),
            "cpus": cpus,
            "measurements": outcomes,
            "noise": noise,
            "versions": versions,
        },
    )


def best_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the best measurement of each resource and number format, in measurement order."""
    measured = [outcome for outcome in outcomes if "outcome" in outcome]
    order = {_resource(outcome): place for place, outcome in reversed(list(enumerate(measured)))}
    grouped = groupby(sorted(measured, key=lambda outcome: order[_resource(outcome)]), key=_resource)
    return [max(group, key=lambda outcome: float(outcome["outcome"]["best"])) for _, group in grouped]


def shortfall(outcome: Outcome) -> float:
    """Return how far a measurement's median window falls below its best, as a fraction of the best."""
    return 1.0 - float(outcome["outcome"]["median"]) / float(outcome["outcome"]["best"])


def rounds_spread(outcome: Outcome) -> float | None:
    """Return how far the second-best round falls below the best, as a fraction of the best; null for a single round."""
    rounds = sorted(outcome["outcome"]["rounds"], reverse=True)
    return 1.0 - rounds[1] / rounds[0] if len(rounds) > 1 else None


def reservations(best: Sequence[Outcome], noise: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return reasons to doubt the ceilings: lost time, disagreeing rounds, windows that mostly fell short.

    Nothing is corrected: a disturbed ceiling was still reached by the machine, but may be too low.
    """
    found = []
    for name, meaning in (
        ("run_delay_ratio", "of the time that the measuring process wanted CPUs, it waited for them"),
        ("steal_ratio", "of the CPU time went to other guests of the hypervisor"),
    ):
        worst = max(((shares.get(name) or 0.0, process) for process, shares in noise.items()), default=(0.0, ""))
        if worst[0] >= NOISY_RATIO:
            found.append(f"{100 * worst[0]:.1f} % {meaning} ({worst[1]})")
    spreads = [(outcome, rounds_spread(outcome)) for outcome in best]
    apart = [
        resource_name(outcome) + ("" if spread is None else f" ({100 * spread:.1f} %)")
        for outcome, spread in spreads
        if spread is None or spread > SETTLED_WITHIN
    ]
    if apart:
        found.append(f"the two best rounds are more than {100 * SETTLED_WITHIN:g} % apart: {', '.join(apart)}")
    unsteady = [
        f"{resource_name(outcome)} ({100 * shortfall(outcome):.0f} %)"
        for outcome in best
        if shortfall(outcome) > UNSTEADY_RATIO
    ]
    if unsteady:
        found.append(
            f"half of the windows fell more than {100 * UNSTEADY_RATIO:g} % short of the best: {', '.join(unsteady)}"
        )
    return found


def resource_name(outcome: Outcome) -> str:
    """Return the display name of a resource: `arithmetic fp32`, `matrix bf16`, `L2`, `DRAM`."""
    resource, dtype = outcome["resource"], outcome["dtype"]
    spoken = _SPOKEN.get(resource, resource.upper())
    return f"{spoken} {dtype}" if dtype else spoken


def what_was_run(outcome: Outcome, threads: int | None, *, briefly: bool = False) -> str:
    """Describe the kernel and its size; the brief form omits its arrays. GPU kernels provide their own description."""
    if threads is None:
        return str(outcome["kernel"])
    if outcome["kernel"] in ("runtime", "product"):
        return f"{outcome['label']}, {outcome['side']}²"
    size = outcome["thread_bytes"] * threads
    amount = f"{size / 1024:,.0f} KiB" if size < 10 << 20 else f"{size / (1 << 20):,.0f} MiB"
    text = _KERNEL_TEXTS[outcome["kernel"]]
    return f"{text.partition(',')[0] if briefly else text}, {amount}"


def _resource(outcome: Outcome) -> tuple[str, str]:
    return outcome["resource"], outcome["dtype"] or ""


def _ceiling(outcome: Outcome, threads: int, date: str) -> Ceiling:
    best = outcome["outcome"]
    text = (
        f"{what_was_run(outcome, threads)} in all; {threads} thread{'' if threads == 1 else 's'}; best of "
        f"{best['windows']} windows in {len(best['rounds'])} rounds, median {100 * shortfall(outcome):.1f} % below, "
        f"coefficient of variation {best['variation']:.3f}; {date}"
    )
    if outcome["kernel"] in ("runtime", "product"):
        text = text.replace(" in all;", ";", 1)
    return Ceiling(outcome["resource"], outcome["dtype"], float(best["best"]), outcome["unit"], text)


def failures(outcomes: Sequence[Outcome], best: Sequence[Outcome], separator: str) -> dict[str, str]:
    """Return why no kernel could measure a resource, by resource and number format."""
    measured = {_resource(outcome) for outcome in best}
    return {
        separator.join(filter(None, _resource(outcome))): str(outcome["failed"])
        for outcome in outcomes
        if _resource(outcome) not in measured
    }


def _cpu_features() -> frozenset[str]:
    """Return the features that the Linux kernel lists for the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    stated = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(stated.partition(":")[2].split())


def _run(
    job: Mapping[str, Any], process: kernels.Process, folder: Path, slot: int, tell: Callable[[float], None]
) -> dict[str, Any]:
    """Run one fresh process, which inherits the measurement slot and ends with this one; return its result."""
    job_file, result_file = folder / "job.json", folder / "result.json"
    job_file.write_text(json.dumps(job))
    result_file.unlink(missing_ok=True)
    script = Path(__file__).with_name("worker.py")
    command = [sys.executable, "-P", str(script), str(job_file), str(result_file), str(os.getpid())]
    tell(0.0)
    limit = max(_LEAST_PATIENCE_SECONDS, _PATIENCE * job["seconds"])
    status = run_measured(
        command,
        slot,
        folder / "stderr",
        time.monotonic() + limit,
        progress=lambda done, _: tell(done),
        environment=process.environment,
    )
    if status is None:
        raise UnavailableError(f"the measured process of {process.name} did not end within {limit:g} s")
    if status != 0:
        raise UnavailableError(
            f"the measured process of {process.name} ended with {ending(status)}: {last_line(folder / 'stderr')}"
        )
    result: dict[str, Any] = json.loads(result_file.read_text())
    return result
