"""The protocol of a runner's process, on a stand-in of the driver: what is written, checked, refused and ended."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Buffer, Call, Launch, Scalar
from aaco_pipeline.resources.targets.gpu.driver import VENDORS, Vendor
from aaco_pipeline.resources.targets.gpu.target import GpuProcess, started

Vendors = Callable[[float], Vendor]
ELEMENTS = 1001


@contextmanager
def loaded(vendor: Vendor, symbol: str, folder: Path, *, seed: int = 3, seconds: float = 30.0) -> Iterator[GpuProcess]:
    (folder / "module").write_bytes(b"any bytes")
    with started(vendor, seconds) as process:
        process.greet(vendor)
        process.tell("load", {"artefact": str(folder / "module"), "symbol": symbol, "seed": seed})
        yield process


def twice(start: float = 0.0, block: int = 256, lds: int = 0) -> Call:
    values = np.arange(start, start + ELEMENTS, dtype=np.float32)
    arguments = (
        Buffer("in", "float32", ELEMENTS, "in"),
        Buffer("out", "float32", ELEMENTS, "out"),
        Scalar("n", "int32", ELEMENTS),
    )
    return Call(Launch((4, 1, 1), (block, 1, 1), lds), arguments, {"in": values})


def refused_by(vendor: Vendor, symbol: str, folder: Path, call: Call | None = None, seconds: float = 30.0) -> Refused:
    with loaded(vendor, symbol, folder, seconds=seconds) as process, pytest.raises(Refused) as caught:
        process.run(call or twice())
    return caught.value


def test_each_call_has_its_own_content_and_is_timed(stand_in: Vendors, tmp_path: Path) -> None:
    with loaded(stand_in(1.0), "twice", tmp_path) as process:
        for start in (0.0, 7.0):
            call = twice(start)
            execution = process.run(call)
            np.testing.assert_array_equal(execution.outputs["out"], 2 * call.contents["in"])
            assert execution.duration_ns is not None
            assert 0 < execution.duration_ns < 10**9
        assert set(execution.outputs) == {"out"}
        assert "unread" in execution.conditions  # no GPU, so no clocks: said, and not zero
        number = process.channel.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_buffers_that_are_read_and_written_start_from_their_content(stand_in: Vendors, tmp_path: Path) -> None:
    values = np.arange(512, dtype=np.float32)
    arguments = (Buffer("x", "float32", 512, "inout"), Scalar("step", "float32", 1.5))
    call = Call(Launch((2, 1, 1), (256, 1, 1)), arguments, {"x": values})
    with loaded(stand_in(1.0), "in_place", tmp_path) as process:
        for _ in range(2):
            np.testing.assert_array_equal(process.run(call).outputs["x"], values + np.float32(1.5))


def test_other_arguments_get_other_buffers_in_the_same_process(stand_in: Vendors, tmp_path: Path) -> None:
    few = Call(
        Launch((1, 1, 1), (64, 1, 1)),
        (Buffer("in", "float32", 3, "in"), Buffer("out", "float32", 3, "out"), Scalar("n", "int32", 3)),
        {"in": np.array([1, 2, 3], dtype=np.float32)},
    )
    with loaded(stand_in(1.0), "twice", tmp_path) as process:
        for call in (twice(), few, twice(4.0)):
            np.testing.assert_array_equal(process.run(call).outputs["out"], 2 * call.contents["in"])


def test_what_a_kernel_leaves_unwritten_is_poison(stand_in: Vendors, tmp_path: Path) -> None:
    with loaded(stand_in(1.0), "twice", tmp_path) as good:
        assert np.isfinite(good.run(twice()).outputs["out"]).all()
    with loaded(stand_in(1.0), "half_done", tmp_path) as process:
        execution = process.run(twice())
    left = execution.outputs["out"][ELEMENTS // 2 :]
    assert np.isnan(left).all()
    assert {value.tobytes() for value in left} == {execution.poison["out"]}


@pytest.mark.parametrize(
    ("symbol", "guard", "words"),
    [
        ("past_the_end", "memory", "1 bytes past buffer 2"),
        ("before_the_begin", "memory", "4 bytes before buffer 1"),
        ("input_changed", "inputs", "input buffer 1 was changed"),
        ("illegal_address", "memory", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        ("kills_the_process", "memory", "signal SIGABRT: Memory access fault"),
        ("not_there", "compile", "CUDA_ERROR_NOT_FOUND"),
    ],
)
def test_a_bad_kernel_is_refused(stand_in: Vendors, tmp_path: Path, symbol: str, guard: str, words: str) -> None:
    refused = refused_by(stand_in(1.0), symbol, tmp_path)
    assert refused.guard == guard
    assert words in refused.reason


@pytest.mark.parametrize("call", [twice(block=2048), twice(lds=70_000)], ids=["workgroup", "dynamic LDS"])
def test_a_launch_that_the_device_does_not_take_is_refused(stand_in: Vendors, tmp_path: Path, call: Call) -> None:
    assert refused_by(stand_in(1.0), "twice", tmp_path, call).guard == "resources"


def test_a_kernel_that_hangs_is_killed_with_its_process(stand_in: Vendors, tmp_path: Path) -> None:
    with loaded(stand_in(1.0), "hangs", tmp_path, seconds=2.0) as process:
        process.heard()
        number = process.channel.process.pid
        with pytest.raises(Refused) as caught:
            process.run(twice())
        assert caught.value.guard == "time"
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
        with pytest.raises(Refused, match="killed"):
            process.run(twice())


def test_a_device_clock_that_is_not_the_hosts_is_no_clock(stand_in: Vendors, tmp_path: Path) -> None:
    with (
        loaded(stand_in(0.5), "twice", tmp_path) as process,
        pytest.raises(UnavailableError, match="device's clock says"),
    ):
        process.run(twice())


def test_a_clock_that_runs_away_during_a_call_is_seen(stand_in: Vendors, tmp_path: Path) -> None:
    with loaded(stand_in(1.0), "hurries_the_clock", tmp_path) as process, pytest.raises(UnavailableError):
        process.run(twice())


def test_a_layout_decides_how_many_copies_of_the_module_come_first(stand_in: Vendors, tmp_path: Path) -> None:
    counted = set()
    for seed in range(3):
        with loaded(stand_in(1.0), "tells_loads", tmp_path, seed=seed) as process:
            counted.add(int(process.run(twice()).outputs["out"][0]))
    assert len(counted) > 1


def test_two_processes_of_one_layout_have_the_same_addresses(stand_in: Vendors, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with loaded(stand_in(1.0), "twice", tmp_path) as process:
            process.heard()
            os.ftruncate(process.channel.shared, 4096)
            place = {"size": 4096, "floating": True, "content": 0, "result": None}
            found.append(process.ask("buffers", {"places": [place], "shared_bytes": 4096})["addresses"])
    assert found[0] == found[1]


def test_a_library_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with (
        started(replace(VENDORS["amd"], library="libnot_there.so"), 30.0) as process,
        pytest.raises(UnavailableError, match=r"libnot_there\.so"),
    ):
        process.greet(replace(VENDORS["amd"], library="libnot_there.so"))
        process.heard()
