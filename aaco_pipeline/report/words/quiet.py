"""How quiet a machine is, in words: what took the CPUs from threads that wanted nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.report.words.session import Row, interval
from aaco_pipeline.report.words.units import counted, duration, grouped, share

_TIMER: Final = "local_timer"
#: Why the number of threads that wanted a CPU is not known.
NO_RUNNABLE: Final = "/proc/stat does not say procs_running"
_NAMELESS: Final = {"unseen": "nothing that was seen", "beside": "around handlers and switches"}


def machine_sentences(
    rows: Sequence[Row], runnable: Sequence[int] | None, seconds: float, reason: str | None
) -> list[str]:
    """What was seen: time that vanished, the timer, other threads and interrupts, how many threads wanted a CPU.

    `rows` are `machine_takes`; `reason` is why the kernel was not recorded, None where it was; `runnable` is None
    where the host does not say it.
    """
    whole = {row["cpu"]: row["of_ns"] for row in rows}
    total = sum(whole.values()) or 1
    on = f"{counted(len(whole), 'CPU')} for {seconds:g} s"
    if reason is not None:
        gaps = sum(row["taken_ns"] for row in rows)
        elsewhere = f"On {on}, {share(gaps / total)} of the CPU time went elsewhere. By what is unknown: {reason}."
        return [elsewhere, *_wanted(runnable, len(whole))]
    unseen = share(_sum(rows, "unseen") / total)
    said = [f"On {on}, {unseen} of the CPU time vanished unseen: no event of the kernel explains it."]
    threads = [row for row in rows if row["kind"] == "thread"]
    ticks = [row for row in rows if row["kind"] == "interrupt" and row["name"] == _TIMER]
    if ticks:
        count, taken = sum(row["occurrences"] for row in ticks), sum(row["taken_ns"] for row in ticks)
        # While another thread has the CPU, the timer interrupts that one.
        rate = count / max((total - _sum(rows, "thread") - _sum(rows, "state")) / 1e9, 1e-9)
        tick = f"The timer interrupts {rate:.0f} times a second; its handler takes {duration(taken / max(count, 1))}"
        said.append(f"{tick}{_typically([row['typical_gap_ns'] for row in ticks])}.")
    if taken := _sum(rows, "beside"):
        outside = f"Another {share(taken / total)} went in the gaps around handlers and switches"
        said.append(f"{outside}: entering and leaving them, or a pause that nothing tells apart.")
    if taken := sum(row["taken_ns"] for row in threads):
        said.append(f"Other threads took {share(taken / total)}, most of it {_most(threads)}.")
    else:
        said.append("No other thread took a CPU.")
    if states := [row for row in rows if row["kind"] == "state"]:
        said.append(f"For {share(_sum(rows, 'state') / total)} the probes were off a CPU otherwise: {_most(states)}.")
    further = [row for row in rows if row["kind"] in ("interrupt", "softirq") and row not in ticks]
    if taken := sum(row["taken_ns"] for row in further):
        said.append(f"Other handlers took {share(taken / total)}, most of it {_most(further)}.")
    return [*said, *_wanted(runnable, len(whole))]


TAKES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "*CPU": lambda row: grouped(row["cpu"]),
    "taken by": lambda row: row["name"] or _NAMELESS.get(row["kind"], "unknown"),
    "as": lambda row: row["kind"],
    "*times": lambda row: grouped(row["occurrences"]),
    "*time": lambda row: duration(row["taken_ns"]),
    "*share": lambda row: share(row["taken_ns"] / row["of_ns"]) if row["of_ns"] else None,
}


def _sum(rows: Sequence[Row], kind: str) -> int:
    return sum(row["taken_ns"] for row in rows if row["kind"] == kind)


def _most(rows: Sequence[Row]) -> str:
    taken: dict[str, int] = {}
    for row in rows:
        name = f"softirq {row['name']}" if row["kind"] == "softirq" else row["name"]
        taken[name] = taken.get(name, 0) + row["taken_ns"]
    return max(sorted(taken), key=lambda name: taken[name])


def _typically(gaps: Sequence[int | None]) -> str:
    """How long a gap is that holds the timer alone, by the medians of the CPUs that had one."""
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    long = duration(low) if duration(low) == duration(high) else interval({"ci_low": low, "ci_high": high})
    return f", and a gap that holds it alone is typically {long} long"


def _wanted(runnable: Sequence[int] | None, cpus: int) -> list[str]:
    if not runnable:
        return [f"How many threads wanted a CPU is unknown: {NO_RUNNABLE}."] if runnable is None else []
    mean = sum(runnable) / len(runnable)
    return [f"On average {mean:.1f} threads wanted a CPU, {cpus} of them the probes."]
