"""Move the kernel's ring-buffer pages into files while something is measured, and read the counts of CPU quotas.

The pages go through a pipe into a file unread; `aaco_pipeline.formats.native.kernel_plane` turns them into events.
"""

import fcntl
import gzip
import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.kernel_plane.tracefs import Instance
from aaco_pipeline.resources.telemetry.clocks import give_way, name_this_thread, next_instant

#: Folders of each version's groups: version 1's CPU controller by either of its names, version 2 alone or beside it.
_VERSION_1: Final = ("cpu", "cpu,cpuacct")
_VERSION_2: Final = (".", "unified")
_MOST_STAT_BYTES: Final = 4_096


class Quotas:
    """The counts of a process's groups, whose files stay open, since they are read beside the measured program."""

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
        return os.pread(self._files[group], _MOST_STAT_BYTES, 0).decode()


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
    """Sum how often and for how long (ns) quotas of these groups were used up; None where no group reports it.

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


#: Period of its thread's looks at quotas, and of the sampler beside it: each waking takes a CPU.
PERIOD_NS: Final = 500_000_000
#: A buffer is emptied when so much of it is full.
_FULL_PERCENT: Final = 50
_PIPE_BYTES: Final = 1 << 20
#: A recording ends at this size, or with so little disk left. Reading takes about 12 bytes of memory per byte, of the
#: 4 GiB that a reader may have: a larger one could never be read.
_MOST_PAGE_BYTES: Final = 192 << 20
_LEAST_FREE_BYTES: Final = 1 << 30


class PageReader:
    """Reads from when it is made until `finish` or `close`."""

    def __init__(self, instances: Mapping[str, Instance], folder: Path) -> None:
        self._instances = tuple(instances.values())
        self._buffers = [(name, one, cpu) for name, one in instances.items() for cpu in one.cpus()]
        self._folder = folder
        self._stopping = os.eventfd(0, os.EFD_CLOEXEC)
        #: Whose control groups are looked at, and how often quotas were used up by when.
        self.process: int | None = None
        self.throttling: list[dict[str, int | str]] = []
        self._quotas = Quotas()
        #: The reason that it stopped recording before the run was over, and the time.
        self.ended_early: str | None = None
        self._began = time.monotonic()
        self._moved_bytes = 0
        self._error: OSError | None = None
        self._sources: list[int] = []
        self._pipe = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # more than the system lets a user have
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._run, name="kernel plane", daemon=True)
        try:
            self._polls = all(one.wakes_when_full(_FULL_PERCENT) for one in self._instances)
            for name, one, cpu in self._buffers:
                self._sources.append(one.pages(cpu))
                self._file(name, cpu).touch()
        except BaseException:
            self.close()  # an instance with an open file cannot be removed
            raise
        self._thread.start()

    def finish(self) -> list[dict[str, Any]]:
        """Move the remaining pages and compress all: each buffer with its file and the kernel's counts."""
        self._stop()
        if self._error is not None:
            raise self._error
        page = os.sysconf("SC_PAGESIZE")
        found = []
        for source, (name, one, cpu) in zip(self._sources, self._buffers, strict=True):
            plain = self._file(name, cpu)
            packed = plain.with_name(f"{plain.name}.gz")
            # A page that is not full comes by reading alone.
            with plain.open("ab") as target, suppress(BlockingIOError):
                while content := os.read(source, page):
                    target.write(content.ljust(page, b"\0"))
            with plain.open("rb") as source_file, gzip.open(packed, "wb", compresslevel=1) as target_file:
                shutil.copyfileobj(source_file, target_file, _PIPE_BYTES)
            size = plain.stat().st_size
            plain.unlink()
            stats = one.stats(cpu)
            found.append({"instance": name, "cpu": cpu, "file": packed.name, "bytes": size, "stats": stats})
        return found

    def close(self) -> None:
        """Close everything, so that the instances can be removed."""
        self._stop()
        for descriptor in (*self._sources, *self._pipe, self._stopping):
            with suppress(OSError):
                os.close(descriptor)
        self._sources, self._pipe, self._stopping = [], (-1, -1), -1
        self._quotas.close()

    def look_at_the_quota(self) -> None:
        """Keep the present counts of the process's groups; after its end, the last ones."""
        found = self._quotas.of(self.process)
        if found is not None:
            keep_reading(self.throttling, {"monotonic_ns": time.monotonic_ns(), **found})

    def _stop(self) -> None:
        if self._thread.ident is not None and self._thread.is_alive():
            os.eventfd_write(self._stopping, 1)
            self._thread.join()

    def _file(self, name: str, cpu: int) -> Path:
        return self._folder / f"{name}.cpu{cpu}.pages"

    def _run(self) -> None:
        name_this_thread("aaco plane")
        give_way()
        try:
            waiting = self._waiting()
            while self._stopping not in (ready := {one for one, _ in waiting.poll(_until_next_instant_ms())}):
                if ready or not self._polls:
                    self._move()
                if not ready:
                    self.look_at_the_quota()
                if self.ended_early is None and (reason := self._why_to_end()) is not None:
                    after = time.monotonic() - self._began
                    self.ended_early = reason.format(f"nothing was recorded from {after:.1f} s on")
                    self._record_no_more()
            self._move()
        except OSError as error:
            self._error = error
            self._record_no_more()

    def _waiting(self) -> "select.poll":
        """Waits for the end, or a half full buffer; for the end alone where any event would wake it (before 5.0)."""
        waiting = select.poll()
        waiting.register(self._stopping, select.POLLIN)
        for source in self._sources if self._polls else ():
            waiting.register(source, select.POLLIN)
        return waiting

    def _move(self) -> None:
        outlet, inlet = self._pipe
        for source, (name, _, cpu) in zip(self._sources, self._buffers, strict=True):
            with suppress(BlockingIOError):
                while moved := os.splice(source, inlet, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK):
                    self._moved_bytes += moved
                    # Opened for what there is alone: with as many files as buffers a large host's would be too many.
                    with self._file(name, cpu).open("r+b", buffering=0) as target:
                        target.seek(0, os.SEEK_END)
                        while moved:
                            moved -= os.splice(outlet, target.fileno(), moved)

    def _why_to_end(self) -> str | None:
        if self._moved_bytes >= _MOST_PAGE_BYTES:
            return f"the recording holds {_MOST_PAGE_BYTES >> 20:,} MiB: {{}}; look at fewer iterations"
        if (full := why_full(self._folder)) is not None:
            return f"{full}: {{}}; free some"
        if not all(one.is_on() for one in self._instances):
            return "another program turned the recording off: {}; leave instances aaco_* of tracefs alone"
        return None

    def _record_no_more(self) -> None:
        for one in self._instances:
            with suppress(OSError):
                one.set("tracing_on", "0")


def _until_next_instant_ms() -> int:
    now = time.monotonic_ns()
    return -(-(next_instant(now, PERIOD_NS) - now) // 1_000_000)


def why_full(folder: Path) -> str | None:
    """Explain why no more may be written here: the rest is left for the capture itself and for other writers."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        return f"less than {_LEAST_FREE_BYTES >> 20:,} MiB are left on the disk"
    return None
