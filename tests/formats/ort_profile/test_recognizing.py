"""Recognizing profiles, whatever the bytes."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import ort_profile
from tests.formats.ort_profile.made_up import (
    CUT,
    LOADING,
    PACKED,
    from_disk,
    read,
    text,
    written,
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b"\x1f\x8b",
        b"\x1f\x8b" + bytes(40),
        b"\x89PNG\r\n\x1a\n",
        b"SQLite format 3\x00",
        b'[{"ph": "X", "cat": "kernel", "name": "k"}]',
        b'{"cat": "Session", "name": "model_loading_uri"}',
        b'"cat" "model_loading_uri"',
        b'[{"cat": "Session", "name": "session_initialization"}]',
        b"[" + b" " * 2000 + b'{"cat": "Session", "name": "model_loading_uri"}]',
        gzip.compress(b"[]", mtime=0),
        PACKED[:14],
    ],
)
def test_what_is_no_profile_is_not_recognized(tmp_path: Path, content: bytes) -> None:
    assert ort_profile.probe(written(tmp_path, content)) is None


def test_a_path_without_a_file_is_not_recognized(tmp_path: Path) -> None:
    assert ort_profile.probe(tmp_path) is None
    assert ort_profile.probe(tmp_path / "missing") is None


@from_disk
@given(content=st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: PACKED[:80] + b))
def test_recognizing_never_fails_whatever_the_bytes(scratch: Path, content: bytes) -> None:
    recognition = ort_profile.probe(written(scratch, content))
    assert recognition is None or b"model_loading" in content or content.startswith(b"\x1f\x8b")


@from_disk
@given(content=st.binary(max_size=60), at=st.integers(0, len(CUT)), gone=st.integers(0, 40))
def test_reading_damaged_bytes_gives_tables_or_a_capture_error(
    scratch: Path, content: bytes, at: int, gone: int
) -> None:
    path = written(scratch, CUT[:at] + content + CUT[at + gone :])
    try:
        reading = read(path)
    except CaptureError as error:
        assert str(path) in str(error)
    else:
        assert reading.evidence


def test_the_beginning_is_enough_to_be_recognized(tmp_path: Path) -> None:
    head = text([LOADING])[:1024]
    assert ort_profile.probe(written(tmp_path, head + b"\x00" * 100)) is not None
