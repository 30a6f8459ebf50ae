"""Marks that a program sets of itself: nothing without the variable, a file a process with it, in Python and C."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.program.marks import INSTANT, ITERATION, PHASE, Marks, read_marks
from tests.places import ROOT

HELPERS = ROOT / "aaco_pipeline" / "recording"
C_PROGRAM = """
#include <aaco_mark.h>
#include <pthread.h>
#include <sys/wait.h>

static void *work(void *unused)
{
    for (int i = 0; i < 3000; i++) {
        aaco_iteration_begin();
        aaco_phase_begin("décode");
        aaco_phase_end();
        aaco_iteration_end();
    }
    return unused;
}

int main(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    if (fork() == 0) { aaco_mark("child"); _exit(0); }
    wait(NULL);
    aaco_mark("parent");
    return 0;
}
"""


C_SAME_NANOSECOND = """
#include <pthread.h>
#include <time.h>

static pthread_barrier_t both;
static int calls;

static int same_clock(clockid_t clock, struct timespec *now)
{
    int error = clock_gettime(clock, now);
    if (clock == CLOCK_MONOTONIC && __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) < 2) {
        now->tv_sec = 0;
        now->tv_nsec = 1000;
        pthread_barrier_wait(&both);
    }
    return error;
}

#define clock_gettime same_clock
#include <aaco_mark.h>

static void *work(void *unused)
{
    aaco_mark("together");
    return unused;
}

int main(void)
{
    pthread_t threads[2];
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


def alone(folder: Path, program: str, *, marks: bool = True) -> list[Marks]:
    """Marks of Python code that has a copy of the helper and nothing else of this project."""
    shutil.copy(HELPERS / "mark.py", folder / "mark.py")
    kept = folder / "marks"
    kept.mkdir()
    environment = {"AACO_MARKS": str(kept)} if marks else {}
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\nfrom mark import iteration, mark, phase\n{program}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], env=environment, check=True)
    return [read_marks(file, Limits()) for file in sorted(kept.iterdir())]


def kinds(marks: Marks) -> dict[int, int]:
    return dict(Counter(marks.ranges.get_column("kind").to_list()))


def test_without_the_variable_nothing_is_left(tmp_path: Path) -> None:
    program = "with iteration(), phase('a'):\n    mark('b')\niteration.begin(); iteration.end()"
    assert alone(tmp_path, program, marks=False) == []


def test_a_copied_helper_marks_iterations_phases_and_instants_by_name(tmp_path: Path) -> None:
    program = "for _ in range(5000):\n    with iteration(), phase('prefill'):\n        mark('a' * 300)\nmark('')"
    (marks,) = alone(tmp_path, program)
    assert kinds(marks) == {ITERATION: 5000, PHASE: 5000, INSTANT: 5001}
    assert set(marks.ranges.get_column("name")) == {None, "prefill", "a" * 255}
    assert (marks.unpaired, marks.impossible, marks.error) == (0, 0, 0)
    inside = marks.ranges.filter(kind=PHASE).get_column("start") - marks.ranges.filter(kind=ITERATION)["start"]
    assert inside.min() >= 0  # type: ignore[operator]


def test_a_forked_child_and_threads_mark_whole(tmp_path: Path) -> None:
    program = """
import os, threading
def work():
    for _ in range(1000):
        with iteration():
            mark(str(_ % 7))
threads = [threading.Thread(target=work) for _ in range(4)]
[one.start() for one in threads]; [one.join() for one in threads]
if os.fork() == 0:
    mark("child"); os._exit(0)
os.wait()
"""
    found = sorted(alone(tmp_path, program), key=lambda one: one.ranges.height)
    assert [kinds(one) for one in found] == [{INSTANT: 1}, {ITERATION: 4000, INSTANT: 4000}]
    assert found[1].ranges.get_column("thread").n_unique() == 4
    assert found[0].process != found[1].process
    assert (found[1].unpaired, found[1].impossible) == (0, 0)


def test_threads_that_mark_in_different_parts_of_the_file_mark_whole(tmp_path: Path) -> None:
    """A thread may be switched out between any two steps, while one that is late marks in the first part."""
    program = """
import mark as helper
mark("first")
first = helper._own[0]._part
def switched(frame, event, argument):
    frame.f_trace_opcodes = True
    if event == "opcode":
        helper._own[0]._part = first
    return switched
sys.settrace(lambda frame, event, argument: switched if frame.f_code.co_name == "_of" else None)
for _ in range(3000):
    with iteration(): mark("name")
"""
    (marks,) = alone(tmp_path, program)
    assert (kinds(marks), marks.unpaired) == ({INSTANT: 3001, ITERATION: 3000}, 0)


def test_threads_that_begin_in_the_same_nanosecond_mark_whole(tmp_path: Path) -> None:
    program = """
import itertools, threading, time
import mark as helper
real, calls, both = time.monotonic_ns, itertools.count(), threading.Barrier(2)
def clock():
    if next(calls) < 2:
        both.wait()
        return 1000
    return real()
helper.time.monotonic_ns = clock
threads = [threading.Thread(target=mark, args=(name,)) for name in "ab"]
[one.start() for one in threads]; [one.join() for one in threads]
"""
    (marks,) = alone(tmp_path, program)
    assert kinds(marks) == {INSTANT: 2}


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    program = "import os, signal\nwith iteration():\n    mark('x')\n"
    code = f"{program}if os.fork() == 0:\n    mark('y'); os.kill(os.getpid(), signal.SIGKILL)\nos.wait()"
    assert sorted(one.ranges.height for one in alone(tmp_path, code)) == [1, 2]


def test_a_program_that_cannot_be_marked_runs_all_the_same(tmp_path: Path) -> None:
    program = (
        "import os\nfolder = os.environ['AACO_MARKS']\nos.rmdir(folder)\nwith iteration():\n    mark('x')\n"
        "os.mkdir(folder)"
    )
    assert alone(tmp_path, program) == []


COMPILERS = pytest.mark.parametrize(
    "compiler",
    [["cc", "-std=c99", "-D_GNU_SOURCE", "-pedantic"], ["c++", "-x", "c++", "-std=c++11"]],
    ids=["C99", "C++"],
)


def compiled(folder: Path, compiler: list[str], text: str) -> Path:
    """A C program that has the header and nothing else of this project."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]} on this host")
    source, program = folder / "program.c", folder / "program"
    source.write_text(text)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{HELPERS}", "-pthread", "-o", str(program)]
    subprocess.run([*compiler, str(source), *flags], check=True)
    return program


@COMPILERS
def test_c_threads_that_begin_in_the_same_nanosecond_mark_whole(tmp_path: Path, compiler: list[str]) -> None:
    program, kept = compiled(tmp_path, compiler, C_SAME_NANOSECOND), tmp_path / "marks"
    kept.mkdir()
    subprocess.run([program], env={"AACO_MARKS": str(kept)}, check=True)
    (marks,) = [read_marks(file, Limits()) for file in kept.iterdir()]
    assert kinds(marks) == {INSTANT: 2}


@COMPILERS
def test_a_c_program_marks_with_the_header_alone(tmp_path: Path, compiler: list[str]) -> None:
    program, kept = compiled(tmp_path, compiler, C_PROGRAM), tmp_path / "marks"
    kept.mkdir()
    subprocess.run([program], env={}, check=True)
    assert list(kept.iterdir()) == []
    subprocess.run([program], env={"AACO_MARKS": str(kept)}, check=True)
    found = sorted((read_marks(file, Limits()) for file in kept.iterdir()), key=lambda one: one.ranges.height)
    assert [kinds(one) for one in found] == [{INSTANT: 1}, {ITERATION: 12_000, PHASE: 12_000, INSTANT: 1}]
    assert [one.ranges.get_column("name").drop_nulls().unique().sort().to_list() for one in found] == [
        ["child"],
        ["décode", "parent"],
    ]
    assert all((one.unpaired, one.impossible, one.error) == (0, 0, 0) for one in found)


def test_the_command_names_the_headers_folder() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "aaco_pipeline.mark"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (Path(said.stdout.strip()) / "aaco_mark.h").is_file()
