"""Samples host and measured process beside a run: raw readings of the kernel's counters at true times.

Nothing is derived here (that is `aaco_pipeline.formats.native.telemetry`), no process is started and nothing is
simulated.

The sampler is a thread of the process that waits for the measured one. It opens every file once and then only reads
it in place, on absolute deadlines. What a reading costs is limited: a source that is dear on this host (many CPUs,
many threads) is read less often, and its column is null in between.
"""

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import pread
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aaco_pipeline.resources.telemetry.gpu_metrics import GPU_PERIOD_NS, GpuMetricsSource, amd_cards, open_sources

FORMAT: Final = "aaco-telemetry"
FORMAT_VERSION: Final = 1
#: Ten milliseconds; `benchmarks/sampler_cost.py` measures what that costs the measured process.
DEFAULT_INTERVAL_NS: Final = 10_000_000
#: Share of one CPU that a single source may cost; a dearer one is read less often.
SOURCE_BUDGET_RATIO: Final = 0.0015
#: A source that could only be read less often than this within its budget is left out, with the reason kept.
LONGEST_PERIOD_NS: Final = 2_000_000_000
#: Rows kept in memory: one hour at the default interval. Beyond it every second row goes and the interval doubles.
ROW_LIMIT: Final = 360_000
#: The threads of the measured process are listed again at most this often.
TASK_LIST_PERIOD_NS: Final = 200_000_000
#: With more threads than this their counters are not read at all: a sum over some of them would be wrong.
TASK_LIMIT: Final = 512
#: What is dear to read, or moves by whole clock ticks, is read less often than the interval.
_SLOW_PERIOD_NS: Final = 50_000_000
_CLOCK_PERIOD_NS: Final = 100_000_000
_LOAD_PERIOD_NS: Final = 1_000_000_000
_SURELY_HAD_TURNS_NS: Final = 100_000_000
_LONGEST_SLEEP_NS: Final = 50_000_000
_CHUNK_ROWS: Final = 4096
_MISSING: Final = -1  # all raw readings are counters or sizes, never negative
_TRIALS: Final = 5

HOST_COLUMNS: Final = ("host_busy_ticks", "host_idle_ticks", "pressure_some_us", "load_1m_hundredths", "clock_khz")
PROCESS_COLUMNS: Final = (
    "process_cpu_ns",
    "rss_pages",
    "major_faults",
    "run_delay_ns",
    "voluntary_switches",
    "involuntary_switches",
)
_CHUNK: Final = array("q", [_MISSING]) * _CHUNK_ROWS
COLUMNS: Final = ("time_ns", "took_ns", "segment", *HOST_COLUMNS, *PROCESS_COLUMNS)


class _Ended(Exception):
    """The watched process has ended."""


class _Unavailable(Exception):
    """A source cannot be read on this host; the text says why."""


class _Source(Protocol):
    """Something that is read in place: one integer for each of its columns, or OSError, ValueError, IndexError."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def read(self) -> tuple[int, ...]: ...

    def close(self) -> None: ...


@dataclass
class _Lane:
    """A source with how often it is read; `due_ns` is the earliest time of its next reading.

    `budget_ns` is the period that one reading of one thread must have to stay within the budget.
    """

    source: _Source
    columns: "tuple[array[int], ...]"
    period_ns: int
    budget_ns: int
    due_ns: int = 0


@dataclass
class _Watched:
    """One measured process: its sources, and what became of them."""

    label: str
    pid: int
    segment: int
    started_ns: int
    tasks: "_Tasks | None" = None
    lanes: list[_Lane] = field(default_factory=list)
    ended_ns: int | None = None
    ended_because: str | None = None
    overruns: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "pid": self.pid,
            "started_monotonic_ns": self.started_ns,
            "ended_monotonic_ns": self.ended_ns,
            "ended_because": self.ended_because,
            "overruns": self.overruns,
            "threads_most": self.tasks.most if self.tasks else None,
            "periods_ns": _periods(self.lanes),
            "reasons": dict(self.reasons),
        }


class SystemSampler:
    """Samples from entry to exit; `watch` names the process that is measured from then on.

    with SystemSampler() as sampler:
        process = subprocess.Popen(...)
        sampler.watch(process.pid, label="latency")
        ...
    document = sampler.samples()
    """

    def __init__(
        self,
        interval_ns: int = DEFAULT_INTERVAL_NS,
        *,
        source_budget_ratio: float = SOURCE_BUDGET_RATIO,
        row_limit: int = ROW_LIMIT,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
    ) -> None:
        if interval_ns <= 0 or row_limit < 2:
            raise ValueError("the interval must be above 0 and the limit of rows at least 2")
        self._interval_asked = self._interval = interval_ns
        self._budget = source_budget_ratio
        self._row_limit = row_limit
        self._proc, self._sys = proc, sys
        self._arrays: dict[str, array[int]] = {name: array("q") for name in COLUMNS}
        self._times, self._took, self._segment_of = (self._arrays[name] for name in ("time_ns", "took_ns", "segment"))
        self._rows = 0
        self._host: list[_Lane] = []
        self._gpus: list[GpuMetricsSource] = []
        self._gpu_reasons: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._segments: list[_Watched] = []
        self._watched: _Watched | None = None
        self._pending: deque[_Watched] = deque()
        self._overruns = 0
        self._thinned = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._sampler_cpu_ns = 0
        self._failure: Exception | None = None
        self._clocks: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self._clocks.append(clock_readings())
        wanted: tuple[tuple[Callable[[], _Source], tuple[str, ...], int], ...] = (
            (lambda: _HostCpu(self._proc), _HostCpu.columns, _SLOW_PERIOD_NS),
            (lambda: _Pressure(self._proc), _Pressure.columns, 0),
            (lambda: _Load(self._proc), _Load.columns, _LOAD_PERIOD_NS),
            (lambda: _clock(self._proc, self._sys), _CLOCK_COLUMNS, _CLOCK_PERIOD_NS),
        )
        for make, columns, period in wanted:
            try:
                self._host.append(self._lane(make(), period))
            except _UNREADABLE as error:
                self._reasons.update(dict.fromkeys(columns, _why(error)))
        self._open_gpus()
        self._sample()  # the baseline, so that the first interval has a beginning
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._stopped = True
        self._thread.join()
        now = time.monotonic_ns()
        for watched in (self._watched, *self._pending):
            if watched is not None:
                _end(watched, now, "sampling ended")
        for lane in self._host:
            lane.source.close()
        self._clocks.append(clock_readings())
        if self._failure is not None and error is None:
            raise self._failure

    def watch(self, pid: int, label: str) -> None:
        """Sample process `pid` from the next reading on, in the place of any watched before. Never raises for it."""
        watched = _Watched(label, pid, len(self._segments), time.monotonic_ns())
        self._segments.append(watched)
        try:
            folder = self._proc / str(pid)
            process = _Process(folder, pid)
            watched.lanes.append(self._lane(process, 0))
            faults = _Faults(folder)
            watched.lanes.append(self._lane(faults, _SLOW_PERIOD_NS))
            watched.tasks = tasks = _Tasks(folder / "task", process, faults)
            of_tasks: tuple[tuple[_Source, int], ...] = ((_RunDelay(tasks), 0), (_Switches(tasks), _SLOW_PERIOD_NS))
            for source, period in of_tasks:
                try:
                    watched.lanes.append(self._lane(source, period))
                except _UNREADABLE as error:
                    watched.reasons.update(dict.fromkeys(source.columns, _why(error)))
        except (_Ended, FileNotFoundError):
            watched.ended_ns, watched.ended_because = watched.started_ns, "the process had ended before it was read"
        except _UNREADABLE as error:
            watched.reasons.update(dict.fromkeys(PROCESS_COLUMNS, _why(error)))
        self._pending.append(watched)

    def samples(self) -> dict[str, Any]:
        """Everything read, as a JSON document: raw cumulative counters with null for what was not read."""
        columns: dict[str, list[int | None]] = {
            name: [None if value == _MISSING else value for value in values[: self._rows]]
            for name, values in self._arrays.items()
        }
        cards, unread = gpu_sources(self._sys)
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "clock": "CLOCK_MONOTONIC",
            "clocks_before": self._clocks[0],
            "clocks_after": self._clocks[-1],
            "interval_ns": self._interval_asked,
            "interval_at_end_ns": self._interval,
            "overruns": self._overruns,
            "thinned": self._thinned,
            "sampler_cpu_ns": self._sampler_cpu_ns,
            "ticks_per_second": os.sysconf("SC_CLK_TCK"),
            "page_bytes": os.sysconf("SC_PAGE_SIZE"),
            "logical_cpus": os.cpu_count(),
            "columns": columns,
            "segments": [watched.document() for watched in self._segments],
            "periods_ns": _periods(self._host),
            "reasons": dict(self._reasons),
            "gpu": {
                "sources": list(cards),
                "reason": "; ".join(self._gpu_reasons.values()) or (None if self._gpus else unread),
                "samples": [source.recording() for source in self._gpus],
            },
        }

    def _open_gpus(self) -> None:
        """A lane for each GPU's table; its readings stay with the source, which has no columns here."""
        sources, reasons = open_sources(self._sys)
        self._gpu_reasons.update(reasons)
        for source in sources:
            try:
                lane = self._lane(source, GPU_PERIOD_NS)
            except _UNREADABLE as error:
                self._gpu_reasons[source.device] = source.failure or _why(error)
                continue
            source.forget()
            source.period_ns = lane.period_ns
            self._gpus.append(source)
            self._host.append(lane)

    def _lane(self, source: _Source, period_ns: int) -> _Lane:
        """The source with the period its cost allows, found by reading it a few times. Raises what the source does."""
        best = LONGEST_PERIOD_NS
        try:
            for _ in range(_TRIALS):
                before = time.perf_counter_ns()
                source.read()
                best = min(best, time.perf_counter_ns() - before)
            budget_ns = int(best / self._budget)
            if budget_ns > LONGEST_PERIOD_NS:
                raise _Unavailable(f"one reading takes {best / 1e6:.3g} ms here, too long to take it beside a run")
        except BaseException:
            source.close()
            raise
        period = max(period_ns, self._interval, budget_ns)
        return _Lane(source, tuple(self._arrays[name] for name in source.columns), period, budget_ns)

    def _run(self) -> None:
        _give_way()
        started_cpu = time.thread_time_ns()
        start = time.monotonic_ns()
        deadline = start + self._interval
        try:
            while self._reached(deadline):
                self._sample()
                if self._rows >= self._row_limit:
                    self._thin()
                deadline += self._interval
                now = time.monotonic_ns()
                if now > deadline:
                    # Deadlines that have passed are skipped and counted: a late reading is never made up for by two.
                    missed = (now - deadline) // self._interval + 1
                    deadline += missed * self._interval
                    self._overruns += missed
                    if self._watched is not None and self._watched.ended_ns is None:
                        self._watched.overruns += missed
        except Exception as failure:  # noqa: BLE001 - not swallowed: raised where the sampler is left
            self._failure = failure
        self._sampler_cpu_ns = time.thread_time_ns() - started_cpu

    def _reached(self, deadline: int) -> bool:
        """Sleep to the deadline; False when sampling is to stop. A sleep costs less than waiting on a lock."""
        while not self._stopped:
            left = deadline - time.monotonic_ns()
            if left <= 0:
                return True
            time.sleep(min(left, _LONGEST_SLEEP_NS) / 1e9)
        return False

    def _sample(self) -> None:
        """One row: the time, then every source that is due."""
        while self._pending:
            following = self._pending.popleft()
            if self._watched is not None:
                _end(self._watched, following.started_ns, "the next process was watched")
            self._watched = following
        watched = self._watched
        if watched is not None and watched.ended_ns is not None:
            watched = None
        now = time.monotonic_ns()
        row = self._rows
        if row == len(self._times):
            for values in self._arrays.values():
                values.extend(_CHUNK)
        self._times[row] = now
        half = self._interval // 2  # so that a reading due just after this one is not put off by a whole interval
        for lane in self._host:
            if lane.due_ns <= now:
                lane.due_ns = now + lane.period_ns - half if lane.period_ns > self._interval else 0
                try:
                    for values, value in zip(lane.columns, lane.source.read(), strict=True):
                        values[row] = value
                except _UNREADABLE as error:
                    self._reasons.update(dict.fromkeys(lane.source.columns, _why(error)))
                    self._host = [other for other in self._host if other is not lane]
                    lane.source.close()
        if watched is not None:
            self._sample_process(watched, row, now, half)
        self._took[row] = time.monotonic_ns() - now
        self._rows = row + 1

    def _sample_process(self, watched: _Watched, row: int, now: int, half: int) -> None:
        self._segment_of[row] = watched.segment
        try:
            for lane in watched.lanes:
                if lane.due_ns <= now:
                    if isinstance(lane.source, _OfTasks):
                        lane.period_ns = max(lane.period_ns, lane.budget_ns * lane.source.size())
                    lane.due_ns = now + lane.period_ns - half if lane.period_ns > self._interval else 0
                    try:
                        for values, value in zip(lane.columns, lane.source.read(), strict=True):
                            values[row] = value
                    except _UNREADABLE as error:
                        watched.reasons.update(dict.fromkeys(lane.source.columns, _why(error)))
                        watched.lanes = [other for other in watched.lanes if other is not lane]
                        lane.source.close()
        except _Ended:
            for name in PROCESS_COLUMNS:
                self._arrays[name][row] = _MISSING  # a row is all of the living process or nothing of it
            self._segment_of[row] = _MISSING
            _end(watched, now, "the process ended")

    def _thin(self) -> None:
        """Keep one row of every two, the one that holds a rarely read column if only one does; double the interval.

        All columns are cumulative or momentary, so what is left is a true sampling at the longer interval.
        """
        switches, clocks = self._arrays["voluntary_switches"], self._arrays["clock_khz"]
        rare = [one != _MISSING or other != _MISSING for one, other in zip(switches, clocks, strict=True)]
        keep = [row if rare[row] and not rare[row + 1] else row + 1 for row in range(0, self._rows - 1, 2)]
        for values in self._arrays.values():
            values[:] = array("q", map(values.__getitem__, keep))  # in place: the lanes hold the same arrays
        self._rows = len(keep)
        self._interval *= 2
        self._thinned += 1


def gpu_sources(sys: Path = Path("/sys")) -> tuple[tuple[str, ...], str | None]:
    """The AMD GPUs of this host, by their folder in sysfs, and why some or all of them are not sampled."""
    cards = amd_cards(sys)
    sources, reasons = open_sources(sys)
    for source in sources:
        source.close()
    return cards, "; ".join(reasons.values()) or (None if cards else "this host has no AMD GPU")


def clock_readings() -> dict[str, int]:
    """CLOCK_MONOTONIC against CLOCK_REALTIME and CLOCK_BOOTTIME: the tightest of several bracketed readings.

    `uncertainty_ns` is half the bracket within which both others were read.
    """
    best: tuple[int, dict[str, int]] | None = None
    for _ in range(9):
        before = time.monotonic_ns()
        real = time.time_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (
                after - before,
                {
                    "monotonic_ns": (before + after) // 2,
                    "realtime_ns": real,
                    "boottime_ns": boot,
                    "uncertainty_ns": (after - before + 1) // 2,
                },
            )
    assert best is not None
    return best[1]


def _give_way() -> None:
    """Have the kernel never interrupt a running thread for this one: a reading that waits costs less than one that
    takes the CPU from the measured process. On a host with a CPU to spare it makes no difference.
    """
    with suppress(OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))


_UNREADABLE: Final = (OSError, ValueError, IndexError, _Unavailable)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, _Unavailable) else f"not in the expected form: {error}"


def _end(watched: _Watched, now: int, because: str) -> None:
    """Note the end, unless it is noted, and close the files."""
    if watched.ended_ns is None:
        watched.ended_ns, watched.ended_because = now, because
    for lane in watched.lanes:
        lane.source.close()


def _periods(lanes: Sequence[_Lane]) -> Mapping[str, int]:
    return {name: lane.period_ns for lane in lanes for name in lane.source.columns}


class _File:
    """A file that is opened once; its sources read it from the beginning each time, by `descriptor`."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.descriptor)


class _HostCpu:
    """All logical CPUs together since boot, in clock ticks: busy, and idle or waiting for storage."""

    columns = ("host_busy_ticks", "host_idle_ticks")

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "stat")

    def read(self) -> tuple[int, ...]:
        # user nice system idle iowait irq softirq steal; guest time, further on, is already in user
        _, user, nice, system, idle, waiting, irq, softirq, steal = pread(self._file.descriptor, 256, 0).split(None, 9)[
            :9
        ]
        busy = int(user) + int(nice) + int(system) + int(irq) + int(softirq) + int(steal)
        return busy, int(idle) + int(waiting)

    def close(self) -> None:
        self._file.close()


class _Pressure:
    """Microseconds since boot in which at least one runnable task waited for a CPU."""

    columns = ("pressure_some_us",)

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "pressure/cpu")

    def read(self) -> tuple[int, ...]:
        return (int(pread(self._file.descriptor, 256, 0).split(b"total=", 1)[1].split(None, 1)[0]),)

    def close(self) -> None:
        self._file.close()


class _Load:
    """The load average over one minute, in hundredths, as exact as the kernel prints it."""

    columns = ("load_1m_hundredths",)

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "loadavg")

    def read(self) -> tuple[int, ...]:
        return (int(pread(self._file.descriptor, 64, 0).split(None, 1)[0].replace(b".", b"")),)

    def close(self) -> None:
        self._file.close()


_CLOCK_COLUMNS: Final = ("clock_khz",)


class _FrequencyFiles:
    """Current clock averaged over the logical CPUs, from the frequency driver."""

    columns = _CLOCK_COLUMNS

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files: list[_File] = []
        try:
            for path in paths:
                self._files.append(_File(path))
        except OSError:
            self.close()
            raise

    def read(self) -> tuple[int, ...]:
        return (sum(int(pread(file.descriptor, 32, 0)) for file in self._files) // len(self._files),)

    def close(self) -> None:
        for file in self._files:
            file.close()


class _CpuInfo:
    """Current clock averaged over the logical CPUs, from /proc/cpuinfo where the kernel counts the cycles for it."""

    columns = _CLOCK_COLUMNS

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "cpuinfo")

    def read(self) -> tuple[int, ...]:
        clocks = [
            float(part.split(b"\n", 1)[0])
            for part in pread(self._file.descriptor, 4 << 20, 0).split(b"cpu MHz\t\t: ")[1:]
        ]
        if not clocks:
            raise ValueError("/proc/cpuinfo states no clock")
        return (round(sum(clocks) * 1000 / len(clocks)),)

    def close(self) -> None:
        self._file.close()


def _clock(proc: Path, sys: Path) -> _Source:
    paths = sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if paths:
        return _FrequencyFiles(paths)
    with (proc / "cpuinfo").open() as stream:
        flags = next((line for line in stream if line.startswith("flags")), "")
    if "aperfmperf" not in flags.split():
        raise _Unavailable(
            "this host has no frequency driver, and without cycle counters (aperfmperf) the MHz of /proc/cpuinfo is "
            "the nominal clock, not the current one"
        )
    return _CpuInfo(proc)


class _Process:
    """The whole process, ended threads included: CPU time by its own clock, and resident memory."""

    columns = ("process_cpu_ns", "rss_pages")

    def __init__(self, folder: Path, pid: int) -> None:
        self._file = _File(folder / "statm")
        self._clock_id = (~pid << 3) | 2  # the kernel's number for the CPU clock of a process
        self.cpu_ns = 0

    def read(self) -> tuple[int, ...]:
        try:
            size, resident = pread(self._file.descriptor, 128, 0).split(None, 2)[:2]
            if size == b"0":  # ended, and not yet waited for
                raise _Ended
            self.cpu_ns = time.clock_gettime_ns(self._clock_id)
        except ProcessLookupError as error:
            raise _Ended from error
        return self.cpu_ns, int(resident)

    def close(self) -> None:
        self._file.close()


class _Faults:
    """The whole process, ended threads included: faults that needed storage; and how many threads there are."""

    columns = ("major_faults",)

    def __init__(self, folder: Path) -> None:
        self._file = _File(folder / "stat")
        self.threads = 0

    def read(self) -> tuple[int, ...]:
        try:
            # the name before ')' may hold spaces and parentheses; state, the first after it, is field 3
            fields = pread(self._file.descriptor, 1024, 0).rpartition(b")")[2].split(None, 18)
        except ProcessLookupError as error:
            raise _Ended from error
        if fields[0] in (b"Z", b"X"):
            raise _Ended
        self.threads = int(fields[17])
        return (int(fields[9]),)

    def close(self) -> None:
        self._file.close()


class _Tasks:
    """The threads of the process, listed anew when their number has changed or one of them is gone."""

    def __init__(self, folder: Path, process: _Process, faults: _Faults) -> None:
        self._folder, self.process, self._faults = folder, process, faults
        self._listed_ns = 0
        self._changed = True
        self.names: frozenset[str] = frozenset()
        self.most = 0

    def current(self) -> frozenset[str]:
        """The threads' numbers. Raises _Ended, or _Unavailable when they are too many."""
        if self._changed or self._faults.threads != len(self.names):
            self._list_again()
        if len(self.names) > TASK_LIMIT:
            raise _Unavailable(f"the process has {len(self.names)} threads; they are read up to {TASK_LIMIT}")
        return self.names

    def _list_again(self) -> None:
        now = time.monotonic_ns()
        if now - self._listed_ns < TASK_LIST_PERIOD_NS:
            return
        try:
            names = frozenset(os.listdir(self._folder))  # noqa: PTH208 - names are all that is wanted
        except (FileNotFoundError, ProcessLookupError) as error:
            raise _Ended from error
        self._listed_ns, self._changed = now, False
        self.names = names
        self.most = max(self.most, len(names))

    def one_is_gone(self) -> None:
        self._changed = True

    def any_is_left(self) -> bool:
        return any((self._folder / name).is_dir() for name in self.names)

    def path(self, task: str, name: str) -> Path:
        return self._folder / task / name


class _OfTasks:
    """Two counters summed over the threads; what an ended thread had reached when last read stays in the sum."""

    columns: tuple[str, ...] = ()
    _name = ""
    _size = 128

    def __init__(self, tasks: _Tasks) -> None:
        self._tasks = tasks
        self._listed: frozenset[str] = frozenset()
        self._files: dict[str, _File] = {}
        self._descriptors: list[tuple[str, int]] = []
        self._last: dict[str, tuple[int, int]] = {}
        self._ended = (0, 0)

    def size(self) -> int:
        """How many threads are read."""
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
                self._files[task] = _File(self._tasks.path(task, self._name))
            except ProcessLookupError:
                continue  # the thread ended since it was listed
            except FileNotFoundError as error:
                missing = error
        if not self._files:
            if missing is not None and self._tasks.any_is_left():
                raise missing  # the threads are there, and this kernel has no such file
            raise _Ended
        self._descriptors = [(task, file.descriptor) for task, file in self._files.items()]
        self._listed = names

    def _forget(self, task: str) -> None:
        self._files.pop(task).close()
        first, second = self._last.pop(task, (0, 0))
        self._ended = (self._ended[0] + first, self._ended[1] + second)

    @staticmethod
    def _parse(text: bytes) -> tuple[int, int]:
        raise NotImplementedError

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _RunDelay(_OfTasks):
    """Time waited on a run queue; the number of turns on a CPU tells a kernel that does not account from no waiting."""

    columns = ("run_delay_ns",)
    _name = "schedstat"

    def read(self) -> tuple[int, ...]:
        waited, turns = self._sums()
        if turns == 0 and self._tasks.process.cpu_ns > _SURELY_HAD_TURNS_NS:
            raise _Unavailable("this kernel does not account the time that threads wait for a CPU")
        return (waited,)

    @staticmethod
    def _parse(text: bytes) -> tuple[int, int]:
        _, waited, turns = text.split(None, 3)[:3]
        return int(waited), int(turns)


class _Switches(_OfTasks):
    """Switches away from a CPU, by the thread's own will and against it."""

    columns = ("voluntary_switches", "involuntary_switches")
    _name = "status"
    _size = 8192

    @staticmethod
    def _parse(text: bytes) -> tuple[int, int]:
        _, voluntary, involuntary = text.split(b"voluntary_ctxt_switches:\t")  # the second also ends the word 'non…'
        return int(voluntary.split(None, 1)[0]), int(involuntary.split(None, 1)[0])
