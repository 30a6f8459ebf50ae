"""A compiler runs within limits, and nothing that it started outlives it. Other programs stand in for one here."""

import errno
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.targets.cpu import compiler as compilers
from aaco_pipeline.resources.targets.cpu.compiler import Compiler, compile_confined

SHELL = Compiler("/bin/sh", "a shell")
PYTHON = Compiler(sys.executable, "Python")


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone, which takes a moment."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_compiler_that_takes_too_long_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compilers, "_WALL_SECONDS", 0.5)
    with pytest.raises(Refused, match="compile: the compiler took more than"):
        compile_confined(SHELL, ["-c", "sleep 300 & echo $! > child; sleep 300"], tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_what_a_compiler_leaves_running_is_ended(tmp_path: Path) -> None:
    compile_confined(SHELL, ["-c", "sleep 300 & echo $! > child"], tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_a_compiler_has_limits_of_its_own(tmp_path: Path) -> None:
    program = """
import resource
for what in ("CPU", "AS", "FSIZE", "CORE"):
    print("x: warning: ", what, resource.getrlimit(getattr(resource, "RLIMIT_" + what))[0])
print("x: warning: ", open("/proc/self/status").read().partition("NoNewPrivs:")[2].split()[0])
"""
    told = compile_confined(PYTHON, ["-I", "-S", "-c", program], tmp_path)
    assert [line.split()[-1] for line in told] == ["60", str(4 << 30), str(128 << 20), "0", "1"]


@pytest.mark.skipif(os.getuid() != 0, reason="a network namespace needs root here")
def test_a_compiler_reaches_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
except OSError as error:
    print("x: warning: ", error.errno)
"""
        told = compile_confined(PYTHON, ["-I", "-S", "-c", program], tmp_path)
    assert [int(line.split()[-1]) for line in told] == [errno.ENETUNREACH]


def test_errors_are_told_in_a_few_lines_without_the_folder(tmp_path: Path) -> None:
    text = "".join(f"{tmp_path}/kernel.cpp:{line}:1: error: wrong\\n  note of line\\n" for line in range(100))
    with pytest.raises(Refused) as refused:
        compile_confined(SHELL, ["-c", f"printf '{text}'; exit 1"], tmp_path)
    assert refused.value.reason.startswith("kernel.cpp:0:1: error: wrong; kernel.cpp:1:1: error: wrong")
    assert len(refused.value.reason) <= 1_000 and "note" not in refused.value.reason
