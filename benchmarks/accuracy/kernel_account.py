"""Whether the states of threads are the kernel's own account: sessions of many switches, block by block.

Between two readings of a process's CPU time and run-queue delay, the states `running`, and those that wait for a CPU,
must be as long as the kernel counts. It counts from other instants than those of its events, and they are known:

- A thread that is preempted by a wake-up stops running, and the other begins, where the CPU's clock last stood: at the
  wake-up, for the switch does not move it (RQCF_REQ_SKIP in kernel/sched/core.c). By its account events
  (`sched_stat_runtime`, of which one comes with each tick and wake-up, and one with the switch) that is the event
  before the last and the run time that the last one counts.
- A thread that is woken waits from where it is put on a queue (`sched_wakeup`), not from `sched_waking`: an idle CPU is
  brought back from its sleep in between.
- A wait counts when it is over.

What a hypervisor is said to have taken while a thread had the CPU (steal) is no CPU time, and remains as an error.

So each session is recorded once more beside, by an instance of tracefs with the account events and wake-ups of all
threads. Told are both errors: of the states as they are, and with their borders put where the kernel has them.

Sessions are left alone, beside a busy process, beside one that wakes a thousand times a second on the measured CPU, or
under SIGSTOP. A quiet machine is not needed: the more switches the better.

Run as root: `python -m benchmarks.accuracy.kernel_account --sessions 4 --results FILE`. Each session is a line of JSON in FILE;
called again it goes on. Exits with 1 when the P99 of an error with the kernel's borders exceeds 5 us a switch.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.delays.thread_states import thread_states
from aaco_pipeline.capture import open_capture
from aaco_pipeline.formats.native.kernel_plane.fields import Some, only
from aaco_pipeline.formats.native.kernel_plane.layouts import layout_of
from aaco_pipeline.formats.native.kernel_plane.pages import records_of
from aaco_pipeline.resources.kernel_plane.instances import Instance, find_tracefs
from aaco_pipeline.resources.kernel_plane.page_reader import PageReader
from aaco_pipeline.resources.measure.inference import capture_inference
from benchmarks.accuracy.disturbed_sessions import disturbed
from benchmarks.accuracy.injectors import TARGET_CPU
from benchmarks.resumed import resumed
from benchmarks.accuracy.spike_causes import ROOT, request_in

MOST_ERROR_NS: Final = 5_000
KINDS: Final = ("alone", "busy", "stop", "wakes")
_SHARE: Final = 0.2
_WAITS: Final = ("preempted", "queued", "throttled")
_ACCOUNT: Final = "sched/sched_stat_runtime"
_WOKEN: Final = ("sched/sched_wakeup", "sched/sched_wakeup_new")
_WAKES: Final = "import time\nwhile True: time.sleep(0.001)"
_BUFFER_KB: Final = 16_384
_NEVER: Final = np.iinfo(np.int64).max

Numbers = npt.NDArray[np.int64]


def session(kind: str, threads: int, seed: int) -> dict[str, Any]:
    """One session: of each block the switches, both errors as they are and with the kernel's borders."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        raw = folder / "raw"
        raw.mkdir()
        beside = _Beside(folder / "beside")
        with beside, _waking(kind), disturbed(kind if kind in ("busy", "stop") else None, folder, _SHARE, seed, []):
            capture_inference(request_in(folder, threads, {}), raw, ROOT / "configs", lambda line: None)
        return {"kind": kind, "threads": threads, "seed": seed, "blocks": list(_blocks(raw, beside))}


@contextmanager
def _waking(kind: str) -> Iterator[None]:
    """A process that wakes often on the measured CPU, and needs it for some microseconds each time."""
    if kind != "wakes":
        yield
        return
    with subprocess.Popen(["taskset", "-c", str(TARGET_CPU), sys.executable, "-c", _WAKES]) as process:
        try:
            yield
        finally:
            process.kill()


class _Beside:
    """Account events and wake-ups of all threads, recorded from entry to exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.ran: dict[int, tuple[Numbers, Numbers]] = {}
        self.woken: dict[int, Numbers] = {}

    def __enter__(self) -> None:
        self._instance = Instance(find_tracefs(), "account")
        for name, value in (("tracing_on", "0"), ("trace_clock", "mono"), ("buffer_size_kb", str(_BUFFER_KB))):
            self._instance.set(name, value)
        self._events = {event: self._instance.enable(event) for event in (_ACCOUNT, *_WOKEN)}
        self._reader = PageReader({"account": self._instance}, self._folder)
        self._instance.set("tracing_on", "1")

    def __exit__(self, *_: object) -> None:
        self._instance.set("tracing_on", "0")
        with suppress(OSError):
            self._read(self._reader.finish())
        self._reader.close()
        self._instance.remove()

    def _read(self, buffers: Sequence[dict[str, Any]]) -> None:
        page = 4096
        for events, takes in (((_ACCOUNT,), "runtime"), (_WOKEN, None)):
            frames = []
            for event in events:
                layout = layout_of(event, str(self._events[event]["format"]))
                for one in buffers:
                    content = gzip.decompress((self._folder / one["file"]).read_bytes())
                    records = records_of(content, page, one["file"])
                    if records.losses:
                        raise RuntimeError("the kernel lost events of its account: another session is needed")
                    some = Some(layout, one["cpu"], content, only(records, records.event == layout.number))
                    length = some.values(takes) if takes else np.zeros(len(some.records.time_ns))
                    frames.append(
                        pl.DataFrame(
                            {"at": some.records.time_ns, "thread": some.values("pid"), "length": length},
                            schema_overrides={"thread": pl.Int64, "length": pl.Int64},
                        )
                    )
            for (thread,), own in pl.concat(frames).sort("at").partition_by("thread", as_dict=True).items():
                at = own.get_column("at").to_numpy()
                if takes:
                    self.ran[thread] = (at, own.get_column("length").to_numpy())
                else:
                    self.woken[thread] = at


def _blocks(raw: Path, beside: _Beside) -> Iterator[dict[str, int]]:
    tables = open_capture(raw).tables()
    document = json.loads((raw / "latency.json").read_text())
    zero = document["clocks_before"]["monotonic_ns"]
    events = tables["kernel_events"].with_columns(pl.col("time_ns") + zero)
    own = tables["kernel_threads"].filter(pl.col("process_id") == 0).get_column("thread_id").sort().to_list()
    others = (tables[f"kernel_{name}"] for name in ("threads", "losses", "throttling"))
    states = thread_states(tables["kernel_events"], *others).filter(pl.col("thread_id").is_in(own))
    switches = events.filter(pl.col("kind") == "switch").sort("cpu", "time_ns")
    mine = pl.col("thread_id").is_in(own) | pl.col("other_thread_id").is_in(own)
    at = switches.filter(mine).get_column("time_ns").to_numpy()
    borders = _borders(switches, beside)
    ran, waited, counted_ran, counted_waited, unknown = ([] for _ in range(5))
    for thread, start, end, state in states.select("thread_id", "start_ns", "end_ns", "state").iter_rows():
        span = (start + zero, end + zero)
        since, until = (borders.get((thread, one), one) for one in span)
        if state == "running":
            ran.append(span)
            counted_ran.append((since, until))
        elif state in _WAITS:
            waited.append(span)
            since = since if state == "preempted" else _queued(beside.woken.get(thread), span)
            counted_waited.append((own.index(thread), since, until))
        elif state == "unknown":
            unknown.append(span)
    # Run-queue delays are read from files right after the block's end, one thread's after the other's as they were
    # started, and who reads them may be preempted before.
    is_read = (pl.col("kind") == "syscall") & (pl.col("name") == "pread64")
    reads = np.append(events.filter(is_read).get_column("time_ns").sort().to_numpy(), [_NEVER] * len(own))
    probed = {one["before_iteration"]: one["end_ns"] for one in document["kernel_plane"]["probes"]}
    iteration = 0
    for block in document["blocks"]:
        start, end = block["start_monotonic_ns"], block["end_monotonic_ns"]
        working = (probed[iteration], end)  # CPU time of the probe before it is no block's
        iteration += block["iterations"]
        if block["run_delay_ns"] is None or _within(unknown, (start, end)):
            continue
        before, after = (int(np.searchsorted(reads, one)) for one in (start, end))
        over = sum(
            until - since
            for place, since, until in counted_waited
            if reads[before + place] < until <= reads[after + place]
        )
        yield {
            "switches": int(((at >= start) & (at <= end)).sum()),
            "cpu_error_ns": _within(ran, working) - block["cpu_time_ns"],
            "counted_cpu_error_ns": _within(counted_ran, working) - block["cpu_time_ns"],
            "waiting_error_ns": _within(waited, (start, end)) - block["run_delay_ns"],
            "counted_waiting_error_ns": over - block["run_delay_ns"],
        }


def _borders(switches: pl.DataFrame, beside: _Beside) -> dict[tuple[int, int], int]:
    """Where the kernel has the switches, by thread and time of the event.

    Of a thread's time on a CPU every account event but the last comes right when the clock moved.
    """
    borders: dict[tuple[int, int], int] = {}
    for of_cpu in switches.partition_by("cpu"):
        came: tuple[int, int] | None = None  # the event of the switch before, and where the kernel has it
        for time, leaves, comes, state in of_cpu.select("time_ns", "thread_id", "other_thread_id", "state").iter_rows():
            border = time
            if came is not None and leaves in beside.ran:
                at, length = beside.ran[leaves]
                first, over = np.searchsorted(at, came[0]), np.searchsorted(at, time, side="right")
                if over > first:
                    since = came[1] if over == first + 1 else int(at[over - 2])
                    border = min(time, since + int(length[over - 1]))
            borders[leaves, time] = border
            came = (time, border if state == "runnable" else time)
            borders[comes, time] = came[1]
    return borders


def _queued(woken: Numbers | None, span: tuple[int, int]) -> int:
    """When the thread that waits in this time was put on the queue."""
    if woken is None:
        return span[0]
    place = int(np.searchsorted(woken, span[0]))
    return int(woken[place]) if place < len(woken) and woken[place] <= span[1] else span[0]


def _within(spans: Sequence[tuple[int, int]], block: tuple[int, int]) -> int:
    """For how long the spans, which may overlap, lie within a block, summed."""
    return sum(max(0, min(end, block[1]) - max(start, block[0])) for start, end in spans)


def print_table(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the errors a switch; whether those with the kernel's borders are small enough."""
    holds = True
    by: dict[tuple[int, str], list[dict[str, int]]] = defaultdict(list)
    for row in rows:
        by[row["threads"], row["kind"]] += row["blocks"]
    by |= {(threads, "all"): [b for (own, _), some in by.items() if own == threads for b in some] for threads in (1, 2)}
    print("threads  sessions  blocks  switches  us a switch, median and P99 of blocks; as they are -> counted")
    for (threads, kind), blocks in sorted(by.items()):
        if not blocks:
            continue
        switches = np.array([max(1, block["switches"]) for block in blocks])
        told = []
        for what in ("cpu", "waiting"):
            figures = []
            for name in (f"{what}_error_ns", f"counted_{what}_error_ns"):
                errors = np.abs([block[name] for block in blocks]) / switches
                figures.append("{:.2f}, {:.2f}".format(*np.percentile(errors / 1_000, (50, 99))))
                holds &= not name.startswith("counted") or kind != "all" or np.percentile(errors, 99) <= MOST_ERROR_NS
            told.append(f"{what} {' -> '.join(figures)}")
        print(f"{threads:7}  {kind:8} {len(blocks):7} {switches.sum():9} {'; '.join(told)}")
    return bool(holds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=4, help="of each kind and number of threads")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args(arguments)
    with resumed(options.results) as (rows, done, keep):
        for seed in range(options.sessions):
            for kind in KINDS:
                for threads in (1, 2):
                    if (kind, threads, seed) not in done:
                        keep(session(kind, threads, seed))
    return 0 if print_table(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
