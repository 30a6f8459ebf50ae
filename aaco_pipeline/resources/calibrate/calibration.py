"""Measures this machine's ceilings in fresh processes that hold the host's measurement slot.

Which kernels are run is `aaco_pipeline.resources.calibrate.kernels`; running them is
`aaco_pipeline.resources.calibrate.worker`; keeping what comes of it is `aaco_pipeline.lake.calibrations`.
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

#: For all numbers of threads together; starting the processes comes on top.
DEFAULT_SECONDS: Final = 16.0
#: A process that takes this much longer than it was given is ended.
_PATIENCE: Final = 10
_LEAST_PATIENCE_SECONDS: Final = 120.0
_STEPS: Final = 1000
#: Share of lost time from which a calibration is doubtful.
NOISY_RATIO: Final = 0.02
#: A ceiling whose windows reach this much less at the median is called unsteady.
UNSTEADY_RATIO: Final = 0.10
_LATENCY: Final = "dram_latency"
_NO_LATENCY: Final = "a chain of dependent loads needs compiled code, and nothing here is compiled"
_KERNEL_TEXTS: Final = {
    "read": "NumPy vecdot, two arrays read",
    "update": "NumPy add.reduce, two arrays read and one of them written",
    "scale": "NumPy multiply in place, one array read and written",
    "copy": "NumPy copyto, one array read and one written",
}

#: Common names of resources that are not called by their own name in capitals.
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
    """One thread, as sessions on the CPU have by default, and as many as there are usable CPUs."""
    return tuple(sorted({1, len(os.sched_getaffinity(0))}))


def this_machine() -> dict[str, str | None]:
    """The facts that distinguish this machine and its state, as a calibration keeps them."""
    return machine_of({(fact["category"], fact["key"]): fact["value"] for fact in host_facts()["facts"]})


def calibrate(threads: Sequence[int], seconds: float, log: Callable[[str], None]) -> list[Calibration]:
    """One calibration for each of `threads`, measured within about `seconds` together.

    Waits for the host's measurement slot. UsageError for more threads than usable CPUs, UnavailableError when a
    measured process fails or none of the ceilings could be measured.
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
    """Report the progress of the whole calibration from that of one process."""

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
        outcome.pop("model", None)  # the path of a file that is gone
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
    """The best measurement of each resource and number format, in the order they were made."""
    measured = [outcome for outcome in outcomes if "outcome" in outcome]
    order = {_resource(outcome): place for place, outcome in reversed(list(enumerate(measured)))}
    grouped = groupby(sorted(measured, key=lambda outcome: order[_resource(outcome)]), key=_resource)
    return [max(group, key=lambda outcome: float(outcome["outcome"]["best"])) for _, group in grouped]


def shortfall(outcome: Outcome) -> float:
    """Shortfall of a measurement's median window below its best, as a share of the best."""
    return 1.0 - float(outcome["outcome"]["median"]) / float(outcome["outcome"]["best"])


def rounds_spread(outcome: Outcome) -> float | None:
    """Shortfall of a measurement's second best round below the best, as a share; null when there is one round."""
    rounds = sorted(outcome["outcome"]["rounds"], reverse=True)
    return 1.0 - rounds[1] / rounds[0] if len(rounds) > 1 else None


def reservations(best: Sequence[Outcome], noise: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Reasons to doubt the ceilings: lost time, rounds that do not agree, windows that mostly fell short.

    Nothing is corrected for it: a disturbed ceiling is one that the machine did reach, and may be too low.
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
    """The common name of a resource: `arithmetic fp32`, `matrix bf16`, `L2`, `DRAM`."""
    resource, dtype = outcome["resource"], outcome["dtype"]
    spoken = _SPOKEN.get(resource, resource.upper())
    return f"{spoken} {dtype}" if dtype else spoken


def what_was_run(outcome: Outcome, threads: int | None, *, briefly: bool = False) -> str:
    """The kernel and its size in words; briefly, without its arrays. A GPU's kernel describes itself."""
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
    """The reason for each resource that no kernel could measure, by resource and number format."""
    measured = {_resource(outcome) for outcome in best}
    return {
        separator.join(filter(None, _resource(outcome))): str(outcome["failed"])
        for outcome in outcomes
        if _resource(outcome) not in measured
    }


def _cpu_features() -> frozenset[str]:
    """The features that the kernel states for the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    stated = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(stated.partition(":")[2].split())


def _run(
    job: Mapping[str, Any], process: kernels.Process, folder: Path, slot: int, tell: Callable[[float], None]
) -> dict[str, Any]:
    """Run one fresh process, which inherits the measurement slot and dies with this one; return its result."""
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
