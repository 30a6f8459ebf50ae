"""`benchmarks.reliability.fault_injection` counts a process's system calls in one folder, and fails the one named."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.reliability.fault_injection.library import KINDS, State, build, environment

#: Six calls in the folder, and two elsewhere.
CALLS: Final = """
import json, os, sys
folder, outside = sys.argv[1:]
told = []
def call(function, *arguments):
    try:
        told.append(function(*arguments))
    except OSError as error:
        told.append(f"errno {error.errno}")
call(os.mkdir, outside)
call(os.mkdir, folder + "/a")
file = os.open(folder + "/b", os.O_CREAT | os.O_WRONLY)
call(os.write, file, b"12345678")
call(os.fsync, file)
call(os.rename, folder + "/b", folder + "/c")
call(os.close, file)
call(os.rmdir, outside)
print(json.dumps(told), flush=True)
"""
COUNTED: Final = ["mkdir", "open", "write", "sync", "rename", "close"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build(tmp_path_factory.mktemp("library"))
    if made is None:
        pytest.skip("there is no C compiler (cc)")
    return made


def struck(library: Path, folder: Path, strike: int, mode: int = 0, error: int = 0) -> tuple[State, int, list[Any]]:
    """Make the calls with one struck; what the library noted, the exit code, and what the calls told."""
    place = folder / "place"
    place.mkdir()
    made = environment(library, folder)
    state = State.from_buffer_copy((folder / "state").read_bytes())
    state.arm(strike, mode, error)
    (folder / "state").write_bytes(bytes(state))
    command = [sys.executable, "-S", "-c", CALLS, str(place), str(folder / "outside")]
    done = subprocess.run(command, env=made, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    told = json.loads(done.stdout or "[]")
    return State.from_buffer_copy((folder / "state").read_bytes()), done.returncode, told


def test_calls_in_the_folder_are_counted_and_no_others(library: Path, tmp_path: Path) -> None:
    state, code, told = struck(library, tmp_path, 0)
    assert (state.noted(), state.met(), code) == (COUNTED, "", 0)
    assert told == [None, None, 8, None, None, None, None]
    assert (tmp_path / "place/c").read_bytes() == b"12345678"


@pytest.mark.parametrize("number", [1, 3, 4, 5, 6])
def test_the_call_of_a_number_fails_alone(number: int, library: Path, tmp_path: Path) -> None:
    state, _, told = struck(library, tmp_path, number, 1, 28)
    kept = [*told[1:2], None, *told[2:6]]
    assert [at for at, one in enumerate(kept, 1) if one == "errno 28"] == [number]
    assert state.met().split()[0] == COUNTED[number - 1]


def test_a_short_write_writes_half(library: Path, tmp_path: Path) -> None:
    _, code, told = struck(library, tmp_path, 3, 2)
    assert (code, told[2]) == (0, 4)
    assert (tmp_path / "place/c").read_bytes() == b"1234"


@pytest.mark.parametrize(("mode", "left"), [(3, b""), (4, b"1234")])
def test_a_kill_comes_before_the_call_or_halfway_through_it(
    mode: int, left: bytes, library: Path, tmp_path: Path
) -> None:
    state, code, told = struck(library, tmp_path, 3, mode)
    assert (code, told, state.noted()) == (-9, [], COUNTED[:3])
    assert (tmp_path / "place/b").read_bytes() == left


def test_every_kind_has_a_name_in_the_order_of_the_source() -> None:
    source = (Path(sys.modules[State.__module__].__file__ or "").parent / "faults.c").read_text()
    names = source.partition("enum kind {")[2].partition(", KINDS")[0]
    assert tuple(name.strip().lower() for name in names.split(",")) == KINDS
