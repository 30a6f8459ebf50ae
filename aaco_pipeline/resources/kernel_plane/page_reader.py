"""Move the kernel's ring-buffer pages into files during a measurement, and read the counters of CPU quotas.

The pages go through a pipe into a file without being parsed; `aaco_pipeline.formats.native.kernel_plane` turns them
into events.
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

#: Group folders of each cgroup version: version 1's CPU controller under either name, version 2 alone or alongside it.
_VERSION_1: Final = ("cpu", "cpu,cpuacct")
_VERSION_2: Final = (".", "unified")
_MOST_STAT_BYTES: Final = 4_096


class Quotas:
    """The counters of a process's groups; the files stay open, because they are read during the measurement."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._said = ""
        self._files: dict[Path, int] = {}

    def of(self, process: int | None) -> dict[str, int | str] | None:
        """Return `throttling_of` the groups that the process is in, or was last in; None without either."""
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
    """Add a reading; of equal consecutive readings keep the first and the last, to show when a count may have risen."""
    counts = [{**one, "monotonic_ns": 0} for one in (*readings[-2:], reading)]
    if len(counts) == 3 and counts[0] == counts[1] == counts[2]:
        readings[-1] = reading
    else:
        readings.append(reading)


def groups_of(process: int, root: Path = Path("/")) -> list[Path]:
    """Return the control groups that may limit a process's CPU time, its own first; empty without a process.

    `root` contains `proc` and `sys`.
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
    """Sum how often and for how long (ns) quotas of these groups were used up; None if no group reports it.

    `read` returns the content of a group's `cpu.stat`.
    """
    counts = [found for group in groups if (found := _counts(group, read or _stat)) is not None]
    if not counts:
        return None
    times, lengths = zip(*counts, strict=True)
    return {"group": str(groups[0]), "throttled": sum(times), "throttled_ns": sum(lengths)}


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """Return the group's folder and its parents. In a container, invisible parents are missing, except for the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _stat(group: Path) -> str:
    return (group / "cpu.stat").read_text()


def _counts(group: Path, read: Callable[[Path], str]) -> tuple[int, int] | None:
    """Return number and ns: version 1 has `throttled_time` in ns, version 2 `throttled_usec` in microseconds."""
    try:
        values = {name: int(value) for name, value in map(str.split, read(group).splitlines())}
    except (OSError, ValueError):
        return None
    if "nr_throttled" not in values:
        return None
    return values["nr_throttled"], values.get("throttled_time", values.get("throttled_usec", 0) * 1_000)


#: Period for reading quotas, shared with the sampler, because each wake-up takes a CPU.
PERIOD_NS: Final = 500_000_000
#: A buffer is emptied once this fraction of it is full.
_FULL_PERCENT: Final = 50
_PIPE_BYTES: Final = 1 << 20
#: A recording ends at this size, or with this little disk space left. Reading takes about 12 bytes of memory per byte,
#: and a reader may have 4 GiB: a larger recording could never be read.
_MOST_PAGE_BYTES: Final = 192 << 20
_LEAST_FREE_BYTES: Final = 1 << 30


class PageReader:
    """Reads from its creation until `finish` or `close`."""

    def __init__(self, instances: Mapping[str, Instance], folder: Path) -> None:
        self._instances = tuple(instances.values())
        self._buffers = [(name, one, cpu) for name, one in instances.items() for cpu in one.cpus()]
        self._folder = folder
        self._stopping = os.eventfd(0, os.EFD_CLOEXEC)
        #: The process whose control groups are watched, and how often quotas were used up at which time.
        self.process: int | None = None
        self.throttling: list[dict[str, int | str]] = []
        self._quotas = Quotas()
        #: The reason why recording stopped before the end of the run, and the time.
        self.ended_early: str | None = None
        self._began = time.monotonic()
        self._moved_bytes = 0
        self._error: OSError | None = None
        self._sources: list[int] = []
        self._pipe = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # more than the system allows the user
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
        """Move the remaining pages and compress everything; return each buffer's file and the kernel's counters."""
        self._stop()
        if self._error is not None:
            raise self._error
        page = os.sysconf("SC_PAGESIZE")
        found = []
        for source, (name, one, cpu) in zip(self._sources, self._buffers, strict=True):
            plain = self._file(name, cpu)
            packed = plain.with_name(f"{plain.name}.gz")
            # Partially filled pages are only returned by an explicit read.
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
        """Record the current counters of the process's groups; after its end, the last ones."""
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
        """Waits for the end or a half-full buffer; only for the end if any event would wake it (before 5.0)."""
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
                    # Opened only for the existing data: with one file per buffer, a large host would need too many.
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
    """Explain why no more may be written here: the rest is reserved for the capture itself and for other writers."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        return f"less than {_LEAST_FREE_BYTES >> 20:,} MiB are left on the disk"
    return None
