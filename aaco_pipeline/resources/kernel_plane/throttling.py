"""How often a process's control groups had used their CPU quota up, by the kernel's counts of version 1 and version 2.

A quota bounds a group and all below it, and is counted where it is set: by the group itself or by one above it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Where the groups of each version lie: of version 1 the CPU controller's by either of its names, of version 2 alone or
#: beside version 1.
_VERSION_1: Final = ("cpu", "cpu,cpuacct")
_VERSION_2: Final = (".", "unified")
_MOST_BYTES: Final = 4_096


class Quotas:
    """The counts of a process's groups, whose files stay open: it is looked at them beside what is measured."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._said = ""
        self._files: dict[Path, int] = {}

    def of(self, process: int | None) -> dict[str, int | str] | None:
        """As `throttling_of` the groups that the process is in now, or was in last; None without either."""
        try:
            said = (self._root / f"proc/{process}/cgroup").read_text()
        except OSError:
            said = self._said
        if said != self._said and process is not None:
            self.close()
            self._said = said
            for group in groups_of(process, self._root):
                with suppress(OSError):
                    self._files[group] = os.open(group / "cpu.stat", os.O_RDONLY | os.O_CLOEXEC)
        return throttling_of(list(self._files), self._read)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _read(self, group: Path) -> str:
        return os.pread(self._files[group], _MOST_BYTES, 0).decode()


def keep_reading(readings: list[dict[str, int | str]], reading: dict[str, int | str]) -> None:
    """Add a reading: of those in a row that count the same the first and the last stay, so that it is known since when
    a count may have risen.
    """
    counts = [{**one, "monotonic_ns": 0} for one in (*readings[-2:], reading)]
    if len(counts) == 3 and counts[0] == counts[1] == counts[2]:
        readings[-1] = reading
    else:
        readings.append(reading)


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
            counting = [
                one for one in _upwards(root / "sys/fs/cgroup" / mount, group) if _counts(one, _stat) is not None
            ]
            if counting:
                return counting
    return []


def throttling_of(groups: Sequence[Path], read: Callable[[Path], str] | None = None) -> dict[str, int | str] | None:
    """How often and for how long (ns) quotas of these groups were used up, together; None where none says.

    `read` gives what a group's `cpu.stat` says.
    """
    counts = [found for group in groups if (found := _counts(group, read or _stat)) is not None]
    if not counts:
        return None
    times, lengths = zip(*counts, strict=True)
    return {"group": str(groups[0]), "throttled": sum(times), "throttled_ns": sum(lengths)}


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container those that it may not see are not there, but the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _stat(group: Path) -> str:
    return (group / "cpu.stat").read_text()


def _counts(group: Path, read: Callable[[Path], str]) -> tuple[int, int] | None:
    """Version 1 counts nanoseconds in `throttled_time`, version 2 microseconds in `throttled_usec`."""
    try:
        values = {name: int(value) for name, value in map(str.split, read(group).splitlines())}
    except (OSError, ValueError):
        return None
    if "nr_throttled" not in values:
        return None
    return values["nr_throttled"], values.get("throttled_time", values.get("throttled_usec", 0) * 1_000)
