"""The measured process of a calibration: runs small kernels at full speed and records their rates.

Started by `aaco_pipeline.resources.calibrate.calibration` as `python -P worker.py JOB.json RESULT.json PARENT_PID`. It
imports only the standard library, NumPy and ONNX Runtime, and is one file for the same reason as the measured process
of a session (`aaco_pipeline.resources.measure.inference_worker`). Which kernels are run over which sizes is
decided in `aaco_pipeline.resources.calibrate.kernels`; nothing is judged here.

A kernel is timed in windows of one or two milliseconds, many per round, and each round covers all kernels in turn: a
disturbance of a second affects one round, not one kernel. Progress is written to standard output, one JSON object per
line.
"""

import ctypes
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

_PR_SET_PDEATHSIG: Final = 1
_WINDOW_NS: Final = 1_500_000
_ROUND_NS: Final = 60_000_000
_FEWEST_WINDOWS: Final = 4
#: At least two rounds are needed for a comparison.
_FEWEST_ROUNDS: Final = 2
_STEADY_ROUNDS: Final = 3
#: A resource is settled once its two best rounds agree to within this fraction.
SETTLED_WITHIN: Final = 0.02
_PAGE: Final = 4096
_HUGE_PAGE: Final = 2 << 20
_LINE: Final = 64
#: Pause between two kernels, so that spinning threads of the runtime and the library go to sleep.
_PAUSE_SECONDS: Final = 0.005

Doubles = npt.NDArray[np.float64]
Times = tuple[int, int]
Value = TypeVar("Value")
#: A function that runs a number of repeats, and the bytes of one repeat.
Task = tuple[Callable[[int], None], float]


class Kernel:
    """A timed kernel: `window(repeats)` runs it and returns start and end; `work` is the amount per repeat.

    `lasts(repeats)` is its run time without the time that threads take to start together.
    """

    def __init__(self, window: Callable[[int], Times], work: float, lasts: Callable[[int], int] | None = None) -> None:
        self.window = window
        self.work = work
        self._lasts = lasts or self._window_lasts
        self.repeats = 1
        self.rounds: list[list[float]] = []

    def prepare(self) -> None:
        """Run once untimed, then find how many repeats make a window."""
        self.window(1)
        while True:
            # The quickest of three: an interrupted one would make all windows too short.
            lasted = max(1, min(self._lasts(self.repeats) for _ in range(3)))
            if lasted >= _WINDOW_NS // 2 or self.repeats >= 1 << 24:
                self.repeats = max(1, round(self.repeats * _WINDOW_NS / lasted))
                return
            self.repeats *= max(2, min(16, _WINDOW_NS // lasted))

    def _window_lasts(self, repeats: int) -> int:
        start, end = self.window(repeats)
        return end - start

    def run_round(self) -> None:
        """Time windows until the round is full, and store their rates in work per second."""
        time.sleep(_PAUSE_SECONDS)
        self.window(1)
        rates: list[float] = []
        used = 0
        while used < _ROUND_NS or len(rates) < _FEWEST_WINDOWS:
            start, end = self.window(self.repeats)
            rates.append(self.work * self.repeats / (end - start) * 1e9)
            used += end - start
        self.rounds.append(rates)

    def outcome(self) -> dict[str, Any]:
        """Return the best and the median rate, the scatter, and the best of each round."""
        rates = [rate for one in self.rounds for rate in one]
        return {
            "best": max(rates),
            "median": statistics.median(rates),
            "variation": statistics.pstdev(rates) / statistics.fmean(rates),
            "windows": len(rates),
            "window_repeats": self.repeats,
            "rounds": [max(one) for one in self.rounds],
        }


def main(arguments: list[str]) -> int:
    job_path, result, parent = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    _die_with_parent(parent)
    sys.setswitchinterval(1e-5)  # limits how long a thread that returns from a kernel waits for the interpreter
    result.write_text(json.dumps(measure(json.loads(job_path.read_text()))))
    return 0


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Run all kernels of the job in rounds, until all resources are settled or the time is up.

    Each item of `measurements` is returned with its `outcome`, or with the reason in `failed`.
    """
    noise = _Noise()
    begun = time.perf_counter()
    kernels = _made(job)
    _run_rounds(job["measurements"], kernels, begun, job["seconds"])
    return {
        "measurements": [
            {**item, "failed": kernel} if isinstance(kernel, str) else {**item, "outcome": kernel.outcome()}
            for item, kernel in zip(job["measurements"], kernels, strict=True)
        ],
        "noise": noise.document(),
        "versions": {"python": sys.version.split()[0], "numpy": np.__version__, **_runtime_version(job)},
    }


def _run_rounds(items: Sequence[dict[str, Any]], kernels: Sequence[Kernel | str], begun: float, seconds: float) -> None:
    deadline = begun + seconds
    number = 0
    while number < _FEWEST_ROUNDS or time.perf_counter() < deadline:
        open_resources = {_resource(item) for item in items} - _settled(items, kernels)
        if not open_resources:
            break
        for item, kernel in zip(items, kernels, strict=True):
            if isinstance(kernel, Kernel) and _resource(item) in open_resources:
                if number >= _FEWEST_ROUNDS and time.perf_counter() >= deadline:
                    break
                kernel.run_round()
                done = min(1.0, (time.perf_counter() - begun) / max(seconds, 1e-9))
                print(json.dumps({"done": done, "total": 1}), flush=True)
        number += 1


def _resource(item: dict[str, Any]) -> tuple[str, str | None]:
    return item["resource"], item["dtype"]


def _settled(items: Sequence[dict[str, Any]], kernels: Sequence[Kernel | str]) -> set[tuple[str, str | None]]:
    """Return the resources whose two best rounds agree, for any kernels, and those that no kernel can measure."""
    settled = set()
    for resource in {_resource(item) for item in items}:
        mine = [
            kernel
            for item, kernel in zip(items, kernels, strict=True)
            if isinstance(kernel, Kernel) and _resource(item) == resource
        ]
        fewest = min((len(kernel.rounds) for kernel in mine), default=0)
        bests = sorted((max(max(kernel.rounds[n]) for kernel in mine) for n in range(fewest)), reverse=True)
        if not mine or (fewest >= _STEADY_ROUNDS and bests[1] >= bests[0] * (1 - SETTLED_WITHIN)):
            settled.add(resource)
    return settled


def _made(job: dict[str, Any]) -> list[Kernel | str]:
    """Prepare the kernels for timing, each at the index of its measurement, with a reason for each that failed."""
    items = job["measurements"]
    crew = None
    made: list[Kernel | str] = []
    for item in items:
        try:
            if item["kernel"] == "runtime":
                kernel = _runtime_kernel(item, job)
            elif item["kernel"] == "product":
                kernel = _product_kernel(item)
            else:
                crew = crew or _Crew(job["cpus"], max(item.get("thread_bytes", 0) for item in items))
                kernel = crew.kernel(item)
            kernel.prepare()
        except Exception as error:  # noqa: BLE001  (whatever is lacking here, the other kernels are worth measuring)
            made.append(" ".join(str(error).split())[:300] or type(error).__name__)
        else:
            made.append(kernel)
    return made


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _runtime_kernel(item: dict[str, Any], job: dict[str, Any]) -> Kernel:
    """ONNX Runtime's matrix product with constant weights, as in a model; inputs and output stay bound."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    session = ort.InferenceSession(item["model"], options, providers=["CPUExecutionProvider"])
    side = item["side"]
    given = _matrix(side, item["input_dtype"], seed=1)
    output = np.empty((side, side), item["output_dtype"])
    binding = session.io_binding()
    binding.bind_cpu_input("a", given)
    binding.bind_output("y", "cpu", 0, output.dtype.type, output.shape, output.ctypes.data)
    held = (given, output)

    def window(repeats: int) -> Times:
        assert held  # the runtime stores only addresses
        start = time.perf_counter_ns()
        for _ in range(repeats):
            session.run_with_iobinding(binding)
        return start, time.perf_counter_ns()

    return Kernel(window, 2.0 * side**3)


def _product_kernel(item: dict[str, Any]) -> Kernel:
    """NumPy's matrix product, computed by the BLAS library that NumPy was built with."""
    side = item["side"]
    one, other = _matrix(side, item["input_dtype"], seed=1), _matrix(side, item["input_dtype"], seed=2)
    output = np.empty((side, side), item["input_dtype"])

    def window(repeats: int) -> Times:
        start = time.perf_counter_ns()
        for _ in range(repeats):
            np.matmul(one, other, out=output)
        return start, time.perf_counter_ns()

    return Kernel(window, 2.0 * side**3)


def _matrix(side: int, dtype: str, seed: int) -> npt.NDArray[Any]:
    """Return random numbers: with constant data a processor may save power and run faster than on real data."""
    random = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return random.standard_normal((side, side), np.float32).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, (side, side), dtype, endpoint=True)


# ---- memory ----------------------------------------------------------------------------------------------------------


class _Crew:
    """One thread per CPU, pinned to it, with memory that this thread touched first."""

    def __init__(self, cpus: Sequence[int], largest_bytes: int) -> None:
        self._cpus = list(cpus)
        self._rooms: list[Doubles] = [np.empty(0)] * len(self._cpus)

        def furnish(place: int) -> None:
            self._rooms[place] = _room(largest_bytes)

        self._on_all(furnish)

    def kernel(self, item: dict[str, Any]) -> Kernel:
        """The same kernel on each thread. A window lasts from the first thread's start to the last thread's end."""
        make, size = _MEMORY_KERNELS[item["kernel"]], item["thread_bytes"]
        tasks = [make(room, size) for room in self._rooms]

        def run_all(repeats: int) -> list[Times]:
            times: list[Times] = [(0, 0)] * len(tasks)
            together = threading.Barrier(len(tasks))

            def run(place: int) -> None:
                task = tasks[place][0]
                together.wait()
                start = time.perf_counter_ns()
                task(repeats)
                times[place] = (start, time.perf_counter_ns())

            self._on_all(run)
            return times

        def window(repeats: int) -> Times:
            times = run_all(repeats)
            return min(start for start, _ in times), max(end for _, end in times)

        def lasts(repeats: int) -> int:
            return max(end - start for start, end in run_all(repeats))

        return Kernel(window, sum(work for _, work in tasks), lasts)

    def _on_all(self, do: Callable[[int], None]) -> None:
        """Call `do` once on each CPU at the same time; re-raise an error from a thread."""
        errors: list[BaseException] = []

        def held(place: int) -> None:
            try:
                os.sched_setaffinity(0, {self._cpus[place]})  # applies to this thread only
                do(place)
                _Noise.ended_threads_ns += _run_delay("/proc/thread-self/schedstat") or 0
            except Exception as error:  # noqa: BLE001  (raised again below, in the thread that asked)
                errors.append(error)

        threads = [threading.Thread(target=held, args=(place,)) for place in range(len(self._cpus))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def _room(size: int) -> Doubles:
    """Allocate a working set of `size` bytes and write all of it once.

    It begins at a huge page: with small pages in front, even the L1 was measured to be a third slower.
    """
    size += 2 * _PAGE
    raw = np.empty(size + _HUGE_PAGE, np.uint8)
    start = -raw.ctypes.data % _HUGE_PAGE
    room: Doubles = raw[start : start + size // 8 * 8].view(np.float64)
    room[:] = 1.0
    return room


def _pair(room: Doubles, first: int, second: int) -> tuple[Doubles, Doubles]:
    """Allocate two arrays of `first` and `second` numbers: one page-aligned, the other offset by half a page.

    Elements at the same index then differ in their low address bits, which avoids conflicts between loads and stores.
    """
    begin = -(-first * 8 // _PAGE) * (_PAGE // 8) + _PAGE // 16
    return room[:first], room[begin : begin + second]


def _read(room: Doubles, size: int) -> Task:
    """s = Σ x·y: reads both arrays and writes nothing. One NumPy call runs all repeats, in the BLAS library."""
    count = size // 2 // _LINE * _LINE // 8
    pair = _pair(room, count, count)
    sums: list[Doubles] = [np.empty(1)]

    def run(repeats: int) -> None:
        if len(sums[0]) != repeats:
            sums[0] = np.empty(repeats)
        one, other = (as_strided(array, (repeats, count), (0, 8)) for array in pair)
        np.vecdot(one, other, out=sums[0])

    return run, 16.0 * count


def _update(room: Doubles, size: int) -> Task:
    """y = x + y: reads both arrays and writes one, whose lines are already in the cache.

    One NumPy call runs all repeats: it sums the rows of a view, each row starting one cache line after the previous
    one. The view wraps around after `rows` repeats, so that x keeps its intended size. Setting y to zero first in each
    call is not counted.
    """
    rows = max(2, size // 8 // _LINE)
    count = (size - rows * _LINE) // 2 // _LINE * _LINE // 8
    x, y = _pair(room, count + rows * _LINE // 8, count)
    view = as_strided(x, (rows, count), (_LINE, 8))

    def run(repeats: int) -> None:
        while repeats > 0:
            part = min(repeats, rows)
            np.add.reduce(view[:part], axis=0, out=y, initial=0.0)
            repeats -= part

    return run, 24.0 * count


def _scale(room: Doubles, size: int) -> Task:
    """x = 1·x in place: reads and writes the same cache lines."""
    x = room[: size // 8]

    def run(repeats: int) -> None:
        for _ in range(repeats):
            np.multiply(x, 1.0, out=x)

    return run, 16.0 * len(x)


def _copy(room: Doubles, size: int) -> Task:
    """y = x: reads one array and writes another."""
    x, y = _pair(room, size // 16, size // 16)

    def run(repeats: int) -> None:
        for _ in range(repeats):
            np.copyto(y, x)

    return run, 16.0 * len(x)


_MEMORY_KERNELS: Final = {"read": _read, "update": _update, "scale": _scale, "copy": _copy}


# ---- the machine meanwhile -------------------------------------------------------------------------------------------


class _Noise:
    """Read disturbances: time that this process's threads waited for a CPU, CPU pressure, and stolen time."""

    #: Waits of ended threads, whose own files are gone.
    ended_threads_ns = 0

    def __init__(self) -> None:
        self._before = self._read()

    def _read(self) -> dict[str, float | None]:
        waits = [_run_delay(str(task / "schedstat")) for task in Path("/proc/self/task").iterdir()]
        known = [wait for wait in waits if wait is not None]
        return {
            "clock_ns": float(time.perf_counter_ns()),
            "cpu_ns": float(time.process_time_ns()),
            "run_delay_ns": float(sum(known) + _Noise.ended_threads_ns) if known else None,
            "pressure_ns": _pressure_ns(),
            **_stolen(),
        }

    def document(self) -> dict[str, float | None]:
        """Return the fractions since the beginning, 0..1; null if the Linux kernel has no figures.

        `run_delay_ratio`: of the time in which this process's threads wanted a CPU, the fraction spent waiting for one.
        `pressure_ratio`: the fraction of wall-clock time in which any task of the host waited. `steal_ratio`: the
        fraction of the host's CPU time that its hypervisor gave to other guests.
        """
        after = self._read()
        past = {
            name: None if value is None or self._before[name] is None else value - (self._before[name] or 0)
            for name, value in after.items()
        }
        elapsed, waited = past["clock_ns"] or 1.0, past["run_delay_ns"]
        return {
            "elapsed_s": elapsed / 1e9,
            "run_delay_ratio": None if waited is None else _ratio(waited, waited + (past["cpu_ns"] or 0.0)),
            "pressure_ratio": _ratio(past["pressure_ns"], elapsed),
            "steal_ratio": _ratio(past["stolen_ticks"], past["all_ticks"]),
        }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _stated(path: str, parse: Callable[[str], Value]) -> Value | None:
    """Read a file of the Linux kernel; None if there is none or the thread has ended."""
    try:
        return parse(Path(path).read_text())
    except (OSError, ValueError, IndexError):
        return None


def _run_delay(path: str) -> int | None:
    return _stated(path, lambda text: int(text.split()[1]))


def _pressure_ns() -> float | None:
    return _stated("/proc/pressure/cpu", lambda text: float(text.splitlines()[0].rpartition("total=")[2]) * 1e3)


def _stolen() -> dict[str, float | None]:
    def ticks(text: str) -> dict[str, float | None]:
        fields = [float(field) for field in text.partition("\n")[0].split()[1:]]
        return {"stolen_ticks": fields[7], "all_ticks": sum(fields[:8])}

    return _stated("/proc/stat", ticks) or {"stolen_ticks": None, "all_ticks": None}


def _runtime_version(job: dict[str, Any]) -> dict[str, str]:
    if not any(item["kernel"] == "runtime" for item in job["measurements"]):
        return {}
    import onnxruntime as ort

    return {"onnxruntime": ort.__version__}


def _die_with_parent(parent: int) -> None:
    """Have the Linux kernel kill this process when its parent dies: no measured process may outlive its parent."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
