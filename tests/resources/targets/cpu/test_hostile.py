"""Kernels that mean harm are stopped by the worker alone: their object is judged by nobody here, and their text too."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Buffer, Build, Call, Launch, Layout, Parameter, Scalar
from aaco_pipeline.resources.targets.cpu import CpuTarget, target
from aaco_pipeline.resources.targets.cpu import worker as workers
from aaco_pipeline.resources.targets.cpu.worker import CpuWorker

SOURCE: Final = Path(__file__).with_name("hostile.hip")
PARAMETERS: Final = (
    Parameter("in", "const float", True, True),
    Parameter("out", "float", True, False),
    Parameter("n", "int", False, False),
    Parameter("mode", "int", False, False),
)
TARGET: Final = CpuTarget(flags=("-O1", "-std=c++17", "-g0"), call_limit_ns=500_000_000)
#: A whole number of the alignment of buffers, so that a page without memory comes right behind the last value.
WHOLE, ODD = 1024, 1003
HONEST: Final = 0
X86: Final = os.uname().machine == "x86_64"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "check_object", lambda *_: None)
        yield TARGET.build(SOURCE.read_bytes(), "hostile", PARAMETERS, Layout(7), tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def worker(build: Build) -> Iterator[CpuWorker]:
    with TARGET.start(build) as worker:
        yield worker
        pid = worker.pid
    assert pid is None or not Path("/proc", str(pid)).exists()
    assert not of_program(build.artefact)


def of_program(program: Path) -> list[str]:
    """Processes that run the program, whoever started them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "exe").readlink()).startswith(str(program)):
                found.append(process.name)
        except OSError:
            continue
    return found


def call(mode: int, n: int = WHOLE) -> Call:
    content = np.arange(1, n + 1, dtype=np.float32)
    arguments = (
        Buffer("in", "float32", n, "in"),
        Buffer("out", "float32", n, "out"),
        Scalar("n", "int32", n),
        Scalar("mode", "int32", mode),
    )
    return Call(Launch((n // 64 + 1, 1, 1), (64, 1, 1)), arguments, {"in": content})


def test_an_honest_call_is_answered_by_a_process_that_is_shut_in(worker: CpuWorker) -> None:
    for _ in range(3):
        execution = worker.run(call(HONEST))
        assert execution.outputs["out"].tolist() == (2.0 * np.arange(1, WHOLE + 1)).tolist()
        assert execution.duration_ns is not None and execution.duration_ns > 0
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    assert status["Threads"] == "1"
    assert [one.name for one in Path(f"/proc/{worker.pid}/fd").iterdir()] == ["3"]
    assert os.getsid(worker.pid or 0) == worker.pid != os.getsid(0)


@pytest.mark.parametrize(
    ("mode", "n", "guard", "words"),
    [
        pytest.param(1, WHOLE, "memory", "0 bytes past the end of buffer out", id="one element past the end"),
        pytest.param(1, ODD, "memory", "wrote past the end of buffer out", id="one element past an odd end"),
        pytest.param(2, ODD, "memory", "wrote before the begin of buffer out", id="one element before the begin"),
        pytest.param(3, WHOLE, "memory", "0 bytes past the end of buffer in", id="reads one element past the end"),
        pytest.param(4, WHOLE, "inputs", "wrote to its input in", id="writes to its input"),
        pytest.param(5, WHOLE, "result", "ended by itself with status 0", id="exits early"),
        pytest.param(6, WHOLE, "processes", "of the operating system", id="signals everybody"),
        pytest.param(7, WHOLE, "time", "did not end within 0.5 s", id="loops for ever"),
        pytest.param(8, WHOLE, "processes", "of the operating system", id="forks"),
        pytest.param(9, WHOLE, "processes", "of the operating system", id="starts a thread"),
        pytest.param(10, WHOLE, "processes", "of the operating system", id="takes a terabyte"),
        pytest.param(11, WHOLE, "floating_point_state", "rounding mode", id="flushes to zero"),
        pytest.param(12, WHOLE, "floating_point_state", "rounding mode", id="rounds up"),
        pytest.param(13, WHOLE, "floating_point_state", "rounding mode", id="another precision"),
        pytest.param(14, WHOLE, "processes", "of the operating system", id="a handler of signals"),
        pytest.param(15, WHOLE, "memory", "touched memory", id="calls itself for ever"),
        pytest.param(16, WHOLE, "memory", "", id="overwrites its stack"),
        pytest.param(17, WHOLE, "processes", "of the operating system", id="makes its input writable"),
        pytest.param(18, WHOLE, "processes", "of the operating system", id="opens a file"),
        pytest.param(19, WHOLE, "processes", "of the operating system", id="writes to the channel"),
        pytest.param(20, WHOLE, "processes", "of the operating system", id="reads from the channel"),
        pytest.param(
            21, WHOLE, "memory", "", id="reads the time", marks=pytest.mark.skipif(not X86, reason="of x86-64")
        ),
        pytest.param(22, WHOLE, "processes", "of the operating system", id="a call of 32 bits"),
        pytest.param(23, WHOLE, "processes", "of the operating system", id="a call of x32"),
        pytest.param(24, WHOLE, "processes", "of the operating system", id="another stack for signals"),
        pytest.param(25, WHOLE, "result", "SIG", id="stops itself"),
        pytest.param(27, WHOLE, "result", "not asked", id="answers without having heard the question"),
        pytest.param(
            32, WHOLE, "result", "divided", id="divides by zero", marks=pytest.mark.skipif(not X86, reason="of x86-64")
        ),
        pytest.param(33, WHOLE, "processes", "of the operating system", id="another filter"),
        pytest.param(35, WHOLE, "memory", "where no buffer lies", id="a pointer from nowhere"),
    ],
)
def test_harm_is_refused_by_name_and_the_next_call_is_served(
    worker: CpuWorker, mode: int, n: int, guard: str, words: str
) -> None:
    worker.run(call(HONEST, n))
    with pytest.raises(Refused) as refused:
        worker.run(call(mode, n))
    assert refused.value.guard == guard, refused.value
    assert words in refused.value.reason
    assert worker.pid is None
    assert worker.run(call(HONEST, n)).outputs["out"][0] == 2.0


def test_cpu_time_is_read_once_the_process_is_at_rest(worker: CpuWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.run(call(HONEST))
    seen, look = list[tuple[bytes, int]](), workers._rests

    def twice_awake(status: bytes) -> tuple[bytes, int]:
        seen.append(look(status) if len(seen) % 3 == 2 else (b"R", 0))
        return seen[-1]

    monkeypatch.setattr(workers, "_rests", twice_awake)
    duration = worker.run(call(HONEST)).duration_ns
    assert duration is not None and duration > 0
    rests = [count for state, count in seen if state == b"S"]
    assert seen[-1][0] == b"S" and len(set(rests)) >= 2, "before the kernel is asked for and after it answered"


def test_who_answers_early_with_the_right_nonce_has_only_ended_the_call(worker: CpuWorker) -> None:
    """The forged answer is taken, the outputs are what they are (poison), and the worker's own loop goes on."""
    assert np.isnan(worker.run(call(26)).outputs["out"]).all()
    assert worker.run(call(HONEST)).outputs["out"].tolist() == (2.0 * np.arange(1, WHOLE + 1)).tolist()


def test_a_changed_floating_point_state_behind_a_forged_answer_is_seen_at_the_next_call(worker: CpuWorker) -> None:
    worker.run(call(28))
    with pytest.raises(Refused, match="floating_point_state"):
        worker.run(call(HONEST))


def test_who_listens_in_place_of_answering_waits_until_it_is_killed(build: Build) -> None:
    impatient = CpuTarget(flags=TARGET.flags, call_limit_ns=100_000_000)
    with impatient.start(build) as worker, pytest.raises(Refused, match="time"):
        worker.run(call(29))
    assert not of_program(build.artefact)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(30, id="a static variable"),
        pytest.param(37, id="deep in its stack"),
        pytest.param(38, id="where the worker's own frames lie"),
        pytest.param(39, id="a register of vectors"),
        pytest.param(40, id="data of the C library"),
    ],
)
def test_what_a_kernel_keeps_is_gone_at_the_next_call(worker: CpuWorker, mode: int) -> None:
    found = [worker.run(call(mode)).outputs["out"][0] for _ in range(3)]
    assert 5.0 not in found
    if mode == 30:
        assert found == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", [31, 34, 36], ids=["strings backwards", "the nonce erased", "its arguments erased"])
def test_what_a_kernel_spoils_in_its_own_process_does_not_reach_the_next_call(worker: CpuWorker, mode: int) -> None:
    try:
        worker.run(call(mode))
    except Refused as refused:
        assert refused.guard == "memory"
    assert worker.run(call(HONEST)).outputs["out"].tolist() == (2.0 * np.arange(1, WHOLE + 1)).tolist()


def test_a_child_dies_with_the_worker_that_was_interrupted(build: Build) -> None:
    with pytest.raises(KeyboardInterrupt), TARGET.start(build) as worker:
        worker.run(call(HONEST))
        raise KeyboardInterrupt
    assert not of_program(build.artefact)


ABANDONED: Final = """
import sys
from pathlib import Path
from aaco_pipeline.optimization.targets import Buffer, Call, Launch, Scalar
from aaco_pipeline.resources.targets.cpu.worker import CpuWorker
import numpy as np
buffers = Buffer("in", "float32", 16, "in"), Buffer("out", "float32", 16, "out")
worker = CpuWorker(Path(sys.argv[1]), 4, 10**12, lambda start, length: None)
for mode in (0, 7):
    scalars = Scalar("n", "int32", 16), Scalar("mode", "int32", mode)
    call = Call(Launch((1, 1, 1), (64, 1, 1)), (*buffers, *scalars), {"in": np.ones(16, np.float32)})
    if mode:
        print("looping", flush=True)
    worker.run(call)
"""


def test_a_kernel_that_loops_dies_with_its_parent(build: Build) -> None:
    command = [sys.executable, "-c", ABANDONED, str(build.artefact)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "looping\n"
        (child,) = of_program(build.artefact)
        assert within_seconds(lambda: user_ticks(child) > 10)
        parent.kill()
    assert within_seconds(lambda: not of_program(build.artefact))


def user_ticks(process: str) -> int:
    """CPU time of a process, in hundredths of a second."""
    return int(Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[11])


def within_seconds(so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if so():
            return True
        time.sleep(0.01)
    return False
