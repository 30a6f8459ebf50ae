"""Measuring ceilings: sizes that fit the machine, kernels that do the work they count, and the words of the result.

No test judges a speed. What is kept in the lake is tested in `tests/lake/test_calibrations.py`.
"""

import ast
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.calibrate import calibration
from aaco_pipeline.resources.calibrate import kernels as calibration_kernels
from aaco_pipeline.resources.calibrate import worker as calibration_worker
from aaco_pipeline.resources.host import kernel_files
from aaco_pipeline.resources.host.kernel_files import Cache
from aaco_pipeline.resources.measure.measurement_slot import slot_is_free, slot_path
from aaco_pipeline.resources.progress import progress_listener

KIB: Final = 1 << 10
MIB: Final = 1 << 20
MEMORY_KERNELS: Final = calibration_worker._MEMORY_KERNELS
WIDE: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


def cache(level: int, size: int, *groups: set[int]) -> Cache:
    return Cache(level, size, tuple(map(frozenset, groups)))


#: Two pairs of cores, each pair with an L3.
FOUR: Final = (
    cache(1, 48 * KIB, {0}, {1}, {2}, {3}),
    cache(2, MIB, {0}, {1}, {2}, {3}),
    cache(3, 32 * MIB, {0, 1}, {2, 3}),
)


# The machine.


def write_cache(place: Path, level: int, kind: str, size: str, shared: str) -> None:
    place.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (place / name).write_text(f"{text}\n")


def test_caches_are_the_data_and_unified_ones_of_the_usable_cpus_by_level(tmp_path: Path) -> None:
    for cpu in range(5):
        place = tmp_path / f"cpu{cpu}" / "cache"
        write_cache(place / "index0", 1, "Data", "48K" if cpu else "32K", str(cpu))
        write_cache(place / "index1", 1, "Instruction", "64K", str(cpu))
        write_cache(place / "index2", 3, "Unified", "32M", "0-1" if cpu < 2 else "2-4")
    assert kernel_files.caches([0, 1, 2], tmp_path) == (
        cache(1, 32 * KIB, {0}, {1}, {2}),
        cache(3, 32 * MIB, {0, 1}, {2, 3, 4}),
    )


def test_a_machine_whose_kernel_states_no_caches_has_none_and_what_is_torn_is_left_out(tmp_path: Path) -> None:
    assert kernel_files.caches([0], tmp_path) == ()
    write_cache(tmp_path / "cpu0/cache/index0", 1, "Data", "48 cakes", "0")
    write_cache(tmp_path / "cpu0/cache/index1", 2, "Unified", "1024K", "1-2")
    assert kernel_files.caches([0], tmp_path) == ()


def test_few_threads_get_a_core_each(tmp_path: Path) -> None:
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    assert calibration_kernels.cpus_in_order({5, 4, 1, 0}, tmp_path) == [0, 1, 4, 5]
    assert calibration_kernels.cpus_in_order({2, 9}, tmp_path) == [2, 9]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", {0}), ("0-2,8", {0, 1, 2, 8}), ("", set()), ("a", set()), ("1-", {1}), ("0,x", set())]
)
def test_cpu_lists_are_read_as_the_kernel_writes_them(text: str, numbers: set[int]) -> None:
    assert kernel_files.cpu_list(text) == numbers


def test_the_memory_that_can_be_had_is_what_the_kernel_states(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemAvailable:       7 kB\n")
    assert calibration_kernels.available_bytes(tmp_path / "meminfo") == 7 * KIB
    assert calibration_kernels.available_bytes(tmp_path / "no such file") is None


# The sizes.


@pytest.mark.parametrize(
    ("cpus", "l3", "dram"), [([0], 16 * MIB, 256 * MIB), ([0, 2], 16 * MIB, 256 * MIB), ([0, 1], 8 * MIB, 128 * MIB)]
)
def test_each_level_has_a_set_that_it_serves(cpus: list[int], l3: int, dram: int) -> None:
    sets, why = calibration_kernels.working_sets(FOUR, cpus, 64 << 30)
    assert (sets, why) == ({"l1": 32 * KIB, "l2": 512 * KIB, "l3": l3, "dram": dram}, {})


def test_a_level_that_cannot_be_distinguished_from_the_one_before_is_left_out_with_the_reason() -> None:
    shared = (cache(1, 32 * KIB, {0}, {1}), cache(2, 2 * MIB, {0}, {1}), cache(3, 4 * MIB, {0, 1}))
    sets, why = calibration_kernels.working_sets(shared, [0, 1], 64 << 30)
    assert set(sets) == {"l1", "l2", "dram"}
    assert why["l3"].startswith("2 threads have 2,048 KiB of it each, too little")


def test_without_caches_or_memory_nothing_is_made_up() -> None:
    sets, why = calibration_kernels.working_sets((), [0], 64 << 30)
    assert (set(sets), set(why)) == ({"dram"}, {"l1", "l2", "l3"})
    for memory in (None, 100 * MIB):
        sets, why = calibration_kernels.working_sets(FOUR, [0], memory)
        assert "dram" not in sets
        assert "too little beside the caches" in why["dram"]
    assert calibration_kernels.working_sets(FOUR, [0], 600 * MIB)[0]["dram"] == 150 * MIB


@given(st.tuples(*[st.integers(0, 512 * MIB)] * 3), st.integers(1, 300), st.none() | st.integers(0, 1 << 42))
def test_sets_fit_their_level_outgrow_the_one_before_and_leave_memory(
    sizes: tuple[int, int, int], threads: int, memory: int | None
) -> None:
    cpus = list(range(threads))
    own = [{cpu} for cpu in cpus]
    known = [cache(n, size, *(own if n < 3 else [set(cpus)])) for n, size in enumerate(sizes, start=1) if size]
    sets, why = calibration_kernels.working_sets(known, cpus, memory)
    assert set(sets) | set(why) == {"l1", "l2", "l3", "dram"}
    assert not set(sets) & set(why)
    parts = {f"l{c.level}": c.size_bytes / (threads if c.level == 3 else 1) for c in known}
    for level, smaller in (("l1", None), ("l2", "l1"), ("l3", "l2")):
        if level in sets:
            assert 0 < sets[level] <= parts[level] * 2 / 3
            assert sets[level] >= 2 * int(parts.get(smaller or "", 0))
    if "dram" in sets:
        assert memory is not None
        assert sets["dram"] * threads <= memory / 4


@pytest.mark.parametrize(("threads", "sides"), [(1, (256, 512, 1024)), (3, (256, 512, 1024)), (4, (512, 1024, 2048))])
def test_more_threads_multiply_larger_matrices(threads: int, sides: tuple[int, ...]) -> None:
    assert calibration_kernels.sides_for(threads) == sides
    assert calibration_kernels.sides_for(512) == (1024, 2048, 4096)


def test_wide_kernels_are_asked_of_the_library_only_where_the_processor_has_them(tmp_path: Path) -> None:
    sets = {"l1": 32 * KIB}
    for features, names in (
        (WIDE, ["memory", "ONNX Runtime", "NumPy", "NumPy, AVX-512"]),
        (WIDE - {"avx512dq"}, ["memory", "ONNX Runtime", "NumPy"]),
    ):
        made = calibration_kernels.processes(sets, 3, features, tmp_path)
        assert [process.name for process in made] == names
        assert sum(process.time_share for process in made) == pytest.approx(1)
        asked = {p.name for p in made if "OPENBLAS_CORETYPE" in p.environment}
        assert asked == ({"memory", "NumPy, AVX-512"} if features == WIDE else set())
        threads = {p.name: p.environment["OPENBLAS_NUM_THREADS"] for p in made}
        assert threads == {name: "1" if name == "memory" else "3" for name in names}
    assert "memory" not in [p.name for p in calibration_kernels.processes({}, 1, WIDE, tmp_path)]


# The kernels do the work that is counted.


@pytest.mark.parametrize("name", MEMORY_KERNELS)
@given(size=st.integers(1, 64).map(lambda pages: pages * 4096), repeats=st.integers(1, 40))
def test_a_memory_kernel_stays_in_its_set_and_counts_all_it_touches(name: str, size: int, repeats: int) -> None:
    room = calibration_worker._room(size)
    room[:] = np.arange(1.0, len(room) + 1)
    before = room.copy()
    run, work = MEMORY_KERNELS[name](room, size)
    run(repeats)
    streams, arrays = {"read": (2, 2), "update": (3, 2), "scale": (2, 1), "copy": (2, 2)}[name]
    # At least nine tenths of the set are worked on, and no byte is counted that is not in it.
    assert 0.6 * size * streams / arrays <= work <= size * streams / arrays
    written = int(np.count_nonzero(room != before)) * 8
    assert written <= {"read": 0, "update": size // 2, "scale": 0, "copy": size // 2}[name]


def test_copy_copies_and_update_adds_each_row_it_counts() -> None:
    room = calibration_worker._room(8192)
    room[:] = np.arange(len(room))
    run, work = MEMORY_KERNELS["copy"](room, 8192)
    run(1)
    count = int(work) // 16
    begin = 512 + 256
    assert np.array_equal(room[begin : begin + count], np.arange(count))
    room[:] = 1.0
    run, work = MEMORY_KERNELS["update"](room, 8192)
    run(16)  # as many rows as a set of two pages has, in one call
    count = int(work) // 24
    assert int(np.count_nonzero(room == 16.0)) == count


def test_two_threads_work_on_memory_of_their_own_and_a_window_spans_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: held.append(cpus))
    held: list[set[int]] = []
    crew = calibration_worker._Crew([5, 7], 64 * KIB)
    assert held in ([{5}, {7}], [{7}, {5}])
    seen: list[tuple[int, int]] = []

    def make(room: calibration_worker.Doubles, size: int) -> calibration_worker.Task:
        return lambda repeats: seen.append((room.ctypes.data, repeats)), float(size)

    monkeypatch.setitem(MEMORY_KERNELS, "read", make)
    kernel = crew.kernel({"kernel": "read", "thread_bytes": 4096})
    start, end = kernel.window(9)
    assert kernel.work == 2 * 4096
    assert {repeats for _, repeats in seen} == {9}
    assert len({address for address, _ in seen}) == 2
    assert end > start
    assert threading.active_count() == 1


def test_an_error_in_a_thread_is_raised_to_who_asked() -> None:
    with pytest.raises(OSError, match="argument"):
        calibration_worker._Crew([1 << 14], 4096)  # there is no such CPU


@pytest.mark.parametrize("kind", calibration_kernels.PRODUCTS, ids=lambda kind: str(kind.dtype))
def test_the_runtimes_models_multiply_by_a_constant_matrix(kind: calibration_kernels.Product, tmp_path: Path) -> None:
    calibration_kernels.write_models(tmp_path, [8])
    session = onnxruntime.InferenceSession(tmp_path / calibration_kernels.model_name(kind.dtype, 8))
    one = np.eye(8).astype(kind.input_dtype)
    (weights,) = session.run(None, {"a": one})
    assert weights.dtype == kind.output_dtype
    assert len(np.unique(weights)) > 40
    (twice,) = session.run(None, {"a": one * 2})
    assert np.array_equal(twice, weights * 2)


# Windows, rounds, and when it is enough.


def clocked(durations: list[int], work: float = 1.0) -> tuple[calibration_worker.Kernel, list[int]]:
    """A kernel whose windows last as long as `durations` say for one repeat, the last one for ever on."""
    asked: list[int] = []

    def window(repeats: int) -> tuple[int, int]:
        asked.append(repeats)
        return 1000, 1000 + repeats * durations[min(len(asked), len(durations)) - 1]

    return calibration_worker.Kernel(window, work), asked


def test_a_window_is_long_enough_even_if_the_first_look_was_disturbed() -> None:
    kernel, asked = clocked([50_000_000, 90_000_000, 1_000])
    kernel.prepare()
    assert kernel.repeats * 1_000 == pytest.approx(calibration_worker._WINDOW_NS, rel=0.01)
    assert asked[0] == 1
    slow, _ = clocked([10_000_000])
    slow.prepare()
    assert slow.repeats == 1


def test_threads_that_start_far_apart_do_not_make_windows_short() -> None:
    kernel = calibration_worker.Kernel(lambda repeats: (0, 50_000_000 + repeats), 1.0, lambda repeats: repeats)
    kernel.prepare()
    assert kernel.repeats == calibration_worker._WINDOW_NS


def test_the_outcome_is_the_best_window_with_the_middle_one_and_each_rounds_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration_worker, "_ROUND_NS", 0)
    kernel, _ = clocked([1, 10_000, 8_000, 10_000, 10_000, 1, 10_000, 10_000, 5_000, 10_000], work=3.0)
    kernel.run_round()
    kernel.run_round()
    told = kernel.outcome()
    assert told["best"] == pytest.approx(3.0 / 5_000 * 1e9)
    assert told["median"] == pytest.approx(3.0 / 10_000 * 1e9)
    assert told["rounds"] == pytest.approx([3.0 / 8_000 * 1e9, 3.0 / 5_000 * 1e9])
    assert told["windows"] == 8
    assert told["variation"] == pytest.approx(
        np.std([1.25, 1, 1, 1, 1, 1, 2, 1]) / np.mean([1.25, 1, 1, 1, 1, 1, 2, 1])
    )


@pytest.mark.parametrize(
    ("rounds", "settled"),
    [
        ([[[100.0], [99.0]], [[50.0], [50.0]]], False),
        ([[[100.0], [50.0], [98.5]], [[50.0], [50.0], [50.0]]], True),
        ([[[100.0], [97.0], [97.0]], [[50.0], [50.0], [50.0]]], False),
        ([[[100.0], [97.0], [60.0]], [[50.0], [50.0], [99.0]]], True),
    ],
    ids=["two rounds are too few", "the two best agree", "they do not", "whatever kernel reached them"],
)
def test_a_resource_is_settled_when_its_two_best_rounds_agree(rounds: list[list[list[float]]], settled: bool) -> None:
    items = [{"resource": "l1", "dtype": None}] * len(rounds)
    kernels: list[calibration_worker.Kernel | str] = []
    for mine in rounds:
        kernel, _ = clocked([1])
        kernel.rounds = mine
        kernels.append(kernel)
    assert calibration_worker._settled(items, kernels) == ({("l1", None)} if settled else set())
    assert calibration_worker._settled([{"resource": "l2", "dtype": None}], ["no such kernel"]) == {("l2", None)}


def test_what_fails_is_reported_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration_worker, "_ROUND_NS", 0)
    monkeypatch.setattr(calibration_worker, "_WINDOW_NS", 1000)
    items = [
        {"resource": "vector", "dtype": "fp32", "kernel": "product", "side": 4, "input_dtype": "float32"},
        {"resource": "vector", "dtype": "fp64", "kernel": "product", "side": 4, "input_dtype": "no such type"},
        {"resource": "l9", "dtype": None, "kernel": "no such kernel", "thread_bytes": 4096},
    ]
    told = calibration_worker.measure({"threads": 1, "cpus": [0], "seconds": 0.0, "measurements": items})
    good, bad, worse = told["measurements"]
    assert good["outcome"]["best"] > 0
    assert len(good["outcome"]["rounds"]) == 2
    assert "integer data type" in bad["failed"]
    assert "no such kernel" in worse["failed"]
    assert set(told["noise"]) == {"elapsed_s", "run_delay_ratio", "pressure_ratio", "steal_ratio"}
    assert '{"done": 1.0, "total": 1}' in capsys.readouterr().out


def test_noise_is_reported_as_shares_and_as_unknown_where_the_kernel_reports_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = {"run_delay_ns": None, "pressure_ns": None, "stolen_ticks": None, "all_ticks": None}
    readings: list[dict[str, float | None]] = [
        {
            "clock_ns": 0.0,
            "cpu_ns": 5e9,
            "run_delay_ns": 1e9,
            "pressure_ns": 0.0,
            "stolen_ticks": 1.0,
            "all_ticks": 0.0,
        },
        {
            "clock_ns": 2e9,
            "cpu_ns": 8e9,
            "run_delay_ns": 2e9,
            "pressure_ns": 5e8,
            "stolen_ticks": 3.0,
            "all_ticks": 8.0,
        },
        {"clock_ns": 0.0, "cpu_ns": 0.0, **unknown},
        {"clock_ns": 2e9, "cpu_ns": 1e9, **unknown},
    ]
    monkeypatch.setattr(calibration_worker._Noise, "_read", lambda noise: readings.pop(0))
    told = calibration_worker._Noise().document()
    assert told == {"elapsed_s": 2.0, "run_delay_ratio": 0.25, "pressure_ratio": 0.25, "steal_ratio": 0.25}
    told = calibration_worker._Noise().document()
    assert told == {"elapsed_s": 2.0, "run_delay_ratio": None, "pressure_ratio": None, "steal_ratio": None}


# The words of the result.


def outcome(resource: str, best: float, *, dtype: str | None = None, **told: Any) -> dict[str, Any]:
    facts = {"best": best, "median": best, "variation": 0.0, "windows": 9, "rounds": [best, best], **told}
    size = {"kernel": "read", "thread_bytes": 4096}
    return {"resource": resource, "dtype": dtype, "unit": "byte/s", **size, "outcome": facts}


def test_the_ceiling_is_the_best_of_all_kernels_for_each_resource_in_order() -> None:
    made = [outcome("l1", 3.0), outcome("dram", 1.0), outcome("l1", 4.0), outcome("vector", 2.0, dtype="fp32")]
    made.append({"resource": "vector", "dtype": "fp64", "failed": "no kernel"})
    assert calibration.best_outcomes(made) == [made[2], made[1], made[3]]
    assert calibration.best_outcomes([made[4]]) == []


QUIET: Final[Mapping[str, float | None]] = {"run_delay_ratio": 0.001, "steal_ratio": None}


@pytest.mark.parametrize(
    ("told", "noise", "words"),
    [
        ({}, QUIET, None),
        ({}, {"run_delay_ratio": 0.5, "steal_ratio": 0.0}, "50.0 % of the time that the measuring process wanted CPUs"),
        ({}, {"run_delay_ratio": None, "steal_ratio": 0.03}, "3.0 % of the CPU time went to other guests"),
        ({"rounds": [9.0, 10.0, 8.0]}, QUIET, "more than 2 % apart: DRAM (10.0 %)"),
        ({"rounds": [10.0]}, QUIET, "more than 2 % apart: DRAM"),
        ({"median": 8.0}, QUIET, "half of the windows fell more than 10 % short of the best: DRAM (20 %)"),
    ],
)
def test_a_disturbed_measurement_is_reported_and_not_corrected(
    told: dict[str, Any], noise: Mapping[str, float | None], words: str | None
) -> None:
    measured = outcome("dram", 10.0, **told)
    said = calibration.reservations([measured], {"memory": noise})
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
    assert calibration._ceiling(measured, 1, "today").value == 10.0


def test_the_reference_says_what_was_run_how_often_and_how_steadily() -> None:
    measured = outcome("dram", 10.0, median=9.0, variation=0.05)
    measured["thread_bytes"] = 128 * MIB
    assert calibration._ceiling(measured, 2, "2026-11-21T10:00:00Z").reference == (
        "NumPy vecdot, two arrays read, 256 MiB in all; 2 threads; best of 9 windows in 2 rounds, median 10.0 % below, "
        "coefficient of variation 0.050; 2026-11-21T10:00:00Z"
    )


# The whole way, in a fresh process.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep three small kernels in two processes of everything that would be measured."""
    every = calibration_kernels.processes

    def few(*arguments: Any) -> list[calibration_kernels.Process]:
        kept = []
        for process in every(*arguments):
            chosen = [m for m in process.measurements if m["resource"] in ("l1", "vector_integer")][:1]
            if chosen:
                kept.append(replace(process, measurements=tuple(chosen)))
        return kept

    monkeypatch.setattr(calibration_kernels, "processes", few)
    monkeypatch.setattr(calibration_kernels, "sides_for", lambda threads: (64,))


@pytest.mark.usefixtures("quick")
def test_a_calibration_is_measured_in_fresh_processes_that_hold_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    free: list[bool] = []
    started: list[subprocess.Popen[bytes]] = []
    inherited: set[str] = set()
    start = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(start(*arguments, **options))
        return started[-1]

    def listen(doing: str, done: int, total: int) -> None:
        steps.append((doing, done, total))
        free.append(slot_is_free())
        for file in Path(f"/proc/{started[-1].pid}/fd").glob("*") if started else ():
            with suppress(OSError):  # it ends or closes the file while we look
                inherited.add(str(file.readlink()))

    monkeypatch.setattr(subprocess, "Popen", remember)

    with progress_listener(listen):
        (made,) = calibration.calibrate([1], 0.1, print)
    assert free
    assert not any(free)
    assert slot_is_free()
    assert len(started) == 2
    assert str(slot_path()) in inherited  # so it is taken while they live, even if this process is killed
    assert {doing for doing, _, _ in steps} == {"memory, 1 thread", "ONNX Runtime, 1 thread"}
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    units = {(c.resource, c.dtype): c.unit for c in made.ceilings}
    known = kernel_files.caches([0])
    expected: dict[tuple[str, str | None], str] = {("vector_integer", "int8"): "op/s"}
    assert units == expected | ({("l1", None): "byte/s"} if known else {})
    assert all(ceiling.value > 0 for ceiling in made.ceilings)
    assert made.threads == 1
    assert made.machine["cpu.usable_cpus"] is not None
    assert "dram_latency" in made.absent
    assert set(made.details["noise"]) == {"memory", "ONNX Runtime"}
    assert made.details["versions"]["onnxruntime"] == onnxruntime.__version__
    assert "aaco-calibrate" not in str(made.document())


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_more_threads_than_cpus_are_refused_before_anything_is_measured(count: int) -> None:
    with pytest.raises(UsageError, match=rf"--threads {count}: \d+ CPUs are usable here"):
        calibration.calibrate([1, count], 1.0, print)


@pytest.mark.usefixtures("quick")
def test_a_measured_process_that_dies_is_an_error_with_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(UnavailableError, match="the measured process of memory ended with status 1: "):
        calibration.calibrate([1], 0.1, print)
    assert slot_is_free()


def test_the_measured_process_imports_only_numpy_and_the_runtime() -> None:
    tree = ast.parse(Path(calibration_worker.__file__).read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in imported}
    assert tops - sys.stdlib_module_names == {"numpy", "onnxruntime"}
