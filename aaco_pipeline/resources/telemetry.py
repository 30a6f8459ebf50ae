"""Samples host and measured process beside a run: raw readings of the kernel's counters at true times.

Nothing is derived here (that is `aaco_pipeline.formats.telemetry`), no process is started and nothing is simulated.

The sampler is a thread of the process that waits for the measured one. It opens every file once and then only reads
it in place, on absolute deadlines. What a reading costs is limited: a source that is dear on this host (many CPUs,
many threads) is read less often, and its column is null in between.
"""

import os
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

FORMAT: Final = "aaco-telemetry"
FORMAT_VERSION: Final = 1
#: Ten milliseconds: measured to cost a model of 3 ms nothing that could be told from noise (benchmarks/sampler_cost.py).
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
_SWITCHES_PERIOD_NS: Final = 50_000_000
_CLOCK_PERIOD_NS: Final = 100_000_000
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
COLUMNS: Final = ("time_ns", "took_ns", "segment", *HOST_COLUMNS, *PROCESS_COLUMNS)


class _Ended(Exception):
    """The watched process has ended."""


class _Unavailable(Exception):
    """A source cannot be read on this host; the text says why."""


class _Source(Protocol):
    """Something that is read in place: one integer for each of its columns, or OSError, ValueError, IndexError."""

    columns: tuple[str, ...]

    def read(self) -> tuple[int, ...]: ...

    def close(self) -> None: ...


@dataclass
class _Lane:
    """A source with how often it is read; `due_ns` is the earliest time of its next reading."""

    source: _Source
    columns: tuple[array[int], ...]
    period_ns: int
    due_ns: int = 0


@dataclass
class _Watched:
    """One measured process: its sources, and what became of them."""

    label: str
    pid: int
    segment: int
    started_ns: int
    sources: list[tuple[_Source, int]]
    tasks: "_Tasks | None"
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
        self._host: list[_Lane] = []
        self._host_columns: list[array[int]] = [self._arrays[name] for name in HOST_COLUMNS]
        self._reasons: dict[str, str] = {}
        self._segments: list[_Watched] = []
        self._watched: _Watched | None = None
        self._pending: _Watched | None = None
        self._overruns = 0
        self._thinned = 0
        self._stop = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sampler_cpu_ns = 0
        self._failure: Exception | None = None
        self._clocks: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self._clocks.append(clock_readings())
        for make, columns, period in (
            (lambda: _HostCpu(self._proc), _HostCpu.columns, 0),
            (lambda: _Pressure(self._proc), _Pressure.columns, 0),
            (lambda: _Load(self._proc), _Load.columns, 0),
            (lambda: _clock(self._proc, self._sys), _CLOCK_COLUMNS, _CLOCK_PERIOD_NS),
        ):
            try:
                self._host.append(self._lane(make(), period))
            except _UNREADABLE as error:
                self._reasons.update(dict.fromkeys(columns, _why(error)))
        self._sample()  # the baseline, so that the first interval has a beginning
        self._stop.acquire()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._stop.release()
        self._thread.join()
        now = time.monotonic_ns()
        for watched in (self._watched, self._pending):
            if watched is not None:
                _end(watched, now, "sampling ended")
        for lane in self._host:
            lane.source.close()
        self._clocks.append(clock_readings())
        if self._failure is not None and error is None:
            raise self._failure

    def watch(self, pid: int, label: str) -> None:
        """Sample process `pid` from the next reading on, in the place of any watched before. Never raises for it."""
        watched = _Watched(label, pid, len(self._segments), time.monotonic_ns(), [], None)
        self._segments.append(watched)
        try:
            folder = self._proc / str(pid)
            stat = _Process(folder, pid)
            watched.sources.append((stat, 0))
            watched.tasks = tasks = _Tasks(folder / "task", stat)
            watched.sources += [(_RunDelay(tasks), 0), (_Switches(tasks), _SWITCHES_PERIOD_NS)]
        except _UNREADABLE as error:
            watched.reasons.update(dict.fromkeys(PROCESS_COLUMNS, _why(error)))
        kept: list[tuple[_Source, int]] = []
        for source, period in watched.sources:
            try:
                watched.lanes.append(self._lane(source, period))
                kept.append((source, period))
            except _Ended:
                watched.reasons.update(dict.fromkeys(source.columns, "the process had ended before it was first read"))
            except _UNREADABLE as error:
                watched.reasons.update(dict.fromkeys(source.columns, _why(error)))
        watched.sources = kept
        self._pending = watched

    def samples(self) -> dict[str, Any]:
        """Everything read, as a JSON document: raw cumulative counters with null for what was not read."""
        columns: dict[str, list[int | None]] = {
            name: [None if value == _MISSING else value for value in values] for name, values in self._arrays.items()
        }
        sources, gpu_reason = gpu_sources(self._sys)
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
            "gpu": {"sources": list(sources), "reason": gpu_reason, "samples": []},
        }

    def _lane(self, source: _Source, period_ns: int) -> _Lane:
        """The source with the period its cost allows, found by reading it a few times. Raises what the source does."""
        best = LONGEST_PERIOD_NS
        for _ in range(_TRIALS):
            before = time.perf_counter_ns()
            source.read()
            best = min(best, time.perf_counter_ns() - before)
        period = max(period_ns, self._interval, int(best / self._budget))
        if period > LONGEST_PERIOD_NS:
            source.close()
            raise _Unavailable(f"one reading takes {best / 1e6:.3g} ms on this host, too long to read it beside a run")
        return _Lane(source, tuple(self._arrays[name] for name in source.columns), period)

    def _run(self) -> None:
        started_cpu = time.thread_time_ns()
        start = time.monotonic_ns()
        deadline = start + self._interval
        try:
            while not self._stop.acquire(timeout=max(0, deadline - time.monotonic_ns()) / 1e9):
                self._sample()
                if len(self._arrays["time_ns"]) >= self._row_limit:
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

    def _sample(self) -> None:
        """One row: the time, then every source that is due."""
        arrays = self._arrays
        pending = self._pending
        if pending is not None:
            self._pending = None
            if self._watched is not None:
                _end(self._watched, pending.started_ns, "the next process was watched")
            self._watched = pending
        watched = self._watched
        if watched is not None and watched.ended_ns is not None:
            watched = None
        now = time.monotonic_ns()
        for values in arrays.values():
            values.append(_MISSING)
        arrays["time_ns"][-1] = now
        half = self._interval // 2
        for lane in self._host:
            if lane.due_ns <= now:
                lane.due_ns = now + lane.period_ns - half
                try:
                    for values, value in zip(lane.columns, lane.source.read(), strict=True):
                        values[-1] = value
                except _UNREADABLE as error:
                    self._reasons.update(dict.fromkeys(lane.source.columns, _why(error)))
                    self._host = [other for other in self._host if other is not lane]
                    lane.source.close()
        if watched is not None:
            self._sample_process(watched, now, now - half)
        arrays["took_ns"][-1] = time.monotonic_ns() - now

    def _sample_process(self, watched: _Watched, now: int, slack_from: int) -> None:
        self._arrays["segment"][-1] = watched.segment
        try:
            for lane in watched.lanes:
                if lane.due_ns <= now:
                    per_task = lane.source.cost_periods() if isinstance(lane.source, _OfTasks) else 1
                    lane.due_ns = slack_from + lane.period_ns * per_task
                    try:
                        for values, value in zip(lane.columns, lane.source.read(), strict=True):
                            values[-1] = value
                    except _UNREADABLE as error:
                        watched.reasons.update(dict.fromkeys(lane.source.columns, _why(error)))
                        watched.lanes = [other for other in watched.lanes if other is not lane]
                        lane.source.close()
        except _Ended:
            for name in PROCESS_COLUMNS:
                self._arrays[name][-1] = _MISSING  # a row is all of the living process or nothing of it
            self._arrays["segment"][-1] = _MISSING
            _end(watched, now, "the process ended")

    def _thin(self) -> None:
        """Keep one row of every two, the one that holds a rarely read column if only one does; double the interval.

        All columns are cumulative or momentary, so what is left is a true sampling at the longer interval.
        """
        rare = [
            any(self._arrays[name][row] != _MISSING for name in ("voluntary_switches", "clock_khz"))
            for row in range(len(self._arrays["time_ns"]))
        ]
        keep = [row if rare[row] and not rare[row + 1] else row + 1 for row in range(0, len(rare) - 1, 2)]
        for name, values in self._arrays.items():
            kept = array("q", map(values.__getitem__, keep))
            del values[:]
            values.extend(kept)
            assert self._arrays[name] is values  # the lanes hold the same arrays
        self._interval *= 2
        self._thinned += 1


def gpu_sources(sys: Path = Path("/sys")) -> tuple[tuple[str, ...], str]:
    """The AMD GPUs whose sensors could be sampled, by their folder in sysfs, and why none of them is.

    The seam for device telemetry: a source for `gpu_samples` joins the sampler's lanes here.
    """
    cards = []
    for vendor in sorted((sys / "class/drm").glob("card[0-9]*/device/vendor")):
        with suppress(OSError):
            if vendor.read_text().strip() == "0x1002":
                cards.append(vendor.parent.parent.name)
    if not cards:
        return (), "this host has no AMD GPU"
    return tuple(cards), "this version of aaco_pipeline does not read the sensors of AMD GPUs yet"


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
    """A file that is opened once and read from its beginning each time; OSError names it."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        if self._descriptor is None:
            raise _Unavailable(f"{self._path}: closed")
        try:
            return os.pread(self._descriptor, self._size, 0)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _HostCpu:
    """All logical CPUs together since boot, in clock ticks: busy, and idle or waiting for storage."""

    columns = ("host_busy_ticks", "host_idle_ticks")

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "stat", 256)

    def read(self) -> tuple[int, ...]:
        # user nice system idle iowait irq softirq steal; guest time, further on, is already in user
        _, user, nice, system, idle, waiting, irq, softirq, steal = self._file.read().split(None, 9)[:9]
        busy = int(user) + int(nice) + int(system) + int(irq) + int(softirq) + int(steal)
        return busy, int(idle) + int(waiting)

    def close(self) -> None:
        self._file.close()


class _Pressure:
    """Microseconds since boot in which at least one runnable task waited for a CPU."""

    columns = ("pressure_some_us",)

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "pressure/cpu", 256)

    def read(self) -> tuple[int, ...]:
        return (int(self._file.read().split(b"total=", 1)[1].split(None, 1)[0]),)

    def close(self) -> None:
        self._file.close()


class _Load:
    """The load average over one minute, in hundredths, as exact as the kernel prints it."""

    columns = ("load_1m_hundredths",)

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "loadavg", 64)

    def read(self) -> tuple[int, ...]:
        return (int(self._file.read().split(None, 1)[0].replace(b".", b"")),)

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
                self._files.append(_File(path, 32))
        except OSError:
            self.close()
            raise

    def read(self) -> tuple[int, ...]:
        return (sum(int(file.read()) for file in self._files) // len(self._files),)

    def close(self) -> None:
        for file in self._files:
            file.close()


class _CpuInfo:
    """Current clock averaged over the logical CPUs, from /proc/cpuinfo where the kernel counts the cycles for it."""

    columns = _CLOCK_COLUMNS

    def __init__(self, proc: Path) -> None:
        self._file = _File(proc / "cpuinfo", 4 << 20)

    def read(self) -> tuple[int, ...]:
        clocks = [float(part.split(b"\n", 1)[0]) for part in self._file.read().split(b"cpu MHz\t\t: ")[1:]]
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
    """The whole process, ended threads included: CPU time from its own clock, the rest from its stat file."""

    columns = ("process_cpu_ns", "rss_pages", "major_faults")

    def __init__(self, folder: Path, pid: int) -> None:
        self._file = _File(folder / "stat", 1024)
        self._clock_id = (~pid << 3) | 2  # the kernel's number for the CPU clock of a process
        self.threads = 0

    def read(self) -> tuple[int, ...]:
        try:
            # the name before ')' may hold spaces and parentheses; state is field 3
            fields = self._file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                raise _Ended
            cpu = time.clock_gettime_ns(self._clock_id)
        except ProcessLookupError as error:
            raise _Ended from error
        self.threads = int(fields[17])
        return cpu, int(fields[21]), int(fields[9])

    def close(self) -> None:
        self._file.close()


class _Tasks:
    """The threads of the process, listed anew when their number has changed or one of them is gone."""

    def __init__(self, folder: Path, process: _Process) -> None:
        self._folder, self._process = folder, process
        self._listed_ns = 0
        self._changed = True
        self.names: frozenset[str] = frozenset()
        self.most = 0

    def current(self) -> frozenset[str]:
        """The threads' numbers. Raises _Ended, or _Unavailable when they are too many."""
        changed = self._changed or self._process.threads != len(self.names)
        now = time.monotonic_ns()
        if changed and now - self._listed_ns >= TASK_LIST_PERIOD_NS:
            try:
                self.names = frozenset(os.listdir(self._folder))  # noqa: PTH208 - names are all that is wanted
            except (FileNotFoundError, ProcessLookupError) as error:
                raise _Ended from error
            self._listed_ns, self._changed = now, False
            self.most = max(self.most, len(self.names))
        if len(self.names) > TASK_LIMIT:
            raise _Unavailable(f"the process has {len(self.names)} threads; they are read up to {TASK_LIMIT}")
        return self.names

    def one_is_gone(self) -> None:
        self._changed = True

    def path(self, task: str, name: str) -> Path:
        return self._folder / task / name


class _OfTasks:
    """Counters summed over the threads; what an ended thread had reached when last read stays in the sum."""

    columns: tuple[str, ...] = ()
    _name = ""

    def __init__(self, tasks: _Tasks) -> None:
        self._tasks = tasks
        self._listed: frozenset[str] = frozenset()
        self._files: dict[str, _File] = {}
        self._last: dict[str, tuple[int, ...]] = {}
        self._ended = [0] * len(self.columns)

    def cost_periods(self) -> int:
        """By how much the period grows with the number of threads: it was found when there were hardly any."""
        return max(1, len(self._files) // 2)

    def read(self) -> tuple[int, ...]:
        names = self._tasks.current()
        if names is not self._listed:
            for gone in [task for task in self._files if task not in names]:
                self._forget(gone)
            for task in names.difference(self._files):
                with suppress(FileNotFoundError, ProcessLookupError):
                    self._files[task] = _File(self._tasks.path(task, self._name), 8192)
            self._listed = names
        sums = list(self._ended)
        for task, file in list(self._files.items()):
            try:
                self._last[task] = values = self._parse(file.read())
            except ProcessLookupError:
                values = self._last.get(task, (0,) * len(sums))
                self._forget(task)
                self._tasks.one_is_gone()
            for i, value in enumerate(values):
                sums[i] += value
        if not self._files:
            raise _Ended
        return tuple(sums)

    def _forget(self, task: str) -> None:
        self._files.pop(task).close()
        for i, value in enumerate(self._last.pop(task, ())):
            self._ended[i] += value

    @staticmethod
    def _parse(text: bytes) -> tuple[int, ...]:
        raise NotImplementedError

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _RunDelay(_OfTasks):
    columns = ("run_delay_ns",)
    _name = "schedstat"

    @staticmethod
    def _parse(text: bytes) -> tuple[int, ...]:
        return (int(text.split(None, 2)[1]),)


class _Switches(_OfTasks):
    columns = ("voluntary_switches", "involuntary_switches")
    _name = "status"

    @staticmethod
    def _parse(text: bytes) -> tuple[int, ...]:
        _, voluntary, involuntary = text.split(b"voluntary_ctxt_switches:\t")
        return int(voluntary.split(None, 1)[0]), int(involuntary.split(None, 1)[0])
