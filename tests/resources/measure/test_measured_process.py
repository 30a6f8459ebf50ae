"""Following what a measured process prints: whole lines, nothing of an endless one, and never past the deadline."""

import os
import time

import pytest

from aaco_pipeline.resources.measure.measured_process import follow


def test_lines_come_whole_however_they_were_written() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first\nsec")
    os.write(writing, b"ond\nunfinished")
    os.close(writing)
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream:
        assert follow(stream, time.monotonic() + 60, taken.append)
    assert taken == [b"first", b"second"]


def test_a_stream_that_stays_open_is_left_at_the_deadline() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"begun\n")
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        assert not follow(stream, time.monotonic() + 0.05, taken.append)
    assert taken == [b"begun"]


def test_of_a_line_without_end_only_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 9000 + b"y\n")
    os.close(writing)
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, 3000))
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream:
        assert follow(stream, time.monotonic() + 60, taken.append)
    assert taken == [b"x" * 4096 + b"y"]
