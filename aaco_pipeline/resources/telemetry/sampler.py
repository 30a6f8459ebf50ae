"""Sample host, GPUs and measured process during a run: raw readings of the kernel's counters with their true times.

Nothing is derived here (see `aaco_pipeline.formats.native.telemetry`), and no process is started.
"""

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from aaco_pipeline.resources.telemetry import nvml, sources
from aaco_pipeline.resources.telemetry.clocks import clock_readings, give_way, name_this_thread, next_instant
from aaco_pipeline.resources.telemetry.gpu_metrics import GPU_PERIOD_NS, GpuSource, amd_cards, open_sources
from aaco_pipeline.resources.telemetry.nvml import LIBRARY as NVML_LIBRARY

NO_GPU: Final = "this host has no AMD or NVIDIA GPU"
_NVIDIA: Final = "0x10de"
#: A display controller of any kind, by the first digits of its PCI class.
_DISPLAY: Final = "0x03"


class OpenedGpus(NamedTuple):
    """All GPUs found, those open for reading, and the reasons why others are not, by GPU."""

    names: tuple[str, ...]
    sources: list[GpuSource[Any]]
    reasons: Mapping[str, str]


def open_gpus(sys: Path = Path("/sys"), nvml_library: str = nvml.LIBRARY) -> OpenedGpus:
    """Open all GPUs: AMD's through `sys`, NVIDIA's with NVML. Never raises; the caller closes the sources."""
    amd, reasons = open_sources(sys)
    cards = amd_cards(sys)
    try:
        nvidia, refused = nvml.open_devices(nvml_library)
    except sources.UnreadableError as error:
        # A host without the vendor's library usually has none of its GPUs, so nothing is missing.
        present = nvidia_addresses(sys)
        told = {f"NVIDIA {address}": str(error) for address in present[:1]}
        return OpenedGpus((*cards, *(f"NVIDIA {one}" for one in present)), [*amd], {**reasons, **told})
    names = sorted([*(source.device for source in nvidia), *refused], key=lambda name: (len(name), name))
    return OpenedGpus((*cards, *names), [*amd, *nvidia], {**reasons, **refused})


def nvidia_addresses(sys: Path) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA GPUs, as the kernel lists them in `sys`."""
    found = []
    for folder in sorted((sys / "bus/pci/devices").glob("*")):
        with suppress(OSError):
            vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_DISPLAY):
                found.append(folder.name)
    return tuple(found)


FORMAT: Final = "aaco-telemetry"
#: Version 2 added NVIDIA GPUs.
FORMAT_VERSION: Final = 2
#: Ten milliseconds.
DEFAULT_INTERVAL_NS: Final = 10_000_000
#: Fraction of one CPU that a single source may cost; a more expensive one is read less often.
SOURCE_BUDGET_RATIO: Final = 0.0015
#: A source whose budget allows only rarer readings than this is left out, and the reason is kept.
LONGEST_PERIOD_NS: Final = 2_000_000_000
#: Rows kept in memory: one hour at the default interval. Beyond it, every second row is dropped and the interval
#: doubles.
ROW_LIMIT: Final = 360_000
#: Columns that are expensive to read, or change only by whole clock ticks, are read less often than the interval.
_SLOW_PERIOD_NS: Final = 50_000_000
_CLOCK_PERIOD_NS: Final = 100_000_000
_LOAD_PERIOD_NS: Final = 1_000_000_000
_LONGEST_SLEEP_NS: Final = 500_000_000
_CHUNK_ROWS: Final = 4096
_MISSING: Final = -1  # all raw readings are counters or sizes and never negative
_TRIALS: Final = 5

_CHUNK: Final = array("q", [_MISSING]) * _CHUNK_ROWS
COLUMNS: Final = ("time_ns", "took_ns", "segment", *sources.HOST_COLUMNS, *sources.PROCESS_COLUMNS)


@dataclass(eq=False)
class _Lane:
    """A source with its period; `due_ns` is the earliest time of its next reading.

    `budget_ns` is the period that one reading per thread needs to stay within the budget.
    """

    source: sources.Source
    columns: "tuple[array[int], ...]"
    period_ns: int
    budget_ns: int
    due_ns: int = 0


@dataclass
class _Watched:
    """One measured process with its sources and their outcomes."""

    label: str
    pid: int
    segment: int
    started_ns: int
    tasks: sources.Tasks | None = None
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
    """Samples from entry to exit; `watch` sets the process that is measured from then on.

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
        nvml_library: str = NVML_LIBRARY,
    ) -> None:
        if interval_ns <= 0 or row_limit < 2:
            raise ValueError("the interval must be above 0 and the limit of rows at least 2")
        self._interval_asked = self._interval = interval_ns
        self._budget = source_budget_ratio
        self._row_limit = row_limit
        self._proc, self._sys, self._nvml_library = proc, sys, nvml_library
        self._arrays: dict[str, array[int]] = {name: array("q") for name in COLUMNS}
        self._times, self._took, self._segment_of = (self._arrays[name] for name in ("time_ns", "took_ns", "segment"))
        self._rows = 0
        self._host: list[_Lane] = []
        self._gpus: list[GpuSource[Any]] = []
        self._gpu_names: tuple[str, ...] = ()
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
        wanted: tuple[tuple[Callable[[], sources.Source], tuple[str, ...], int], ...] = (
            (lambda: sources.HostCpu(self._proc / "stat"), sources.HostCpu.columns, _SLOW_PERIOD_NS),
            (lambda: sources.Pressure(self._proc / "pressure/cpu"), sources.Pressure.columns, 0),
            (lambda: sources.Load(self._proc / "loadavg"), sources.Load.columns, _LOAD_PERIOD_NS),
            (lambda: sources.current_clock(self._proc, self._sys), sources.CLOCK_COLUMNS, _CLOCK_PERIOD_NS),
        )
        for make, columns, period in wanted:
            try:
                self._host.append(self._lane(make(), period))
            except sources.UNREADABLE as error:
                self._reasons.update(dict.fromkeys(columns, sources.why(error)))
        self._open_gpus()
        self._sample()  # the baseline, so that the first interval has a start
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
        """Sample process `pid` from the next reading on, instead of any previous one. Never raises for it."""
        watched = _Watched(label, pid, len(self._segments), time.monotonic_ns())
        self._segments.append(watched)
        try:
            folder = self._proc / str(pid)
            process = sources.ProcessTime(folder, pid)
            watched.lanes.append(self._lane(process, 0))
            faults = sources.Faults(folder)
            watched.lanes.append(self._lane(faults, _SLOW_PERIOD_NS))
            watched.tasks = tasks = sources.Tasks(folder / "task", process, faults)
            of_tasks: tuple[tuple[sources.Source, int], ...] = (
                (sources.RunDelay(tasks), 0),
                (sources.Switches(tasks), _SLOW_PERIOD_NS),
            )
            for source, period in of_tasks:
                try:
                    watched.lanes.append(self._lane(source, period))
                except sources.UNREADABLE as error:
                    watched.reasons.update(dict.fromkeys(source.columns, sources.why(error)))
        except (sources.EndedError, FileNotFoundError):
            watched.ended_ns, watched.ended_because = watched.started_ns, "the process had ended before it was read"
        except sources.UNREADABLE as error:
            watched.reasons.update(dict.fromkeys(sources.PROCESS_COLUMNS, sources.why(error)))
        self._pending.append(watched)

    def samples(self) -> dict[str, Any]:
        """Return all readings as a JSON document: raw cumulative counters, null if a source was not read."""
        columns: dict[str, list[int | None]] = {
            name: [None if value == _MISSING else value for value in values[: self._rows]]
            for name, values in self._arrays.items()
        }
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
                "sources": list(self._gpu_names),
                "reason": "; ".join(self._gpu_reasons.values()) or (None if self._gpus else NO_GPU),
                "samples": [source.recording() for source in self._gpus],
            },
        }

    def _open_gpus(self) -> None:
        """Return a lane for each GPU; its readings stay with the source, which has no columns here."""
        gpus = open_gpus(self._sys, self._nvml_library)
        self._gpu_names = gpus.names
        self._gpu_reasons.update(gpus.reasons)
        for source in gpus.sources:
            try:
                lane = self._lane(source, GPU_PERIOD_NS)
            except sources.UNREADABLE as error:
                self._gpu_reasons[source.device] = source.failure or sources.why(error)
                continue
            source.forget()
            source.period_ns = lane.period_ns
            self._gpus.append(source)
            self._host.append(lane)

    def _lane(self, source: sources.Source, period_ns: int) -> _Lane:
        """Find the period that a source's cost allows by reading it a few times. Raises the source's errors."""
        best = LONGEST_PERIOD_NS
        try:
            for _ in range(_TRIALS):
                before = time.perf_counter_ns()
                source.read()
                best = min(best, time.perf_counter_ns() - before)
            budget_ns = int(best / self._budget)
            if budget_ns > LONGEST_PERIOD_NS:
                raise sources.UnreadableError(
                    f"one reading takes {best / 1e6:.3g} ms here, too long to take it beside a run"
                )
        except BaseException:
            source.close()
            raise
        period = max(period_ns, self._interval, budget_ns)
        return _Lane(source, tuple(self._arrays[name] for name in source.columns), period, budget_ns)

    def _run(self) -> None:
        name_this_thread("aaco sampler")
        give_way()
        started_cpu = time.thread_time_ns()
        deadline = next_instant(time.monotonic_ns(), self._interval)
        try:
            while self._reached(deadline):
                self._sample()
                if self._rows >= self._row_limit:
                    self._thin()
                deadline += self._interval
                now = time.monotonic_ns()
                if now > deadline:
                    # Missed deadlines are skipped and counted: a late reading is never followed by an extra one.
                    missed = (now - deadline) // self._interval + 1
                    deadline += missed * self._interval
                    self._overruns += missed
                    if self._watched is not None and self._watched.ended_ns is None:
                        self._watched.overruns += missed
        except Exception as failure:  # noqa: BLE001 - not swallowed: raised where the sampler is left
            self._failure = failure
        self._sampler_cpu_ns = time.thread_time_ns() - started_cpu

    def _reached(self, deadline: int) -> bool:
        """Sleep until the deadline; False if sampling is to stop. A sleep is cheaper than waiting on a lock."""
        while not self._stopped:
            left = deadline - time.monotonic_ns()
            if left <= 0:
                return True
            time.sleep(min(left, _LONGEST_SLEEP_NS) / 1e9)
        return False

    def _sample(self) -> None:
        """Write one row: the time, then every source that is due."""
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
        self._read_due(self._host, self._reasons, row, now)
        if watched is not None:
            self._segment_of[row] = watched.segment
            try:
                self._read_due(watched.lanes, watched.reasons, row, now)
            except sources.EndedError:
                for name in sources.PROCESS_COLUMNS:
                    self._arrays[name][row] = _MISSING  # a row contains all readings of the live process or none
                self._segment_of[row] = _MISSING
                _end(watched, now, "the process ended")
        self._took[row] = time.monotonic_ns() - now
        self._rows = row + 1

    def _read_due(self, lanes: list[_Lane], reasons: dict[str, str], row: int, now: int) -> None:
        """Read the due sources into the row. Unreadable ones are dropped, and the reason is kept."""
        half = self._interval // 2  # so that a reading due just after this one is not delayed by a complete interval
        for lane in tuple(lanes):
            if lane.due_ns > now:
                continue
            if isinstance(lane.source, sources.OfTasks):
                lane.period_ns = max(lane.period_ns, lane.budget_ns * lane.source.size())
            lane.due_ns = now + lane.period_ns - half if lane.period_ns > self._interval else 0
            try:
                for values, value in zip(lane.columns, lane.source.read(), strict=True):
                    values[row] = value
            except sources.UNREADABLE as error:
                reasons.update(dict.fromkeys(lane.source.columns, sources.why(error)))
                lanes.remove(lane)
                lane.source.close()

    def _thin(self) -> None:
        """Keep one row of every two, preferably the one with a rarely read column; double the interval.

        All columns are cumulative or momentary, so the rest is a valid sampling at the longer interval.
        """
        switches, clocks = self._arrays["voluntary_switches"], self._arrays["clock_khz"]
        rare = [one != _MISSING or other != _MISSING for one, other in zip(switches, clocks, strict=True)]
        keep = [row if rare[row] and not rare[row + 1] else row + 1 for row in range(0, self._rows - 1, 2)]
        for values in self._arrays.values():
            values[:] = array("q", map(values.__getitem__, keep))  # in place: the lanes hold the same arrays
        self._rows = len(keep)
        self._interval *= 2
        self._thinned += 1


def _end(watched: _Watched, now: int, because: str) -> None:
    """Record the end, unless already recorded, and close the files."""
    if watched.ended_ns is None:
        watched.ended_ns, watched.ended_because = now, because
    for lane in watched.lanes:
        lane.source.close()


def _periods(lanes: Sequence[_Lane]) -> Mapping[str, int]:
    return {name: lane.period_ns for lane in lanes for name in lane.source.columns}
