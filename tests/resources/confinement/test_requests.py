"""A child's bounds follow from the capture's size, the machine and two variables.

What comes back from a process that read a stranger's bytes names no file outside the capture.
"""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.capture.discovery import Part, Run, Unread
from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.resources.confinement import requests
from aaco_pipeline.resources.confinement.requests import (
    MEMORY_VARIABLE,
    SECONDS_VARIABLE,
    as_json,
    bounds_for,
    receive,
    run_from,
    send,
    size_on_disk,
)

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "machine_bytes", lambda: 64 * GIB)
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    monkeypatch.delenv(SECONDS_VARIABLE, raising=False)


@pytest.mark.parametrize(("size", "memory"), [(0, 4), (GIB // 2, 4), (GIB, 8), (5 * GIB, 40), (50 * GIB, 48)])
def test_memory_is_the_larger_of_4_gib_and_8_captures_and_75_percent_of_the_machine_at_most(
    size: int, memory: int
) -> None:
    assert bounds_for(size).memory_bytes == memory * GIB


def test_a_small_machine_bounds_what_is_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "machine_bytes", lambda: 2 * GIB)
    assert bounds_for(0).memory_bytes == 1.5 * GIB


def test_time_grows_with_the_capture_and_waiting_is_bounded_too() -> None:
    small, large = bounds_for(0), bounds_for(GIB)
    assert (small.cpu_seconds, large.cpu_seconds) == (120, 360)
    assert small.wall_seconds == 60 * small.cpu_seconds


@pytest.mark.parametrize(("text", "size"), [("6G", 6 * GIB), ("512 MiB", GIB // 2), ("1t", 1024 * GIB), ("9", 9)])
def test_memory_can_be_set(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, text)
    assert bounds_for(0).memory_bytes == size


@pytest.mark.parametrize("variable", [MEMORY_VARIABLE, SECONDS_VARIABLE])
@pytest.mark.parametrize("text", ["0", "-1", "much", "1e3", "6 GiBB", "9" * 30])
def test_what_is_no_number_is_one_line_with_the_remedy(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=f"{variable} is '{text}'; give "):
        bounds_for(0)


def test_a_container_s_limit_is_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(requests, "_CGROUP_LIMIT", tmp_path / "memory.max")
    assert requests.machine_bytes() == 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert requests.machine_bytes() > 1 << 20


def test_holes_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", GIB)
    (tmp_path / "whole").write_bytes(b"x" * 100)
    assert size_on_disk([tmp_path / "sparse", tmp_path / "whole", tmp_path / "gone"]) == 100


TOP = Path("/captures/one")


def run(file: str = "/captures/one/a.csv", folder: str = "/captures/one", unread: str = "/captures/one/b") -> Run:
    part = Part("a.csv", "rocprofv3-csv", "CSV", (Path(file),), "rocprofv3_csv", None)
    whole = Part("c", "kineto", "trace", (Path("/captures/one/c"),), "kineto", Path("/captures/one/c"))
    return Run(Path(folder), [part, whole], [Unread(Path(unread), "no format")])


def test_a_run_survives_its_way() -> None:
    sent = replace(run(), digest="3f" * 32)
    arrived = run_from(as_json(sent), TOP)
    assert (arrived, arrived.digest) == (sent, sent.digest)


@pytest.mark.parametrize("path", ["/etc/passwd", "/captures/one/../two", "/captures/onetwo", "a.csv", "/captures"])
@pytest.mark.parametrize("place", ["file", "folder", "unread"])
def test_a_path_outside_the_capture_is_refused(place: str, path: str) -> None:
    with pytest.raises(CaptureError, match="/captures/one: its reader named a file that is not in it; not taken"):
        run_from(as_json(run(**{place: path})), TOP)


def test_messages_arrive_whole_and_an_end_is_an_end() -> None:
    here, there = socket.socketpair()
    with here, there:
        send(here, {"a": "é" * 10_000})
        send(here, {"b": [1]})
        assert receive(there) == {"a": "é" * 10_000}
        assert receive(there) == {"b": [1]}
        here.send(requests._LENGTH.pack(100) + b"{")
        here.close()
        assert receive(there) is None
