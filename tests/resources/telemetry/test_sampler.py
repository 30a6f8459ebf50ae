"""The sampler: true times on absolute deadlines, raw counters of host and process, nothing made up, nothing hidden."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.resources.telemetry import sampler as telemetry
from aaco_pipeline.resources.telemetry import sources
from aaco_pipeline.resources.telemetry.clocks import clock_readings
from aaco_pipeline.resources.telemetry.sampler import COLUMNS, SystemSampler, open_gpus
from tests.resources.telemetry.rows import wait_for_rows

#: Every source is read at every interval, whatever it costs on the machine that tests.
ANY_COST: Final = 1.0
MILLISECOND: Final = 1_000_000
#: Uses about 0.2 s of CPU in two threads one after the other, tells its own CPU time, and waits to be let go.
WORKING: Final = """
import sys, threading, time
def work():
    begun = time.thread_time()
    while time.thread_time() - begun < 0.1: pass
for _ in range(2):
    thread = threading.Thread(target=work); thread.start(); thread.join()
for _ in range(20): time.sleep(0.001)
print(time.process_time_ns(), flush=True)
sys.stdin.read()
"""
WAITING: Final = "import sys; print('ready', flush=True); sys.stdin.read()"


def start(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def let_go(process: "subprocess.Popen[str]") -> None:
    process.communicate()


def known(document: dict[str, Any], column: str) -> list[int]:
    return [value for value in document["columns"][column] if value is not None]


@pytest.fixture
def waiting() -> Iterator["subprocess.Popen[str]"]:
    process = start(WAITING)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    let_go(process)


@pytest.fixture(scope="module")
def worked() -> dict[str, Any]:
    """A process that worked, sampled every 5 ms, with its own report."""
    with SystemSampler(5 * MILLISECOND, source_budget_ratio=ANY_COST) as sampler:
        wait_for_rows(sampler, 2)
        process = start(WORKING)
        sampler.watch(process.pid, label="latency")
        assert process.stdout is not None
        own_cpu = int(process.stdout.readline())
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        wait_for_rows(sampler, 25)  # the slowest of its sources is read every tenth row
        let_go(process)
        wait_for_rows(sampler, 3)
    return {"document": sampler.samples(), "own_cpu_ns": own_cpu, "resident_bytes": resident, "pid": process.pid}


def test_the_document_is_json_with_growing_times_and_a_baseline_of_the_host(worked: dict[str, Any]) -> None:
    document = worked["document"]
    assert json.loads(json.dumps(document)) == document
    assert (document["format"], document["format_version"]) == ("aaco-telemetry", 2)
    assert set(document["columns"]) == set(COLUMNS)
    assert len({len(values) for values in document["columns"].values()}) == 1
    times = document["columns"]["time_ns"]
    assert all(later > earlier for earlier, later in pairwise(times))
    assert document["clocks_before"]["monotonic_ns"] < times[0]
    assert times[-1] < document["clocks_after"]["monotonic_ns"]
    columns = worked["document"]["columns"]
    assert columns["host_busy_ticks"][0] is not None
    assert columns["host_idle_ticks"][0] is not None


def test_counters_of_the_process_never_fall_and_count_its_ended_threads(worked: dict[str, Any]) -> None:
    final = known(worked["document"], "process_cpu_ns")[-1]
    assert worked["own_cpu_ns"] <= final < worked["own_cpu_ns"] + 100 * MILLISECOND
    document = worked["document"]
    for name in ("process_cpu_ns", "run_delay_ns", "voluntary_switches", "involuntary_switches", "major_faults"):
        values = known(document, name)
        assert values == sorted(values), name
        assert values, name
    assert known(document, "voluntary_switches")[-1] >= 20
    largest = max(known(worked["document"], "rss_pages")) * worked["document"]["page_bytes"]
    assert largest == pytest.approx(worked["resident_bytes"], rel=0.2)


def test_only_the_watched_process_has_readings_and_its_end_ends_its_segment(worked: dict[str, Any]) -> None:
    document = worked["document"]
    columns = document["columns"]
    rows = [row for row, segment in enumerate(columns["segment"]) if segment == 0]
    assert rows[0] > 0
    assert rows == list(range(rows[0], rows[-1] + 1))
    outside = set(range(len(columns["segment"]))) - set(rows)
    assert outside
    assert all(columns[name][row] is None for name in sources.PROCESS_COLUMNS for row in outside)
    assert all(columns["process_cpu_ns"][row] is not None for row in rows)
    (segment,) = document["segments"]
    assert (segment["label"], segment["pid"]) == ("latency", worked["pid"])
    assert segment["ended_because"] == "the process ended"
    assert segment["started_monotonic_ns"] < segment["ended_monotonic_ns"] < document["columns"]["time_ns"][-1]
    assert segment["threads_most"] >= 1
    assert segment["reasons"] == {}


def test_host_counters_are_those_of_the_kernel() -> None:
    def now() -> tuple[int, int]:
        user, nice, system, idle, waiting, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
        return user + nice + system + irq + softirq + steal, idle + waiting

    before = now()
    with SystemSampler(5 * MILLISECOND, source_budget_ratio=ANY_COST) as sampler:
        wait_for_rows(sampler, 25)
    after = now()
    document = sampler.samples()
    for name, least, most in zip(("host_busy_ticks", "host_idle_ticks"), before, after, strict=True):
        values = known(document, name)
        assert least <= values[0] <= values[-1] <= most
    load = Path("/proc/loadavg").read_text().split()[0]
    assert known(document, "load_1m_hundredths")[-1] == pytest.approx(float(load) * 100, abs=100)


class ClockOfATest:
    """A clock that only moves when it is asked to: sleeps end late by `late_ns`, one of them by `very_late_ns`."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, late_ns: int, very_late: tuple[int, int] = (-1, 0)) -> None:
        self.now, self.late_ns, self.very_late, self.sleeps = 1_000_000_000, late_ns, very_late, 0
        self.sampler: SystemSampler | None = None

    def monotonic_ns(self) -> int:
        self.now += 10
        return self.now

    def thread_time_ns(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += round(seconds * 1e9) + (self.very_late[1] if self.sleeps == self.very_late[0] else self.late_ns)
        assert self.sampler is not None
        self.sampler._stopped = self.sleeps > 100


def run_by(clock: ClockOfATest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """Times since its start at which a sampler at 10 ms took its 100 rows, and its number of missed deadlines."""
    monkeypatch.setattr(telemetry, "time", clock)
    clock.sampler = sampler = SystemSampler(10 * MILLISECOND)
    began = clock.now
    sampler._run()
    assert sampler._failure is None
    return [time_ns - began for time_ns in sampler._times[: sampler._rows]], sampler._overruns


def test_deadlines_do_not_drift_however_late_each_reading_is(monkeypatch: pytest.MonkeyPatch) -> None:
    late = MILLISECOND // 5
    times, overruns = run_by(ClockOfATest(late), monkeypatch)
    assert overruns == 0
    assert times == [
        pytest.approx(row * 10 * MILLISECOND + late, abs=MILLISECOND // 20) for row in range(1, len(times) + 1)
    ]
    assert len(times) == 100


def test_missed_deadlines_are_counted_and_skipped_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    times, overruns = run_by(ClockOfATest(0, very_late=(5, 57 * MILLISECOND)), monkeypatch)
    assert overruns == 5
    milliseconds = [round(time_ns / MILLISECOND) for time_ns in times[:7]]
    assert milliseconds == [10, 20, 30, 40, 107, 110, 120]


def test_a_reading_is_timed_when_it_is_taken_not_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = run_by(ClockOfATest(3 * MILLISECOND), monkeypatch)
    assert times[0] == pytest.approx(13 * MILLISECOND, abs=MILLISECOND // 20)


def test_a_real_clock_gives_a_row_about_every_interval() -> None:
    with SystemSampler(5 * MILLISECOND, source_budget_ratio=ANY_COST) as sampler:
        wait_for_rows(sampler, 20)
    document = sampler.samples()
    rows = len(document["columns"]["time_ns"])
    elapsed = document["clocks_after"]["monotonic_ns"] - document["clocks_before"]["monotonic_ns"]
    assert rows + document["overruns"] <= elapsed / (5 * MILLISECOND) + 2


def test_sampling_stops_with_the_block_and_closes_its_files(waiting: "subprocess.Popen[str]") -> None:
    before = set(Path("/proc/self/fd").iterdir())
    threads = threading.active_count()
    with SystemSampler(2 * MILLISECOND) as sampler:
        sampler.watch(waiting.pid, "latency")
        wait_for_rows(sampler, 3)
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    assert set(Path("/proc/self/fd").iterdir()) == before
    rows = len(sampler.samples()["columns"]["time_ns"])
    time.sleep(0.02)
    assert len(sampler.samples()["columns"]["time_ns"]) == rows
    assert sampler.samples()["segments"][0]["ended_because"] == "sampling ended"


def test_sampling_starts_no_process_and_no_second_thread(
    waiting: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    for name in ("fork", "posix_spawn", "system", "popen"):
        monkeypatch.setattr(os, name, forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    with SystemSampler(2 * MILLISECOND) as sampler:
        sampler.watch(waiting.pid, "latency")
        wait_for_rows(sampler, 3)
        names = [thread.name for thread in threading.enumerate()]
    assert names.count("system-sampler") == 1
    assert known(sampler.samples(), "process_cpu_ns")


def test_one_sampler_serves_one_pass_after_another(waiting: "subprocess.Popen[str]") -> None:
    with SystemSampler(2 * MILLISECOND) as sampler:
        sampler.watch(waiting.pid, "latency")
        wait_for_rows(sampler, 3)
        other = start(WAITING)
        sampler.watch(other.pid, "trace")
        wait_for_rows(sampler, 3)
        let_go(other)
    document = sampler.samples()
    first, second = document["segments"]
    assert (first["label"], second["label"]) == ("latency", "trace")
    assert first["ended_because"] == "the next process was watched"
    assert second["started_monotonic_ns"] >= first["ended_monotonic_ns"]
    numbers = known(document, "segment")
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1}


def test_a_process_that_is_gone_already_is_said_to_be_and_fails_nothing() -> None:
    process = start("")
    process.communicate()
    with SystemSampler(2 * MILLISECOND) as sampler:
        sampler.watch(process.pid, "latency")
        wait_for_rows(sampler, 2)
    document = sampler.samples()
    assert document["segments"][0]["ended_because"] == "the process had ended before it was read"
    assert known(document, "process_cpu_ns") == []
    assert len(document["columns"]["time_ns"]) > 1


def test_a_zombie_counts_as_ended_and_its_empty_memory_is_no_reading() -> None:
    process = start("")
    with SystemSampler(2 * MILLISECOND, source_budget_ratio=ANY_COST) as sampler:
        sampler.watch(process.pid, "latency")
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # until it is a zombie, and leave it one
        wait_for_rows(sampler, 3)
        document_while_zombie = sampler.samples()
        process.communicate()
    assert document_while_zombie["segments"][0]["ended_because"] in (
        "the process ended",
        "the process had ended before it was read",
    )
    assert 0 not in known(document_while_zombie, "rss_pages")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A small /proc of a made-up host, to take files out of."""
    proc = tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "stat").write_text("cpu  100 1 20 5000 30 2 3 4 0 0\ncpu0 1 1 1 1\n")
    (proc / "loadavg").write_text("1.25 0.50 0.25 1/100 4711\n")
    (proc / "pressure/cpu").write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=4242\nfull avg10=0.00 total=0\n")
    (proc / "cpuinfo").write_text("flags\t\t: fpu aperfmperf\ncpu MHz\t\t: 2000.000\n\ncpu MHz\t\t: 3000.500\n")
    return proc


def sample_once(proc: Path, sys: Path, pid: int | None = None, budget: float = ANY_COST) -> dict[str, Any]:
    with SystemSampler(2 * MILLISECOND, source_budget_ratio=budget, proc=proc, sys=sys) as sampler:
        if pid is not None:
            sampler.watch(pid, "latency")
        wait_for_rows(sampler, 3)
    return sampler.samples()


def first_row(document: dict[str, Any]) -> dict[str, int | None]:
    return {name: values[0] for name, values in document["columns"].items()}


def test_what_the_kernels_files_say_is_what_is_kept(proc: Path, tmp_path: Path) -> None:
    document = sample_once(proc, tmp_path / "sys")
    row = first_row(document)
    assert row["host_busy_ticks"] == 100 + 1 + 20 + 2 + 3 + 4
    assert row["host_idle_ticks"] == 5000 + 30
    assert row["pressure_some_us"] == 4242
    assert row["load_1m_hundredths"] == 125
    assert row["clock_khz"] == 2_500_250
    assert document["reasons"] == {}


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("stat", {"host_busy_ticks", "host_idle_ticks"}),
        ("loadavg", {"load_1m_hundredths"}),
        ("pressure/cpu", {"pressure_some_us"}),
        ("cpuinfo", {"clock_khz"}),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "nonsense"])
def test_a_file_that_cannot_be_read_nulls_its_columns_alone_and_says_why(
    file: str, columns: set[str], damage: str, proc: Path, tmp_path: Path
) -> None:
    if damage == "missing":
        (proc / file).unlink()
    else:
        (proc / file).write_text("flags: aperfmperf\ncpu MHz\t\t: fast\n")
    document = sample_once(proc, tmp_path / "sys")
    row = first_row(document)
    assert {name for name in sources.HOST_COLUMNS if row[name] is None} == columns
    assert set(document["reasons"]) == columns
    if damage == "missing":
        assert all(str(proc / file) in reason for reason in document["reasons"].values())


def test_a_file_that_breaks_off_midway_ends_its_column_and_says_why(proc: Path, tmp_path: Path) -> None:
    with SystemSampler(2 * MILLISECOND, source_budget_ratio=ANY_COST, proc=proc, sys=tmp_path / "sys") as sampler:
        wait_for_rows(sampler, 2)
        (proc / "pressure/cpu").write_text("")
        wait_for_rows(sampler, 3)
    document = sampler.samples()
    pressure = document["columns"]["pressure_some_us"]
    assert pressure[0] == 4242
    assert pressure[-1] is None
    assert "pressure_some_us" in document["reasons"]
    assert document["columns"]["host_busy_ticks"][0] is not None


def test_a_nominal_clock_is_not_passed_off_as_the_current_one(proc: Path, tmp_path: Path) -> None:
    (proc / "cpuinfo").write_text("flags\t\t: fpu\ncpu MHz\t\t: 2000.000\n")
    document = sample_once(proc, tmp_path / "sys")
    assert known(document, "clock_khz") == []
    assert "nominal" in document["reasons"]["clock_khz"]


def test_the_frequency_driver_is_asked_first_and_averaged(proc: Path, tmp_path: Path) -> None:
    for cpu, clock in (("cpu0", 1_000_000), ("cpu1", 3_000_000)):
        folder = tmp_path / "sys/devices/system/cpu" / cpu / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{clock}\n")
    assert first_row(sample_once(proc, tmp_path / "sys"))["clock_khz"] == 2_000_000


def made_up_process(proc: Path, pid: int, tasks: dict[int, tuple[int, int, int]]) -> Path:
    """A process in a made-up /proc whose number is really alive, so that it has a CPU clock."""
    folder = proc / str(pid)
    (folder / "task").mkdir(parents=True)
    (folder / "statm").write_text("500 250 100 1 0 50 0\n")
    (folder / "stat").touch()
    say_number_of_threads(folder, len(tasks))
    for task, counters in tasks.items():
        add_thread(folder, task, *counters)
    return folder


def say_number_of_threads(folder: Path, number: int) -> None:
    """Written in place and in one go, because the sampler has the file open."""
    fields = [str(number) for number in range(3, 53)]
    fields[0], fields[9], fields[17] = "S", "7", str(number)
    with (folder / "stat").open("r+b", buffering=0) as stream:
        stream.write(f"{folder.name} (a ) name) {' '.join(fields)}\n".encode())


def add_thread(folder: Path, task: int, waited: int, voluntary: int, involuntary: int) -> None:
    """A thread appears with all its files at once."""
    unseen = folder / f"thread{task}"
    unseen.mkdir()
    (unseen / "schedstat").write_text(f"1000 {waited} 5\n")
    (unseen / "status").write_text(
        f"Name:\tx\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
        "x86_Thread_features:\n"
    )
    unseen.rename(folder / "task" / str(task))


def process_row(document: dict[str, Any]) -> dict[str, int | None]:
    """The last reading of each of the process's columns."""
    return {name: next(reversed(known(document, name)), None) for name in sources.PROCESS_COLUMNS}


def test_counters_of_threads_are_summed(proc: Path, tmp_path: Path) -> None:
    made_up_process(proc, os.getpid(), {1: (10, 100, 1000), 2: (20, 200, 2000)})
    row = process_row(sample_once(proc, tmp_path / "sys", os.getpid()))
    assert row["run_delay_ns"] == 30
    assert row["voluntary_switches"] == 300
    assert row["involuntary_switches"] == 3000
    assert row["major_faults"] == 7
    assert row["rss_pages"] == 250


def test_a_thread_that_starts_later_joins_the_sum_and_one_that_ends_stays_in_it(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TASK_LIST_PERIOD_NS", 0)
    monkeypatch.setattr(telemetry, "_SLOW_PERIOD_NS", 0)
    folder = made_up_process(proc, os.getpid(), {1: (10, 1, 1), 2: (20, 1, 1)})
    with SystemSampler(2 * MILLISECOND, source_budget_ratio=ANY_COST, proc=proc, sys=tmp_path / "sys") as sampler:
        sampler.watch(os.getpid(), "latency")
        wait_for_rows(sampler, 3)
        add_thread(folder, 3, 40, 1, 1)
        add_thread(folder, 4, 80, 1, 1)
        (folder / "task/2").rename(folder / "ended")
        say_number_of_threads(folder, 3)
        wait_for_rows(sampler, 10)
    delays = known(sampler.samples(), "run_delay_ns")
    assert delays[0] == 30
    assert delays[-1] == 10 + 20 + 40 + 80
    assert delays == sorted(delays)


def test_a_kernel_without_run_queue_times_leaves_the_rest(proc: Path, tmp_path: Path) -> None:
    folder = made_up_process(proc, os.getpid(), {1: (10, 1, 1)})
    (folder / "task/1/schedstat").unlink()
    document = sample_once(proc, tmp_path / "sys", os.getpid())
    row = process_row(document)
    assert row["run_delay_ns"] is None
    assert row["voluntary_switches"] == 1
    assert row["process_cpu_ns"] is not None
    assert "schedstat" in document["segments"][0]["reasons"]["run_delay_ns"]


def test_a_kernel_that_does_not_account_waiting_differs_from_no_waiting(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_SURELY_HAD_TURNS_NS", 0)
    folder = made_up_process(proc, os.getpid(), {1: (0, 1, 1)})
    (folder / "task/1/schedstat").write_text("0 0 0\n")
    document = sample_once(proc, tmp_path / "sys", os.getpid())
    assert process_row(document)["run_delay_ns"] is None
    assert "does not account" in document["segments"][0]["reasons"]["run_delay_ns"]


def test_too_many_threads_give_no_sum_rather_than_one_over_some(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TASK_LIMIT", 2)
    made_up_process(proc, os.getpid(), dict.fromkeys((1, 2, 3), (1, 1, 1)))
    document = sample_once(proc, tmp_path / "sys", os.getpid())
    row = process_row(document)
    assert row["run_delay_ns"] is row["voluntary_switches"] is None
    assert row["rss_pages"] == 250
    assert "3 threads" in document["segments"][0]["reasons"]["run_delay_ns"]


def test_a_dear_source_is_read_less_often_and_a_far_too_dear_one_not_at_all(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = sources.Pressure.read

    def slow(self: Any) -> tuple[int, ...]:
        time.sleep(0.0005)
        return original(self)

    monkeypatch.setattr(sources.Pressure, "read", slow)
    with SystemSampler(2 * MILLISECOND, source_budget_ratio=0.02, proc=proc, sys=tmp_path / "sys") as sampler:
        patience = time.monotonic() + 30
        while len(known(sampler.samples(), "pressure_some_us")) < 3 and time.monotonic() < patience:
            time.sleep(0.02)
    document = sampler.samples()
    period = document["periods_ns"]["pressure_some_us"]
    assert period >= 25 * MILLISECOND
    columns = document["columns"]
    read_at = [time_ns for time_ns, value in zip(columns["time_ns"], columns["pressure_some_us"], strict=True) if value]
    assert len(read_at) >= 3
    assert all(later - earlier >= period - 2 * MILLISECOND for earlier, later in pairwise(read_at))

    document = sample_once(proc, tmp_path / "sys", budget=0.0001)
    assert known(document, "pressure_some_us") == []
    assert "too long" in document["reasons"]["pressure_some_us"]


def test_memory_is_bounded_by_dropping_every_second_row(proc: Path, tmp_path: Path) -> None:
    limit = 20
    with SystemSampler(
        MILLISECOND, source_budget_ratio=ANY_COST, row_limit=limit, proc=proc, sys=tmp_path / "sys"
    ) as sampler:
        patience = time.monotonic() + 30
        while sampler._thinned < 2 and time.monotonic() < patience:
            time.sleep(0.01)
    document = sampler.samples()
    times = document["columns"]["time_ns"]
    assert 0 < len(times) < limit
    assert document["thinned"] >= 2
    assert document["interval_at_end_ns"] == MILLISECOND * 2 ** document["thinned"]
    assert times == sorted(times)
    assert times[-1] - times[0] > 20 * MILLISECOND
    assert len({len(values) for values in document["columns"].values()}) == 1


def test_thinning_keeps_rows_whole_and_prefers_those_with_rare_readings(proc: Path, tmp_path: Path) -> None:
    sampler = SystemSampler(proc=proc, sys=tmp_path / "sys", row_limit=100)
    rows = 8
    for name, values in sampler._arrays.items():
        values.extend([telemetry._MISSING] * 16)
        for row in range(rows):
            values[row] = row if name in ("time_ns", "process_cpu_ns") else telemetry._MISSING
    sampler._arrays["voluntary_switches"][2] = 5
    sampler._arrays["voluntary_switches"][5] = 6
    sampler._rows = rows
    sampler._clocks = [clock_readings()]
    sampler._thin()
    columns = sampler.samples()["columns"]
    assert columns["time_ns"] == columns["process_cpu_ns"] == [1, 2, 5, 7]
    assert columns["voluntary_switches"] == [None, 5, 6, None]


def test_a_fault_of_the_sampler_itself_is_not_swallowed(proc: Path, tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    sampler = SystemSampler(2 * MILLISECOND, proc=proc, sys=tmp_path / "sys")

    def sample() -> None:
        with sampler:
            sampler._sample = broken  # type: ignore[method-assign]
            assert sampler._thread is not None
            sampler._thread.join(30)

    with pytest.raises(RuntimeError, match="a bug"):
        sample()


@pytest.mark.parametrize("wrong", [{"interval_ns": 0}, {"interval_ns": -1}, {"row_limit": 1}])
def test_senseless_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="interval"):
        SystemSampler(**wrong)  # type: ignore[arg-type]


def test_a_host_without_a_gpu_says_so_and_one_with_why_it_samples_none(tmp_path: Path) -> None:
    with SystemSampler(sys=tmp_path, nvml_library="no such library") as sampler:
        pass
    assert sampler.samples()["gpu"] == {"sources": [], "reason": "this host has no AMD or NVIDIA GPU", "samples": []}
    for card, vendor in (("card0", "0x10de"), ("card1", "0x1002"), ("card1-DP-1", "0x1002")):
        (tmp_path / "class/drm" / card / "device").mkdir(parents=True)
        (tmp_path / "class/drm" / card / "device/vendor").write_text(vendor + "\n")
    gpus = open_gpus(tmp_path, "no such library")
    assert gpus.names == ("card1",) and gpus.sources == []
    assert "does not read" in gpus.reasons["card1"]


def test_clocks_are_read_close_together() -> None:
    before = time.monotonic_ns()
    readings = clock_readings()
    assert before <= readings["monotonic_ns"] <= time.monotonic_ns()
    assert 0 < readings["uncertainty_ns"] < 10 * MILLISECOND
    assert readings["boottime_ns"] >= readings["monotonic_ns"] - 2 * readings["uncertainty_ns"]
