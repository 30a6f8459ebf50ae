"""How quiet a machine is, in words: what took the CPUs from threads that wanted nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.report.words.session import Row
from aaco_pipeline.report.words.units import counted, duration, grouped, share

_TIMER: Final = "local_timer"


def machine_sentences(rows: Sequence[Row], runnable: Sequence[int], seconds: float, reason: str | None) -> list[str]:
    """What was seen: time that vanished, the timer, other threads and interrupts, how many threads wanted a CPU.

    `rows` are `machine_takes`; `reason` is why the kernel was not recorded, None where it was.
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
    ticks = [row for row in rows if row["kind"] == "interrupt" and row["name"] == _TIMER]
    if ticks:
        count, taken = sum(row["occurrences"] for row in ticks), sum(row["taken_ns"] for row in ticks)
        rate, cost = count / (total / 1e9), duration(taken / max(count, 1))
        said.append(f"The timer ticks at {rate:.0f} Hz and costs {cost} a tick ({share(taken / total)}).")
    others = [row for row in rows if row["kind"] == "thread"]
    if taken := sum(row["taken_ns"] for row in others):
        said.append(f"Other threads took {share(taken / total)}, most of it {_most(others)}.")
    else:
        said.append("No other thread took a CPU.")
    further = [row for row in rows if row["kind"] == "interrupt" and row["name"] != _TIMER]
    if taken := sum(row["taken_ns"] for row in further):
        said.append(f"Other interrupts took {share(taken / total)}, most of it {_most(further)}.")
    return [*said, *_wanted(runnable, len(whole))]


TAKES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "*CPU": lambda row: grouped(row["cpu"]),
    "taken by": lambda row: row["name"] or ("nothing that was seen" if row["kind"] == "unseen" else "unknown"),
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
        taken[row["name"]] = taken.get(row["name"], 0) + row["taken_ns"]
    return max(sorted(taken), key=lambda name: taken[name])


def _wanted(runnable: Sequence[int], cpus: int) -> list[str]:
    if not runnable:
        return []
    mean = sum(runnable) / len(runnable)
    return [f"On average {mean:.1f} threads wanted a CPU, {cpus} of them the probes."]
