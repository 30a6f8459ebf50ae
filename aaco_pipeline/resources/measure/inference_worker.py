"""The measured process: a fresh interpreter that loads a model, runs one pass of it and writes the results.

Started by `aaco_pipeline.resources.measure.inference` as `python -P inference_worker.py JOB.json FOLDER PARENT_PID`,
followed by the word `nested` if a profiler may run between the two. It imports only the standard library, NumPy and
ONNX Runtime, so that nothing else runs next to the model; other modules decide what to run and interpret the numbers.
It is a single long file on purpose: with -P its folder is not searched for modules, so no file next to it can replace a
module that NumPy or the runtime imports.

It writes `FOLDER/pass.json` (and, in the traced pass, ONNX Runtime's profile next to it) or `FOLDER/error.json`. The
pass `answer` is not timed: it runs the model on drawn inputs, or on the inputs of an earlier answer, and keeps the
outputs. Progress is written to standard output, one JSON object per line, never inside a timed interval.
"""

import ctypes
import hashlib
import itertools
import json
import mmap
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime as ort

_PR_SET_PDEATHSIG: Final = 1
#: The graph as the runtime executes it, written next to the profile by the traced pass.
OPTIMIZED_MODEL: Final = "optimized_model.onnx"
_CPU: Final = "CPUExecutionProvider"
#: Reporting progress is a system call, on return from which a process may lose its CPU, so it is as rare as reading
#: counters.
_PROGRESS_INTERVAL_NS: Final = 1_000_000_000
#: Description of the loop's clock readings: an environment fact, so that sessions with different loops are not
#: compared.
LOOP: Final = "two clocks around each iteration, CPU time and run-queue delay in blocks"
#: A block has at least this many iterations and takes at least this long: see `_Readings`.
_BLOCK_ITERATIONS: Final = 100
_BLOCK_NS: Final = 1_000_000_000
#: Duration of a probe, and the gap between two clock readings that means that it was not running.
_PROBE_NS: Final = 5_000_000
#: The first probe is long enough for some timer ticks, which show the cost of an interrupt.
_FIRST_PROBE_NS: Final = 100_000_000
_PROBE_STEP_NS: Final = 10_000
#: With these bits, a thread's number, inverted and shifted, gives its CPU clock (include/linux/posix-timers_types.h).
_OF_A_THREAD: Final = 0b110
_FAULT_ROUNDS: Final = 3
_FAULT_PAGES: Final = 8_192
_HOT_PAGES: Final = 64
#: A page that takes this many times longer than most was not readily available.
_SLOW_TIMES: Final = 10
#: ONNX Runtime silently stops recording at 1,000,000 events; the traced pass is shortened to stay below this.
PROFILE_EVENT_BUDGET: Final = 900_000
#: Events per run in addition to the nodes: model_run and SequentialExecutor::Execute.
_EVENTS_PER_RUN: Final = 2
#: The profiler's own range library is preferred; the older tracer's is the fallback.
_ROCTX_LIBRARIES: Final = ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "libroctx64.so")

NUMPY_TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint64)": "uint64",
    "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


#: An input's NumPy element type, and its dimensions: a size, or the model's name of a dynamic dimension.
Declared = tuple[str, list[Any]]


class Refusal(Exception):
    """A pass that cannot be measured: `kind` is usage, model or unavailable; `message` is one line for the user."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(arguments: list[str]) -> int:
    job_path, folder, parent = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    _die_with_parent(parent, nested="nested" in arguments[3:])
    job = json.loads(job_path.read_text())
    try:
        outcome = answer(job, folder) if job["pass"] == "answer" else measure(job, folder)
    except Refusal as refusal:
        _write_json(folder / "error.json", {"kind": refusal.kind, "message": str(refusal)})
        return 1
    _write_json(folder / "pass.json", outcome)
    return 0


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one pass according to `job` and return the document for `pass.json`. Raises Refusal."""
    import numpy as np
    import onnxruntime as ort

    traced = job["pass"] == "trace"
    clocks_before, boot_before = _clock_pair(), _boot_clock_pair()
    session, loading = _load(job, folder, traced)
    placement = _placement(session, job)
    # An iteration is one run of the model: an inference, or one token of a request.
    runs_each = int(job["output_tokens"] or 1)
    warmup, iterations = int(job["warmup"]), int(job["iterations"])
    if traced and placement["node_count"] is not None:
        fitting = PROFILE_EVENT_BUDGET // (runs_each * (placement["node_count"] + _EVENTS_PER_RUN)) - warmup
        iterations = max(1, min(iterations, fitting))
    probes = _Probes() if job.get("kernel_plane") else None
    readings = _Readings(warmup * runs_each, (warmup + iterations) * runs_each, probes)
    markers = _Markers(wanted=job["markers"], total=(warmup + iterations) * runs_each)
    generated: list[list[int]] | None = None
    if job["output_tokens"] is None:
        inputs = _make_inputs(session, job)
        binding, binding_note = _bind(session, inputs, job)
        _run_all(session, binding, inputs, readings, markers)
    else:
        inputs, generated, binding_note = _generate_all(session, job, warmup + iterations, readings, markers)
    clocks_after, boot_after = _clock_pair(), _boot_clock_pair()
    profile = None
    if traced:
        profile_start = int(session.get_profiling_start_time_ns())
        profile = {"file": Path(session.end_profiling()).name, "start_realtime_ns": profile_start}
    return {
        "pass": job["pass"],
        "process_id": os.getpid(),
        "warmup": warmup * runs_each,
        "iterations": iterations * runs_each,
        "iterations_asked": int(job["iterations"]) * runs_each,
        "prompt_tokens": job["prompt_tokens"],
        "output_tokens": job["output_tokens"],
        "first_generated": generated,
        "start_monotonic_ns": readings.start.tolist(),
        "end_monotonic_ns": readings.end.tolist(),
        "blocks": readings.blocks(),
        "kernel_plane": None if probes is None else probes.document(),
        "clocks_before": clocks_before,
        "clocks_after": clocks_after,
        "boot_clock_before": boot_before,
        "boot_clock_after": boot_after,
        "markers": markers.note,
        "profile": profile,
        "placement": placement,
        "loading": loading,
        "inputs": {
            name: {"shape": list(a.shape), "dtype": str(a.dtype), "sha256": hashlib.sha256(a.tobytes()).hexdigest()}
            for name, a in inputs.items()
        },
        "io_binding": binding_note,
        "versions": {"python": sys.version.split()[0], "onnxruntime": ort.__version__, "numpy": np.__version__},
    }


def answer(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the model `job["runs"]` times with different inputs, and keep its outputs. Raises Refusal.

    Inputs are drawn and kept too, or taken from the file `job["inputs_of"]`, with `job["joined"]` consecutive ones
    joined along the first dimension. In the file `job["answers"]` they are `input_RUN_PLACE`, `output_RUN_PLACE`.
    """
    import numpy as np

    session, _ = _load(job, folder, traced=False)
    _placement(session, job)
    names = [one.name for one in session.get_inputs()]
    kept: dict[str, np.ndarray[Any, Any]] = {}
    if job["inputs_of"] is None:
        for run in range(job["runs"]):
            drawn = _make_inputs(session, {**job, "seed": job["seed"] + run})
            kept |= {f"input_{run}_{place}": drawn[name] for place, name in enumerate(names)}
        given, joined = kept, 1
    else:
        with np.load(job["inputs_of"]) as earlier:
            given, joined = {name: earlier[name] for name in earlier.files}, job["joined"]
    for run, first in enumerate(range(0, job["runs"], joined)):
        inputs = {
            name: np.concatenate([given[f"input_{one}_{place}"] for one in range(first, first + joined)])
            if joined > 1
            else given[f"input_{first}_{place}"]
            for place, name in enumerate(names)
        }
        try:
            outputs = session.run(None, inputs)
        except Exception as error:  # ONNX Runtime's errors have no common base class, and each of them ends the pass
            raise Refusal("model", f"the model failed on drawn inputs: {_one_line(error)}") from error
        for place, (value, output) in enumerate(zip(outputs, session.get_outputs(), strict=True)):
            if not isinstance(value, np.ndarray) or value.dtype.hasobject:
                reason = f"output {output.name!r} is {output.type}; only tensors of numbers can be compared"
                raise Refusal("model", reason)
            kept[f"output_{run}_{place}"] = value
    np.savez(job["answers"], **kept)  # type: ignore[arg-type]  # no array is called `allow_pickle`
    return {"outputs": [one.name for one in session.get_outputs()]}


class _Border(NamedTuple):
    """A reading: iterations done, its time, and the CPU time and waiting time of the process up to then."""

    iteration: int
    monotonic_ns: int
    cpu_time_ns: int
    run_delay_ns: int | None


class _Readings:
    """Start and end of each iteration, and the process's usage at the boundaries of blocks of iterations.

    Between two boundaries only the clock is read, which takes no system call. Reading CPU time makes the Linux kernel
    update the thread's accounting first; pending preemption and throttling then take effect on return, outside every
    timed interval, so no latency would show them. Boundaries are therefore rare: at both ends of each phase, and within
    one after at least 100 iterations and one second.
    """

    def __init__(self, warmup: int, total: int, probes: "_Probes | None" = None) -> None:
        import numpy as np

        # Written once now: touching a page first between two iterations would cause a fault there.
        self.start = np.full(total, -1, np.int64)
        self.end = np.full(total, -1, np.int64)
        self._phase_ends = {warmup, total}
        self._account = _Account()
        self._borders: list[_Border] = []
        self._reported = 0
        self._probes = probes
        self._probing_ns = 0

    def begin(self) -> None:
        """Set the boundary before the first iteration; progress is counted from here."""
        self._border(0)
        self._reported = time.perf_counter_ns()

    def take(self, iteration: int, before: int, after: int) -> None:
        """Store the two clock readings of a finished iteration; read counters and report progress when due."""
        self.start[iteration], self.end[iteration] = before, after
        done = iteration + 1
        if done in self._phase_ends or (after >= self._due_ns and done >= self._due):
            self._border(done)
        if after - self._reported >= _PROGRESS_INTERVAL_NS or done == len(self.end):
            print(json.dumps({"done": done, "total": len(self.end)}), flush=True)
            self._reported = after

    def blocks(self) -> list[dict[str, Any]]:
        """Return the usage between boundaries: each block ends where the next one begins, so nothing is lost."""
        return [
            {
                "iterations": later.iteration - earlier.iteration,
                "start_monotonic_ns": earlier.monotonic_ns,
                "end_monotonic_ns": later.monotonic_ns,
                "cpu_time_ns": later.cpu_time_ns - earlier.cpu_time_ns,
                "run_delay_ns": None
                if later.run_delay_ns is None or earlier.run_delay_ns is None
                else later.run_delay_ns - earlier.run_delay_ns,
            }
            for earlier, later in itertools.pairwise(self._borders)
        ]

    def _border(self, iteration: int) -> None:
        clock = time.perf_counter_ns()
        self._due, self._due_ns = iteration + _BLOCK_ITERATIONS, clock + _BLOCK_NS
        spent = self._account.cpu_time_ns()
        self._borders.append(_Border(iteration, clock, spent - self._probing_ns, self._account.run_delay_ns()))
        if self._probes is not None:
            self._probes.take(iteration)
            self._probing_ns += self._account.cpu_time_ns() - spent  # belongs to no block


def _run_all(
    session: "ort.InferenceSession",
    binding: "ort.IOBinding | None",
    inputs: "dict[str, np.ndarray[Any, Any]]",
    readings: _Readings,
    markers: "_Markers | None" = None,
) -> None:
    """Fill the readings, warm-up iterations first. Only the model call is between the two clock readings."""
    markers = markers or _Markers(wanted=False, total=0)
    now = time.perf_counter_ns
    readings.begin()
    for i in range(len(readings.start)):
        markers.begin(i)
        before = now()
        try:
            if binding is not None:
                session.run_with_iobinding(binding)
            else:
                session.run(None, inputs)
        except Exception as error:  # ONNX Runtime's errors have no common base class, and each of them ends the pass
            raise Refusal("model", f"the model failed in iteration {i}: {_one_line(error)}") from error
        after = now()
        markers.end()
        readings.take(i, before, after)


def _generate_all(
    session: "ort.InferenceSession", job: dict[str, Any], requests: int, readings: _Readings, markers: "_Markers"
) -> "tuple[dict[str, np.ndarray[Any, Any]], list[list[int]], str]":
    """Fill the readings with one entry per token: each request is a prompt followed by one token at a time.

    A token is complete once the most likely one has been chosen from the logits (greedy), so the first entry of a
    request is its time to first token. Returns the inputs of the first request's first step, its tokens (one list per
    batch item) and a note on binding.
    """
    import numpy as np

    model = _LanguageModel(session)
    batch = int(job["batch_size"] or 1)
    prompt, tokens = int(job["prompt_tokens"]), int(job["output_tokens"])
    random = np.random.default_rng(job["seed"])
    bound = job["integer_upper_bound"].get("input_ids", model.vocabulary or 2)
    prompts = random.integers(0, bound, (requests, batch, prompt)).astype(np.int64)
    empty = {name: np.zeros(model.empty_shape(name, batch), NUMPY_TYPES[model.types[name]]) for name in model.cache}
    first = {"input_ids": prompts[0], **empty, **model.extra_inputs(prompts[0], prompt)}
    now = time.perf_counter_ns
    entry = 0
    chosen: list[np.ndarray[Any, Any]] = []
    readings.begin()
    for request in range(requests):
        step, past = prompts[request], empty
        for position in range(tokens):
            markers.begin(entry)
            before = now()
            try:
                inputs = {"input_ids": step, **past, **model.extra_inputs(step, prompt + position)}
                outputs = session.run(model.outputs, inputs)
                step = outputs[model.logits][:, -1:].argmax(axis=-1)
            except Exception as error:  # ONNX Runtime's errors have no common base; each ends the pass
                reason = f"the model failed at token {position} after a prompt of {prompt}"
                raise Refusal("model", f"{reason}: {_one_line(error)}") from error
            after = now()
            markers.end()
            past = {name: outputs[place] for name, place in model.cache.items()}
            if request == 0:
                chosen.append(step)
            readings.take(entry, before, after)
            entry += 1
    note = "not used: on the CPU, arrays are handed over without a copy and cost less than rebinding each step"
    if job["provider"] != _CPU:
        note = "not used: each step's inputs and outputs, the cache among them, are copied within the timed call"
    return first, np.concatenate(chosen, axis=1).tolist(), note


class _LanguageModel:
    """Find a model's tokens, logits and key-value cache among its inputs and outputs, by their usual names.

    `cache` maps each past input to the index of the present output that continues it; `logits` is the index of the
    logits. Raises Refusal if the model is not a decoder with a cache.
    """

    _EXTRA: Final = ("attention_mask", "position_ids")

    def __init__(self, session: "ort.InferenceSession") -> None:
        self.types = {i.name: i.type for i in session.get_inputs()}
        self._shapes = {i.name: list(i.shape) for i in session.get_inputs()}
        outputs = [o.name for o in session.get_outputs()]
        present = {name: name.replace("past_key_values", "present").replace("past", "present") for name in self.types}
        past = [name for name in self.types if "past" in name]
        unknown = [n for n in self.types if n not in past and n not in ("input_ids", *self._EXTRA)]
        unmatched = [name for name in past if present[name] not in outputs]
        if "input_ids" not in self.types or not past or unknown or unmatched or "logits" not in outputs:
            raise Refusal(
                "usage",
                "the model cannot generate tokens: expected the inputs input_ids and past… with outputs logits and "
                f"present… of the same names; it has {', '.join(self.types)} and {', '.join(outputs)}; "
                "leave --prompt and --tokens out to measure single runs",
            )
        self.logits = outputs.index("logits")
        self.cache = {name: outputs.index(present[name]) for name in past}
        self.outputs = outputs
        width = session.get_outputs()[self.logits].shape[-1]
        self.vocabulary = width if isinstance(width, int) else None

    def empty_shape(self, name: str, batch: int) -> list[int]:
        """Return the shape of a past input before any token: zero positions."""
        sizes = enumerate(self._shapes[name])
        return [size if isinstance(size, int) else batch if axis == 0 else 0 for axis, size in sizes]

    def extra_inputs(self, step: "np.ndarray[Any, Any]", seen: int) -> "dict[str, np.ndarray[Any, Any]]":
        """Return the mask and positions, for models that need them, of a step after `seen` tokens."""
        import numpy as np

        batch, width = step.shape
        values: dict[str, np.ndarray[Any, Any]] = {}
        # Only the requested inputs: this is inside the timed step.
        if "attention_mask" in self.types:
            values["attention_mask"] = np.ones((batch, seen), np.int64)
        if "position_ids" in self.types:
            values["position_ids"] = np.tile(np.arange(seen - width, seen, dtype=np.int64), (batch, 1))
        return values


class _Account:
    """Scheduler statistics of the threads that the process has when this is opened."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._clocks: list[int] = []
        try:
            for task in Path("/proc/self/task").iterdir():
                self._clocks.append((~int(task.name) << 3) | _OF_A_THREAD)
                self._files.append(os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._files = []  # no schedstat on this kernel: the column stays null

    def cpu_time_ns(self) -> int:
        """The process's CPU time. The kernel counts a thread on another CPU as of that one's last tick, milliseconds
        ago, unless it is requested that thread's time first.
        """
        for clock in self._clocks:
            with suppress(OSError):  # it has ended, and all its time is included
                time.clock_gettime_ns(clock)
        return time.process_time_ns()

    def run_delay_ns(self) -> int | None:
        """Return the total time the threads waited on run queues; None if a file is missing or a thread has ended."""
        if not self._files:
            return None
        try:
            return sum(int(os.pread(file, 128, 0).split()[1]) for file in self._files)
        except OSError:
            return None


class _Probes:
    """Probes, between blocks of iterations, how the machine schedules a thread that only reads the clock.

    The kernel's events explain its missing time, or it stays unexplained. Also measures the cost of one page fault
    while events are recorded, because the events only count faults.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._found: list[dict[str, Any]] = []
        self._fault_ns = _cost_of_a_fault()

    def take(self, before_iteration: int) -> None:
        """Read the clock for some milliseconds; keep gaps that are longer than the loop can explain."""
        now, cpu = time.perf_counter_ns, self._cpu()
        length = _PROBE_NS if self._found else _FIRST_PROBE_NS
        gaps: list[tuple[int, int]] = []
        start = last = now()
        while last - start < length:
            at = now()
            if at - last > _PROBE_STEP_NS:
                gaps.append((last, at))
            last = at
        here = cpu if cpu == self._cpu() else None
        probe = {"before_iteration": before_iteration, "cpu": here, "start_ns": start, "end_ns": last, "gaps": gaps}
        self._found.append(probe)

    def document(self) -> dict[str, Any]:
        return {"minor_fault_ns": self._fault_ns, "step_ns": _PROBE_STEP_NS, "probes": self._found}

    def _cpu(self) -> int | None:
        try:
            return int(self._library.sched_getcpu())
        except AttributeError:
            return None


def _cost_of_a_fault() -> float:
    """Return the nanoseconds of a first touch of a fresh page: the median of several rounds.

    Touches more pages than the caches hold, like a program's fresh memory, and subtracts the time of the loop itself.
    Excludes pages that took many times longer: a virtual machine's host had to provide them first, and a recording
    times such faults.
    """
    costs = []
    for _ in range(_FAULT_ROUNDS):
        memory = mmap.mmap(-1, _FAULT_PAGES * mmap.PAGESIZE)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # one fault per page
        _touching(memory, _HOT_PAGES)
        hot = _usual(_touching(memory, _HOT_PAGES))
        fresh = _usual(_touching(memory, _FAULT_PAGES)[_HOT_PAGES:])
        before = time.perf_counter_ns()
        memory.close()
        costs.append(fresh - hot + (time.perf_counter_ns() - before) / _FAULT_PAGES)
    return max(0.0, sorted(costs)[len(costs) // 2])


def _touching(memory: mmap.mmap, pages: int) -> list[int]:
    """Return the time of the write to each page, in ns."""
    now, took = time.perf_counter_ns, []
    for place in range(0, pages * mmap.PAGESIZE, mmap.PAGESIZE):
        before = now()
        memory[place] = 1
        took.append(now() - before)
    return took


def _usual(took: list[int]) -> float:
    """Return the mean without outliers that took many times the median."""
    most = _SLOW_TIMES * sorted(took)[len(took) // 2]
    usual = [one for one in took if one < most]
    return sum(usual) / len(usual)


class _Markers:
    """A range `iteration <n>` around each iteration, for a profiler that traces markers; otherwise does nothing.

    `note` is the text for the pass's document: the library, or why there are no ranges; None if none were wanted.
    """

    def __init__(self, *, wanted: bool, total: int) -> None:
        library = _roctx() if wanted else None
        self._push = None if library is None else library.roctxRangePushA
        self._pop = None if library is None else library.roctxRangePop
        self._names = [b"iteration %d" % i for i in range(total)] if library is not None else []
        self.note: dict[str, str | None] | None = None
        if wanted:
            tried = f"none of {', '.join(_ROCTX_LIBRARIES)} can be loaded"
            self.note = {"library": getattr(library, "_name", None), "missing": None if library is not None else tried}

    def begin(self, iteration: int) -> None:
        if self._push is not None:
            self._push(self._names[iteration])

    def end(self) -> None:
        if self._pop is not None:
            self._pop()


def _roctx() -> ctypes.CDLL | None:
    """Return the range library, by name or within ROCM_PATH; None if no library has both functions."""
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib"
    for name in (*_ROCTX_LIBRARIES, *(str(root / name) for name in _ROCTX_LIBRARIES)):
        try:
            library = ctypes.CDLL(name)
            library.roctxRangePushA.argtypes = [ctypes.c_char_p]
            library.roctxRangePop.argtypes = []
        except (OSError, AttributeError):
            continue
        return library
    return None


def _load(job: dict[str, Any], folder: Path, traced: bool) -> "tuple[ort.InferenceSession, dict[str, Any]]":
    import onnxruntime as ort

    provider = job["provider"]
    strict = not job["allow_fallback"]
    if strict and provider not in ort.get_available_providers():
        raise Refusal(
            "unavailable",
            f"this onnxruntime {ort.__version__} has no {provider} "
            f"(it has {', '.join(ort.get_available_providers())}); `aaco info` says what to install",
        )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{job['optimization'].upper()}")
    if job["threads"] is not None:
        options.intra_op_num_threads = job["threads"]
    if job["inter_op_threads"] is not None:
        options.inter_op_num_threads = job["inter_op_threads"]
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if traced:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "onnxruntime_profile")
        if provider == _CPU:  # a graph with partitions compiled for a device cannot be written
            options.optimized_model_filepath = str(folder / OPTIMIZED_MODEL)
            # Weights go to a separate file, which is deleted: only the graph is kept.
            key = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{key}_file_name", f"{OPTIMIZED_MODEL}.weights")
            options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")
    providers: list[Any] = [(provider, job["provider_options"])] if job["provider_options"] else [provider]
    if provider != _CPU:
        if strict and not _records_placement():
            # An older runtime cannot report fallback nodes afterwards, but it can refuse them.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        else:
            providers.append(_CPU)
    started = time.perf_counter_ns()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = ort.InferenceSession(job["model_path"], options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors have no common base class, and all mean the same here
        raise Refusal("model", f"{job['model_path']}: cannot be loaded: {_one_line(error)}") from error
    (folder / f"{OPTIMIZED_MODEL}.weights").unlink(missing_ok=True)  # before the kernel writes it to disk meanwhile
    return session, {"duration_ns": time.perf_counter_ns() - started}


def _records_placement() -> bool:
    import onnxruntime as ort

    return hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")


def _placement(session: "ort.InferenceSession", job: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes by the provider that runs them; Refusal if the requested one does not run all of them.

    The runtime falls back to the CPU without an error, so both its provider list and its own record of the assignment
    are compared with the request.
    """
    provider = job["provider"]
    active = list(session.get_providers())
    parts = session.get_provider_graph_assignment_info() if _records_placement() else []
    placed = [(part.ep_name, node) for part in parts for node in part.get_nodes()]
    counts = {name: sum(name == other for other, _ in placed) for name in dict.fromkeys(part.ep_name for part in parts)}
    node_count = len(placed) if _records_placement() else None
    elsewhere = [f"{node.name or '(unnamed)'} ({node.op_type})" for name, node in placed if name != provider]
    if not job["allow_fallback"]:
        advice = "run with --allow-fallback to measure it as it is"
        if provider not in active:
            raise Refusal(
                "unavailable",
                f"{provider} was asked for and cannot be created here; the runtime would use "
                f"{', '.join(active)} for all nodes; `aaco info` says what is missing, or {advice}",
            )
        if elsewhere:
            shown = ", ".join(elsewhere[:5]) + (f" and {len(elsewhere) - 5} more" if len(elsewhere) > 5 else "")
            others = ", ".join(name for name in counts if name != provider)
            raise Refusal(
                "unavailable",
                f"{provider} was asked for, and {len(elsewhere)} of {node_count} nodes would run on {others}: "
                f"{shown}; {advice}",
            )
    return {"asked": provider, "active": active, "node_counts": counts, "node_count": node_count}


def _make_inputs(session: "ort.InferenceSession", job: dict[str, Any]) -> "dict[str, np.ndarray[Any, Any]]":
    """Return seeded inputs: standard normal floats, uniform integers below bounds, fair booleans. Raises Refusal."""
    import numpy as np

    declared: dict[str, Declared] = {}
    for value in session.get_inputs():
        if value.type not in NUMPY_TYPES:
            reason = f"input {value.name!r} has type {value.type}; inputs can be generated for dense tensors only"
            raise Refusal("model", reason)
        declared[value.name] = NUMPY_TYPES[value.type], list(value.shape)
    random = np.random.default_rng(job["seed"])
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, (dtype, shape) in plan_inputs(declared, job).items():
        if dtype.startswith("float"):
            arrays[name] = random.standard_normal(shape).astype(dtype)
        elif dtype == "bool":
            arrays[name] = random.integers(0, 2, shape).astype(bool)
        else:
            arrays[name] = random.integers(0, job["integer_upper_bound"].get(name, 2), shape).astype(dtype)
    return arrays


def plan_inputs(declared: dict[str, Declared], job: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """Return element type and concrete shape of every input. Raises Refusal if the model's declaration differs."""
    wanted: dict[str, list[int]] = job["input_shapes"]
    for name in wanted:
        if name not in declared:
            raise Refusal("usage", f"the model has no input {name!r}; its inputs are {', '.join(declared)}")
    for name, (dtype, _) in declared.items():
        if job["dtype"] is not None and dtype.startswith("float") and dtype != job["dtype"]:
            raise Refusal("usage", f"input {name!r} is {dtype}, and {job['dtype']} was asked for")
    return {
        name: (dtype, _shape_of(name, shape, wanted.get(name), name in job["shapes_asked"], job["batch_size"]))
        for name, (dtype, shape) in declared.items()
    }


def _shape_of(name: str, declared: list[Any], wanted: list[int] | None, explicit: bool, batch: int | None) -> list[int]:
    """Return one input's concrete shape from its declaration, wanted shape (`explicit`: by the user) and batch size."""
    if wanted is not None and len(wanted) != len(declared):
        raise Refusal(
            "usage", f"input {name!r} has {len(declared)} dimensions {declared}, and {len(wanted)} were given: {wanted}"
        )
    shape: list[int] = []
    for axis, dimension in enumerate(declared):
        fixed = isinstance(dimension, int)
        if axis == 0 and batch is not None:
            if explicit and wanted is not None and wanted[0] != batch:
                raise Refusal("usage", f"input {name!r}: the shape given starts with {wanted[0]}, the batch is {batch}")
            if fixed and dimension != batch:
                raise Refusal(
                    "usage",
                    f"input {name!r} has the fixed batch dimension {dimension}; a batch of {batch} needs a model "
                    "whose first dimension is dynamic",
                )
            shape.append(batch)
        elif wanted is not None:
            if fixed and wanted[axis] != dimension:
                raise Refusal("usage", f"input {name!r}: axis {axis} is {dimension} in the model, not {wanted[axis]}")
            shape.append(wanted[axis])
        elif fixed:
            shape.append(dimension)
        elif axis == 0:
            shape.append(1)
        else:
            raise Refusal(
                "usage",
                f"input {name!r} has the dynamic dimension {dimension or 'unnamed'!r} (axis {axis}); give its shape "
                f"with --shape {name}={'x'.join(str(d) if isinstance(d, int) else '?' for d in declared)} "
                "or in configs/models.yaml",
            )
    return shape


def _bind(
    session: "ort.InferenceSession", inputs: "dict[str, np.ndarray[Any, Any]]", job: dict[str, Any]
) -> "tuple[ort.IOBinding | None, str]":
    """Return an IO binding with the inputs bound, or None and the reason: sequence outputs cannot be bound."""
    unbindable = [o.name for o in session.get_outputs() if not o.type.startswith("tensor(")]
    if unbindable:
        return None, f"not used: output {', '.join(unbindable)} is not a tensor"
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    note = "inputs and outputs bound in host memory"
    if job["provider"] != _CPU:
        note += "; a device provider copies them within the timed call"
    return binding, note


def _clock_pair() -> dict[str, int]:
    """Relate CLOCK_MONOTONIC to CLOCK_REALTIME: the best of several bracketed readings, and half its bracket."""
    monotonic, real, uncertainty = _best_bracket(time.time_ns)
    return {"monotonic_ns": monotonic, "realtime_ns": real, "uncertainty_ns": uncertainty}


def _boot_clock_pair() -> dict[str, int] | None:
    """Relate CLOCK_MONOTONIC to CLOCK_BOOTTIME, which rocprofv3 uses; None if there is no such clock."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    monotonic, boot, uncertainty = _best_bracket(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    return {"monotonic_ns": monotonic, "boottime_ns": boot, "uncertainty_ns": uncertainty}


def _best_bracket(read: Callable[[], int]) -> tuple[int, int, int]:
    """Return CLOCK_MONOTONIC at the time of `read`, its value, and the uncertainty of the pair."""
    readings = []
    for _ in range(9):
        before = time.perf_counter_ns()
        value = read()
        readings.append((time.perf_counter_ns() - before, before, value))
    bracket, before, value = min(readings)
    return before + bracket // 2, value, (bracket + 1) // 2


def _die_with_parent(parent: int, *, nested: bool) -> None:
    """Have the kernel kill this process when its parent dies: no measured process may outlive its parent.

    `parent` is the requesting process: the parent itself, or, if `nested`, the parent of a profiler between the two.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent not in (_ancestors() if nested else [os.getppid()]):
        os._exit(1)


def _ancestors() -> list[int]:
    """Return the parent of this process, its parent and so on, as far as they are visible."""
    found = [os.getppid()]
    while found[-1] > 1:
        try:
            status = Path(f"/proc/{found[-1]}/stat").read_text()
        except OSError:
            break
        found.append(int(status.rpartition(")")[2].split()[1]))
    return found


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
