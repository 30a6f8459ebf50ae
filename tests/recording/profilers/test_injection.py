"""The library that is injected into CUDA programs, run without a GPU: a libcupti of our own plays it known records.

The stand-in and the few declarations that it is built against are in `stand_in/`, written from NVIDIA's documentation.
"""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.cupti import stream as layout
from aaco_pipeline.formats.cupti.stream import Stream, read_stream
from aaco_pipeline.recording.profilers.cupti import Cupti, Injection, compiled

SOURCES: Final = Path(__file__).with_name("stand_in")
HEADERS: Final = ("cuda", "builtin_types", "cupti_version", "cupti_result", "cupti_activity", "cupti_callbacks")
COMPILER: Final = shutil.which("g++") or ""
MEMORY_MIB: Final = 300

pytestmark = pytest.mark.skipif(not COMPILER, reason="no g++ on this host")


@dataclass(frozen=True)
class Built:
    """The stand-in's program, and the library built against the stand-in's headers."""

    program: Path
    injection: Injection


@dataclass(frozen=True)
class Ran:
    """A run of the program: its status, output and streams."""

    status: int
    output: str
    streams: list[Stream]

    @property
    def kernels(self) -> int:
        return sum(stream.count(layout.KERNELS) for stream in self.streams)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("stand_in")
    for name in HEADERS:
        (folder / f"{name}.h").write_text('#include "declarations.h"\n')
    library, program = folder / "libcupti.so.13", folder / "program"
    flags = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*flags, "-shared", "-fPIC", SOURCES / "stand_in_cupti.cpp", "-o", library, "-lpthread"], check=True)
    subprocess.run([*flags, SOURCES / "program.cpp", "-o", program, "-ldl"], check=True)
    stand_in = Cupti((folder, SOURCES), library, 13, 130001)
    return Built(program, Injection(compiled(COMPILER, stand_in), stand_in))


def run(built: Built, tmp_path: Path, mode: str, **environment: str) -> Ran:
    folder = tmp_path / "streams"
    folder.mkdir()
    done = subprocess.run(
        [built.program, built.injection.library, built.injection.cupti.library, mode],
        env={**os.environ, **built.injection.environment(folder), **environment},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(done.returncode, done.stdout, [read_stream(path, Limits()) for path in sorted(folder.iterdir())])


def ends(stream: Stream) -> list[int]:
    return [int(reason) for reason in stream.take(layout.ENDS)["reason"]]


def dropped(stream: Stream) -> int:
    return int(stream.take(layout.DROPPED)["count"].sum())


def test_a_program_that_ends_leaves_every_launch_and_says_that_it_ended(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "exit")
    assert (ran.status, ran.kernels) == (0, 1000)
    (stream,) = ran.streams
    assert stream.path.name.startswith(f"{stream.header['pid']}-")
    assert stream.count(layout.CALLS) == 1000, "a call that nobody asked for was recorded"
    launches = stream.take(layout.KERNELS)
    assert launches["correlation"].tolist() == list(range(1, 1001))
    assert launches["dynamic_shared"].tolist() == [512, 256] * 500
    assert ((launches["end"] - launches["start"]) == 2500).all()
    assert ends(stream) == [1]
    assert not [note for note in stream.notes if note.startswith("other")]
    assert stream.path.stat().st_size < 40 * 1000, "launches are not packed"
    assert ran.output.strip().isdigit(), "the library printed into the program's output"


def test_every_kind_of_record_comes_with_its_values(built: Built, tmp_path: Path) -> None:
    (stream,) = run(built, tmp_path, "all").streams
    assert set(stream.names.values()) == {"tiny(int*)", "step 1", "model", "now"}
    assert list(stream.symbols.values()) == ["_Z4tinyPi"]
    assert stream.call_names[1 << 16 | 3] == "cudaLaunchKernel_v7000"
    assert "host " + os.uname().nodename in stream.notes
    launch = {"grid_x": 12, "grid_y": 2, "block_x": 128, "stream": 7, "context": 1, "correlation": 1, "graph_node": 9}
    takes = {"registers": 40, "static_shared": 1024, "dynamic_shared": 512, "local_memory": 16}
    size = {"major": 9, "multiprocessors": 132, "clock_khz": 1_980_000, "threads_per_multiprocessor": 2048}
    expected: dict[int, dict[str, object]] = {
        layout.KERNELS: {**launch, **takes},
        layout.CALLS: {"thread": 77, "call": 3, "domain": 1, "correlation": 1},
        layout.COPIES: {"kind": 1, "source_kind": 2, "destination_kind": 3, "bytes": 4096, "start": 100, "end": 200},
        layout.FILLS: {"bytes": 64, "memory_kind": 3, "start": 500, "end": 600, "correlation": 503},
        layout.EVENTS: {"recording": 44, "stream": 7, "correlation": 504},
        layout.WAITS: {"type": 2, "recording": 44, "stream": 8, "context": 1, "start": 700, "end": 800},
        layout.ALLOCATIONS: {"operation": 1, "memory_kind": 3, "address": 0x7000, "bytes": 1 << 20, "time": 900},
        layout.OVERHEADS: {"kind": 1 << 16, "start": 1300, "end": 1400},
        layout.CONTEXTS: {"context": 1, "device": 0},
        layout.DEVICES: {**size, "memory_bytes": 150_000_000_000, "name": b"Stand-in GPU"},
    }
    for kind, values in expected.items():
        columns = stream.take(kind)
        assert {name: columns[name][0].item() for name in values} == values
        if kind == layout.COPIES:
            assert (columns["source"][1], columns["destination"][1]) == (0, 1)
    ranges = stream.take(layout.RANGES)
    assert ranges["kind"].tolist() == [1, 2, 3]
    assert ranges["range"].tolist() == [1, 1, 2]
    assert ranges["time"].tolist() == [1000, 1100, 1200]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"RANK": "13", "SLURM_PROCID": "2"}, ["rank 13"]),  # of several starters within another the innermost
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["rank 0"]),
        ({"RANK": "first"}, []),
        ({}, []),
    ],
)
def test_a_stream_says_which_rank_of_a_job_it_is_of(
    told: dict[str, str], expected: list[str], built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (stream,) = run(built, tmp_path, "exit", **told).streams
    assert [note for note in stream.notes if note.startswith("rank")] == expected


def test_what_cupti_refuses_is_kept_as_its_text(built: Built, tmp_path: Path) -> None:
    (stream,) = run(built, tmp_path, "exit").streams
    assert [note for note in stream.notes if note.startswith("refused")] == ["refused kind OVERHEAD: STAND_IN_ERROR"]
    assert "call cuCtxSynchronize" in stream.notes
    assert "call cuInit" not in stream.notes


@pytest.mark.parametrize(
    ("mode", "ended", "reasons"),
    [
        ("leave", (4, [1000]), []),  # by `_exit`, without handlers: all of before the last flush is there
        ("terminated", (-signal.SIGTERM, [1000]), [2]),
        ("own handler", (7, [1000]), None),
        ("ignored", (0, [1000]), None),
        ("ranges", (0, [1000]), None),  # NVTX reaches CUPTI, and nothing is registered twice
        ("forked", (0, [2000]), [1]),  # children write nothing
        ("becomes another", (0, [1000, 1000]), None),
    ],
)
def test_a_program_ends_as_without_us_and_its_launches_are_kept(
    mode: str, ended: tuple[int, list[int]], reasons: list[int] | None, built: Built, tmp_path: Path
) -> None:
    ran = run(built, tmp_path, mode)
    assert (ran.status, [stream.count(layout.KERNELS) for stream in ran.streams]) == ended
    assert reasons is None or ends(ran.streams[0]) == reasons
    assert mode != "own handler" or ran.output == "own handler\n"


def test_a_killed_program_loses_only_what_had_not_been_flushed(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "killed")
    assert ran.status == -signal.SIGKILL
    assert 1000 <= ran.kernels <= 101_000
    # Filled buffers were given back at once: no more than one buffer's worth is gone.
    assert ran.kernels > 90_000
    assert ran.streams[0].torn_bytes == 0


def test_a_program_that_closes_all_descriptors_keeps_its_own_files_clean(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "closed")
    assert (ran.status, ran.kernels) == (0, 2000)
    assert (tmp_path / "own_file").read_bytes() == b""


def test_a_flood_is_bounded_in_memory_and_what_is_dropped_is_counted(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "flood")
    (stream,) = ran.streams
    assert int(ran.output) < MEMORY_MIB * 1024
    assert ran.kernels < 1_001_000
    # A launch is a kernel and two calls, of which one is not asked for.
    written = ran.kernels + 2 * stream.count(layout.CALLS)
    assert abs(3 * 1_001_000 - written - dropped(stream)) <= 2


def test_more_names_than_are_remembered_are_all_right(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "names")
    (stream,) = ran.streams
    used = [stream.names[number] for number in stream.take(layout.KERNELS)["name"].tolist()]
    texts = [int(text) for text in used if text != "tiny(int*)"]
    assert texts == [4000 * batch + one for batch in range(3) for one in range(8000)]
    assert int(ran.output) < MEMORY_MIB * 1024


def test_a_full_disk_leaves_whole_chunks_and_a_count_and_the_program_alive(built: Built, tmp_path: Path) -> None:
    ran = run(built, tmp_path, "small disk")
    (stream,) = ran.streams
    assert ran.status == 0
    assert stream.torn_bytes == 0
    assert dropped(stream) > 0
    assert ran.kernels >= 500
    assert set(stream.take(layout.KERNELS)["name"].tolist()) <= set(stream.names)


@pytest.mark.parametrize("mode", ["taken before", "taken later"])
def test_another_profiler_in_the_program_is_reported_and_the_program_goes_on(
    built: Built, tmp_path: Path, mode: str
) -> None:
    ran = run(built, tmp_path, mode)
    assert ran.status == 0
    assert [note.split()[0] for note in ran.streams[0].notes if note.startswith("other")] == ["other_profiler"]


def test_a_second_cupti_in_the_program_is_reported(built: Built, tmp_path: Path) -> None:
    shutil.copy(built.injection.cupti.library, tmp_path / "libcupti.so.12")
    (stream,) = run(built, tmp_path, "second").streams
    (told,) = (note for note in stream.notes if note.startswith("other_cupti "))
    assert told.endswith(" libcupti.so.12 beside libcupti.so.13")


def test_without_a_folder_to_write_to_the_program_runs_as_ever(built: Built, tmp_path: Path) -> None:
    environment = {**os.environ, **built.injection.environment(tmp_path / "missing")}
    command = [str(one) for one in (built.program, built.injection.library, built.injection.cupti.library, "exit")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
