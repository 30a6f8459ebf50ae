"""Profiles that are whole, cut, damaged or too large, and recognition of them whatever the bytes."""

import gzip
import io
import json
import re
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.ort_profile import reading as profile_events
from tests.formats.ort_profile.made_up import (
    CUT,
    LOADING,
    PACKED,
    SMALL,
    Event,
    call,
    from_disk,
    items,
    node,
    read,
    same,
    text,
    written,
)
from tests.formats.readings import checked


def test_packed_and_plain_give_the_same(tmp_path: Path) -> None:
    plain = read(written(tmp_path, SMALL))
    packed = read(written(tmp_path, gzip.compress(text(SMALL), mtime=0), "profile.json.gz"))
    assert same(plain, packed)
    misnamed = read(written(tmp_path, gzip.compress(text(SMALL), mtime=0), "packed.json"))
    assert same(plain, misnamed)


def whole_events(content: bytes) -> int:
    """Count the events that are complete in a beginning of `CUT`, by parsing each line."""
    count = 0
    for line in content.splitlines()[1:]:
        try:
            json.loads(line.removesuffix(b","))
        except ValueError:
            break
        count += 1
    return count


def cuts(*, after_bracket: bool) -> list[int]:
    """Where to cut: anywhere behind the opening line, apart by whether the cut file ends in a closing bracket."""
    return [at for at in range(1, len(CUT), 3) if CUT[:at].rstrip().endswith(b"]") == after_bracket]


def expect_read_up_to(folder: Path, at: int) -> None:
    reading = read(written(folder, CUT[:at]))
    whole = whole_events(CUT[:at])
    calls = reading.tables["api_calls"].height
    assert calls + reading.tables["dispatches"].height == whole, CUT[:at]
    item = items(reading)["kernel events"]
    assert (item.status, item.reason) == ("partial", "the file is cut off: its end is missing"), CUT[:at]


def test_a_file_cut_anywhere_is_read_up_to_the_cut_and_told(tmp_path: Path) -> None:
    for at in cuts(after_bracket=False):
        expect_read_up_to(tmp_path, at)


def test_a_file_cut_behind_a_bracket_within_an_event_is_read_up_to_the_cut(tmp_path: Path) -> None:
    places = cuts(after_bracket=True)
    assert places
    for at in places:
        expect_read_up_to(tmp_path, at)


def test_a_file_that_lacks_only_its_closing_bracket_keeps_all_events(tmp_path: Path) -> None:
    for content in (CUT[:-1], CUT[:-2], CUT[:-2] + b","):
        reading = read(written(tmp_path, content))
        assert (reading.tables["dispatches"].height, reading.tables["api_calls"].height) == (1, 2)
        assert items(reading)["kernel events"].status == "partial"


@pytest.mark.parametrize("chunk", [1, 2, 3, 64, 257, 1000])
def test_pieces_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    contents = [text(SMALL), text(SMALL).rstrip(), text(SMALL)[:-40], gzip.compress(text(SMALL), mtime=0)]
    whole = [read(written(tmp_path, content)) for content in contents]
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    for content, expected in zip(contents, whole, strict=True):
        given = read(written(tmp_path, content))
        assert same(given, expected)
        assert given.evidence == expected.evidence


#: As onnxruntime 1.31 writes it.
TRUNCATED = call("profile_truncated", 90, 0, max_num_events="1000000", dropped_event_count="39502")


def test_the_runtimes_own_word_on_dropped_events_is_told(tmp_path: Path) -> None:
    reading = read(written(tmp_path, [*SMALL, TRUNCATED]))
    item = items(reading)["kernel events"]
    assert (item.status, item.rows) == ("partial", 7)
    assert "39502 events were dropped" in str(item.reason)


def test_the_word_on_dropped_events_is_no_call(tmp_path: Path) -> None:
    assert "profile_truncated" not in read(written(tmp_path, [*SMALL, TRUNCATED])).tables["api_calls"]["name"]


def test_a_profile_at_the_cap_is_told_though_the_runtime_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SMALL)
    monkeypatch.setattr(ort_profile, "EVENT_CAP", len(SMALL) + 1)
    assert items(read(path))["kernel events"].status == "present"
    monkeypatch.setattr(ort_profile, "EVENT_CAP", len(SMALL))
    item = items(read(path))["kernel events"]
    assert item.status == "partial"
    assert "an unknown number of events is missing" in str(item.reason)


@pytest.mark.parametrize("events", [[], [LOADING], [LOADING, call("model_run", 1, 5)]])
def test_a_profile_without_nodes_says_so(tmp_path: Path, events: list[Event]) -> None:
    reading = checked(read(written(tmp_path, events)))
    assert items(reading)["kernel events"].status == "absent"
    assert reading.tables["api_calls"].height == len(events)


def refused(path: Path, *mentions: str, limits: Limits | None = None) -> None:
    with pytest.raises(CaptureError, match=re.escape(str(path))) as caught:
        read(path, limits)
    for mention in mentions:
        assert mention in str(caught.value)


def lines_with(line: bytes, at: int = 3) -> bytes:
    """The small profile with another line instead of one of its events."""
    lines = text(SMALL).splitlines(keepends=True)
    lines[at] = line + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize(
    "line", [b'{"cat" : "Node","pid', b"garbage", b'{"cat": 5 5},', b"7,", b'"word",', b"null,", b"\xff,"]
)
def test_a_file_damaged_before_its_end_is_refused(tmp_path: Path, line: bytes) -> None:
    refused(written(tmp_path, lines_with(line)), "damaged")
    refused(written(tmp_path, lines_with(line)[:-30]), "damaged")


def test_damage_is_placed_by_the_events_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = lines_with(b"garbage", at=8)
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 1)
    refused(written(tmp_path, content), "damaged after event 7")


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "12"},
        {"ts": 12.5},
        {"ts": 1 << 70},
        {"args": "text"},
        {"ts": 1 << 60},
        {"dur": -1},
        {"dur": None},
        {"tid": None},
        {"name": None},
    ],
    ids=[
        "text",
        "fraction",
        "beyond int64",
        "args",
        "beyond int64 in ns",
        "negative",
        "no length",
        "no thread",
        "no name",
    ],
)
def test_an_event_that_cannot_be_one_is_refused(tmp_path: Path, change: Event) -> None:
    refused(written(tmp_path, lines_with(json.dumps({**node("a", 12, 3), **change}).encode() + b",")))


def test_a_count_of_dropped_events_that_is_none_is_refused_or_unknown(tmp_path: Path) -> None:
    path = written(tmp_path, [*SMALL, call("profile_truncated", 90, 0, dropped_event_count="many")])
    try:
        reading = read(path)
    except CaptureError as error:
        assert str(path) in str(error)
    else:
        assert items(reading)["kernel events"].status == "partial"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}",
        b'{"traceEvents": []}',
        b"text",
        b"\x00" * 64,
        b'"[',
        gzip.compress(b"", mtime=0),
        gzip.compress(b"text", mtime=0),
        json.dumps(SMALL).encode(),
        json.dumps(SMALL, indent=1).encode(),
    ],
    ids=["empty", "blank", "object", "trace", "text", "zeros", "string", "gz", "gz text", "one line", "indented"],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(written(tmp_path, content), "not an ONNX Runtime profile")


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing.json", "cannot be read")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_packed_bytes_behind_the_opening_bracket_are_not_unpacked(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    lines = b"\n".join(json.dumps(one).encode() for one in SMALL)
    refused(written(tmp_path, b"[" + pack(lines)))
    refused(written(tmp_path, b"[\n" + pack(lines) + b"\n]\n"))


@pytest.mark.parametrize(
    "content",
    [
        PACKED[:2],
        PACKED[:11],
        PACKED[: len(PACKED) // 2],
        PACKED[:-1],
        PACKED[:60] + bytes([PACKED[60] ^ 0xFF]) + PACKED[61:],
        PACKED[:-8] + bytes(8),
    ],
    ids=["two bytes", "header", "half", "last byte", "flipped", "checksum"],
)
def test_a_damaged_packed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(written(tmp_path, content, "profile.json.gz"), "cannot be read")


# Limits.


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_may_be_as_large_as_the_limit_unpacked_and_no_larger(tmp_path: Path, packed: bool) -> None:
    content = text(SMALL)
    path = written(tmp_path, gzip.compress(content, mtime=0) if packed else content)
    read(path, Limits(file_bytes=len(content)))
    refused(path, f"more than {len(content) - 1} bytes", limits=Limits(file_bytes=len(content) - 1))


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_file_may_hold_as_many_events_as_the_limit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    path = written(tmp_path, SMALL)
    read(path, Limits(events=len(SMALL)))
    refused(path, f"more than {len(SMALL) - 1} events", limits=Limits(events=len(SMALL) - 1))


def test_a_line_longer_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 32)
    path = written(tmp_path, [LOADING, node("x" * 2000, 10, 5), call("model_run", 1, 30)])
    read(path, Limits(line_bytes=4000))
    refused(path, "a line of more than 1000 bytes", limits=Limits(line_bytes=1000))


@pytest.mark.parametrize("filler", [b" ", b"\n"], ids=["one line", "blank lines"])
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes
) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as stream:
        stream.write(b"[\n")
        for _ in range(64):
            stream.write(filler * (1 << 20))
    path = written(tmp_path, packed.getvalue(), "bomb.json.gz")
    assert path.stat().st_size < 1 << 20
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 1 << 18)
    tracemalloc.start()
    try:
        refused(path, limits=Limits(file_bytes=32 << 20, line_bytes=2 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


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
