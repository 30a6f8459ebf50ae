"""Sources of the sampler: kernel files that are opened once and read in place, one integer per column.

`aaco_pipeline.resources.telemetry.sampler` schedules and stores the readings.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from os import pread
from pathlib import Path
from typing import Final, Protocol

#: The measured process's threads are listed again at most this often.
TASK_LIST_PERIOD_NS: Final = 200_000_000
#: With more threads than this, their counters are not read at all: a sum over some of them would be wrong.
TASK_LIMIT: Final = 512
_SURELY_HAD_TURNS_NS: Final = 100_000_000
HOST_COLUMNS: Final = ("host_busy_ticks", "host_idle_ticks", "pressure_some_us", "load_1m_hundredths", "clock_khz")
PROCESS_COLUMNS: Final = (
    *("process_cpu_ns", "rss_pages", "major_faults"),
    *("run_delay_ns", "voluntary_switches", "involuntary_switches"),
)
CLOCK_COLUMNS: Final = ("clock_khz",)


class EndedError(Exception):
    """The watched process has ended."""


class UnreadableError(Exception):
    """A source cannot be read on this host; the message has the reason."""


#: Errors that a source may raise instead of giving its integers.
UNREADABLE: Final = (OSError, ValueError, IndexError, UnreadableError)


class Source(Protocol):
    """A source that is read in place: one integer for each of its columns, or an error of UNREADABLE."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def read(self) -> tuple[int, ...]: ...

    def close(self) -> None: ...


def why(error: Exception) -> str:
    """Return the reason why a source could not be read, for the document."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error) if isinstance(error, UnreadableError) else f"not in the expected form: {error}"


class KernelFile:
    """A file that is opened once; its sources reread it from the beginning through `descriptor`."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open = True

    def close(self) -> None:
        """Close the file, once."""
        if self._open:
            self._open = False
            os.close(self.descriptor)


class HostCpu(KernelFile):
    """/proc/stat: all logical CPUs together since boot, in clock ticks: busy, and idle or waiting for storage."""

    columns = ("host_busy_ticks", "host_idle_ticks")

    def read(self) -> tuple[int, ...]:
        """Return busy and idle ticks."""
        # user nice system idle iowait irq softirq steal; guest time, further right, is already included in user
        _, user, nice, system, idle, waiting, irq, softirq, steal = pread(self.descriptor, 256, 0).split(None, 9)[:9]
        busy = int(user) + int(nice) + int(system) + int(irq) + int(softirq) + int(steal)
        return busy, int(idle) + int(waiting)


class Pressure(KernelFile):
    """/proc/pressure/cpu: microseconds since boot in which at least one runnable task waited for a CPU."""

    columns = ("pressure_some_us",)

    def read(self) -> tuple[int, ...]:
        """Return the total of the line `some`."""
        return (int(pread(self.descriptor, 256, 0).split(b"total=", 1)[1].split(None, 1)[0]),)


class Load(KernelFile):
    """/proc/loadavg: the one-minute load average in hundredths, the precision that the kernel prints."""

    columns = ("load_1m_hundredths",)

    def read(self) -> tuple[int, ...]:
        """Return the first number without its decimal point."""
        return (int(pread(self.descriptor, 64, 0).split(None, 1)[0].replace(b".", b"")),)


class _CpuInfo(KernelFile):
    """Average current clock of the logical CPUs, from /proc/cpuinfo if the kernel counts cycles for it."""

    columns = CLOCK_COLUMNS

    def read(self) -> tuple[int, ...]:
        parts = pread(self.descriptor, 4 << 20, 0).split(b"cpu MHz\t\t: ")[1:]
        if not parts:
            raise ValueError("/proc/cpuinfo states no clock")
        return (round(sum(float(part.split(b"\n", 1)[0]) for part in parts) * 1000 / len(parts)),)


class _FrequencyFiles:
    """Average current clock of the logical CPUs, from the frequency driver."""

    columns = CLOCK_COLUMNS

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files: list[KernelFile] = []
        try:
            for path in paths:
                self._files.append(KernelFile(path))
        except OSError:
            self.close()
            raise

    def read(self) -> tuple[int, ...]:
        return (sum(int(pread(file.descriptor, 32, 0)) for file in self._files) // len(self._files),)

    def close(self) -> None:
        for file in self._files:
            file.close()


def current_clock(proc: Path, sys: Path) -> Source:
    """Return the source of the current clock on this host."""
    paths = sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if paths:
        return _FrequencyFiles(paths)
    with (proc / "cpuinfo").open() as stream:
        flags = next((line for line in stream if line.startswith("flags")), "")
    if "aperfmperf" not in flags.split():
        raise UnreadableError(
            "this host has no frequency driver, and without cycle counters (aperfmperf) the MHz of /proc/cpuinfo is "
            "the nominal clock, not the current one"
        )
    return _CpuInfo(proc / "cpuinfo")


class ProcessTime(KernelFile):
    """The complete process, including ended threads: CPU time by its own clock, and resident memory."""

    columns = ("process_cpu_ns", "rss_pages")

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(folder / "statm")
        self._clock_id = (~pid << 3) | 2  # the kernel's number for the CPU clock of a process
        self.cpu_ns = 0

    def read(self) -> tuple[int, ...]:
        try:
            size, resident = pread(self.descriptor, 128, 0).split(None, 2)[:2]
            if size == b"0":  # ended, but not yet waited for
                raise EndedError
            self.cpu_ns = time.clock_gettime_ns(self._clock_id)
        except ProcessLookupError as error:
            raise EndedError from error
        return self.cpu_ns, int(resident)


class Faults(KernelFile):
    """The complete process, including ended threads: faults that needed storage, and the number of threads."""

    columns = ("major_faults",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "stat")
        self.threads = 0

    def read(self) -> tuple[int, ...]:
        try:
            # the name before ')' may contain spaces and parentheses; state, the first field after it, is field 3
            fields = pread(self.descriptor, 1024, 0).rpartition(b")")[2].split(None, 18)
        except ProcessLookupError as error:
            raise EndedError from error
        if fields[0] in (b"Z", b"X"):
            raise EndedError
        self.threads = int(fields[17])
        return (int(fields[9]),)


class Tasks:
    """The process's threads, listed again when their number has changed or one of them is gone."""

    def __init__(self, folder: Path, process: ProcessTime, faults: Faults) -> None:
        self._folder, self.process, self._faults = folder, process, faults
        self._listed_ns = 0
        self._changed = True
        self.names: frozenset[str] = frozenset()
        self.most = 0

    def current(self) -> frozenset[str]:
        """Return the thread numbers. Raises EndedError, or UnreadableError if there are too many."""
        if self._changed or self._faults.threads != len(self.names):
            self._list_again()
        if len(self.names) > TASK_LIMIT:
            raise UnreadableError(f"the process has {len(self.names)} threads; they are read up to {TASK_LIMIT}")
        return self.names

    def _list_again(self) -> None:
        now = time.monotonic_ns()
        if now - self._listed_ns < TASK_LIST_PERIOD_NS:
            return
        try:
            names = frozenset(os.listdir(self._folder))  # noqa: PTH208 - names are all that is wanted
        except (FileNotFoundError, ProcessLookupError) as error:
            raise EndedError from error
        self._listed_ns, self._changed = now, False
        self.names = names
        self.most = max(self.most, len(names))

    def one_is_gone(self) -> None:
        self._changed = True

    def any_is_left(self) -> bool:
        return any((self._folder / name).is_dir() for name in self.names)

    def path(self, task: str, name: str) -> Path:
        return self._folder / task / name


class OfTasks(ABC):
    """Two counters summed over the threads; the last reading of an ended thread stays in the sum."""

    columns: tuple[str, ...] = ()
    _name = ""
    _size = 128

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._listed: frozenset[str] = frozenset()
        self._files: dict[str, KernelFile] = {}
        self._descriptors: list[tuple[str, int]] = []
        self._last: dict[str, tuple[int, int]] = {}
        self._ended = (0, 0)

    def size(self) -> int:
        """Return the number of threads that are read."""
        return len(self._files)

    def read(self) -> tuple[int, ...]:
        return self._sums()

    def _sums(self) -> tuple[int, int]:
        names = self._tasks.current()
        if names is not self._listed:
            self._open(names)
        first, second = self._ended
        last, parse, size = self._last, self._parse, self._size
        gone: list[str] = []
        for task, descriptor in self._descriptors:
            try:
                last[task] = values = parse(pread(descriptor, size, 0))
            except ProcessLookupError:
                values = last.get(task, (0, 0))
                gone.append(task)
            first += values[0]
            second += values[1]
        if gone:
            for task in gone:
                self._forget(task)
            self._descriptors = [(task, file.descriptor) for task, file in self._files.items()]
            self._tasks.one_is_gone()
        return first, second

    def _open(self, names: frozenset[str]) -> None:
        for gone in [task for task in self._files if task not in names]:
            self._forget(gone)
        missing: FileNotFoundError | None = None
        for task in names.difference(self._files):
            try:
                self._files[task] = KernelFile(self._tasks.path(task, self._name))
            except ProcessLookupError:
                continue  # the thread has ended since it was listed
            except FileNotFoundError as error:
                missing = error
        if not self._files:
            if missing is not None and self._tasks.any_is_left():
                raise missing  # the threads exist, but this kernel has no such file
            raise EndedError
        self._descriptors = [(task, file.descriptor) for task, file in self._files.items()]
        self._listed = names

    def _forget(self, task: str) -> None:
        self._files.pop(task).close()
        first, second = self._last.pop(task, (0, 0))
        self._ended = (self._ended[0] + first, self._ended[1] + second)

    @staticmethod
    @abstractmethod
    def _parse(text: bytes) -> tuple[int, int]:
        """Return the two counts in the text of a task's file."""

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class RunDelay(OfTasks):
    """Time waited on a run queue; the number of turns on a CPU distinguishes no waiting from no accounting."""

    columns = ("run_delay_ns",)
    _name = "schedstat"

    def read(self) -> tuple[int, ...]:
        waited, turns = self._sums()
        if turns == 0 and self._tasks.process.cpu_ns > _SURELY_HAD_TURNS_NS:
            raise UnreadableError("this kernel does not account the time that threads wait for a CPU")
        return (waited,)

    @staticmethod
    def _parse(text: bytes) -> tuple[int, int]:
        _, waited, turns = text.split(None, 3)[:3]
        return int(waited), int(turns)


class Switches(OfTasks):
    """Context switches, voluntary and involuntary."""

    columns = ("voluntary_switches", "involuntary_switches")
    _name = "status"
    _size = 8192

    @staticmethod
    def _parse(text: bytes) -> tuple[int, int]:
        _, voluntary, involuntary = text.split(b"voluntary_ctxt_switches:\t")  # the second also ends the word 'non…'
        return int(voluntary.split(None, 1)[0]), int(involuntary.split(None, 1)[0])
