"""All pages are decoded at once, as a plain loop decodes them one by one; what is no page is refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.ring_buffer import numbers, records_of, texts
from tests.formats.native.kernel_plane_recording import MISSED, PAGE, STORED, Record, page, plainly_read

DATA = st.binary(min_size=4, max_size=150)
RECORDS = st.one_of(
    st.builds(Record, st.integers(0, 1 << 26), DATA),
    st.builds(Record, st.integers(0, 1 << 20), st.just(b""), st.just("extend"), st.integers(0, 1 << 20)),
    st.builds(Record, st.integers(0, 1 << 26), st.just(b""), st.just("stamp"), st.integers(0, (1 << 32) - 1)),
    st.builds(Record, st.integers(1, 1 << 20), st.binary(min_size=8, max_size=20), st.just("discarded")),
)


def fitting(records: list[Record]) -> list[Record]:
    """As many of the first ones as a page holds."""
    kept, size = [], 0
    for record in records:
        size += len(record.encoded())
        if size > PAGE - 32:
            break
        kept.append(record)
    return kept


PAGES = st.lists(st.tuples(st.integers(0, 1 << 58), st.lists(RECORDS, max_size=12).map(fitting)), max_size=5)


@given(PAGES)
def test_all_pages_at_once_are_the_pages_one_by_one(pages: list[tuple[int, list[Record]]]) -> None:
    content = b"".join(page(began, records) for began, records in pages)
    found = records_of(content, PAGE, "x")
    read = [
        (int(time), content[offset : offset + size])
        for time, offset, size in zip(found.time_ns, found.offset, found.size, strict=True)
    ]
    assert read == plainly_read(pages)
    assert found.losses == ()


@given(st.binary(max_size=3 * PAGE))
def test_any_bytes_are_records_or_one_clear_error(content: bytes) -> None:
    try:
        found = records_of(content, PAGE, "some.pages")
    except CaptureError as error:
        assert str(error).startswith("some.pages: ")
    else:
        assert (found.offset + found.size <= len(content)).all()


def test_a_page_that_ends_in_padding_ends_there() -> None:
    content = bytearray(page(5, [Record(1, b"abcd"), Record(1, b"efgh")]))
    struct.pack_into("<Q", content, 8, 40)  # the page is full: a null record fills it
    struct.pack_into("<I", content, 16 + 16, 29)
    assert records_of(bytes(content), PAGE, "x").time_ns.tolist() == [6, 7]


def test_losses_are_told_with_the_records_around_them_and_their_number() -> None:
    pages = [
        page(100, [Record(1, b"abcd")]),
        page(500, [Record(2, b"abcd")], flags=MISSED | STORED, missed=17),
        page(900, [Record(3, b"abcd")], flags=MISSED),
    ]
    assert records_of(b"".join(pages), PAGE, "x").losses == ((101, 502, 17), (502, 903, None))


def test_numbers_and_texts_are_taken_from_the_data() -> None:
    content = page(
        0,
        [Record(1, struct.pack("<Hxxi8s", 7, -5, b"name\0xyz")), Record(1, struct.pack("<Hxxi8s", 8, 6, b"full8chr"))],
    )
    found = records_of(content, PAGE, "x")
    assert found.event.tolist() == [7, 8]
    assert numbers(content, found.offset, 4, 4, signed=True).tolist() == [-5, 6]
    assert texts(content, found.offset, 8, 8).tolist() == [b"name", b"full8chr"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (bytes(PAGE - 1), "no whole number of pages"),
        (struct.pack("<QQ", 0, PAGE) + bytes(PAGE - 16), "more bytes than it has"),
        (struct.pack("<QQI", 0, 8, 5 << 5 | 28) + bytes(PAGE - 20), "beyond its page"),
        (struct.pack("<QQII", 0, 16, 5 << 5, 1 << 20) + bytes(PAGE - 24), "beyond its page"),
    ],
)
def test_what_is_no_page_is_refused(content: bytes, what: str) -> None:
    with pytest.raises(CaptureError, match=f"some.pages: .*{what}"):
        records_of(content, PAGE, "some.pages")


def test_no_pages_are_no_records() -> None:
    found = records_of(b"", PAGE, "x")
    assert (len(found.time_ns), found.losses) == (0, ())
    assert found.time_ns.dtype == np.int64
