"""How often a process's control groups had used their CPU quota up, by the kernel's counts of version 1 and version 2.

A quota bounds a group and all below it, and is counted where it is set: by the group itself or by one above it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

#: Where the groups of each version lie: of version 1 the CPU controller's by either of its names, of version 2 alone or
#: beside version 1.
_VERSION_1: Final = ("cpu", "cpu,cpuacct")
_VERSION_2: Final = (".", "unified")


def groups_of(process: int, root: Path = Path("/")) -> list[Path]:
    """The folders of the control groups that may bound a process's CPU time, its own first; none of no process.

    `root` is where `proc` and `sys` lie.
    """
    try:
        lines = (root / f"proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        named = controllers.split(",")
        for mount in _VERSION_2 if not controllers else _VERSION_1 if "cpu" in named else ():
            counting = [one for one in _upwards(root / "sys/fs/cgroup" / mount, group) if _counts(one) is not None]
            if counting:
                return counting
    return []


def throttling_of(groups: Sequence[Path]) -> dict[str, int | str] | None:
    """How often and for how long (ns) quotas of these groups were used up, together; None where none says."""
    counts = [found for found in map(_counts, groups) if found is not None]
    if not counts:
        return None
    times, lengths = zip(*counts, strict=True)
    return {"group": str(groups[0]), "throttled": sum(times), "throttled_ns": sum(lengths)}


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container those that it may not see are not there, but the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _counts(group: Path) -> tuple[int, int] | None:
    """Version 1 counts nanoseconds in `throttled_time`, version 2 microseconds in `throttled_usec`."""
    try:
        values = {name: int(value) for name, value in map(str.split, (group / "cpu.stat").read_text().splitlines())}
    except (OSError, ValueError):
        return None
    if "nr_throttled" not in values:
        return None
    return values["nr_throttled"], values.get("throttled_time", values.get("throttled_usec", 0) * 1_000)
