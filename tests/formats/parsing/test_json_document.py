"""A JSON document is read whole, or refused in one line that names it."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.json_document import json_document, parsed


@pytest.mark.parametrize(
    ("content", "meant"),
    [
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "\\ud83d", "b\\uDE00": [1.5, 36893488147419103232, null]}', {"a": "?", "b?": [1.5, 1 << 65, None]}),
        (b'["\xed\xa0\x80"]', ["\ufffd\ufffd\ufffd"]),
        (b'["\\\\ud800"]', ["\\ud800"]),
        ('["é"]'.encode("utf-16"), ["é"]),
    ],
)
def test_every_text_of_a_document_is_one_that_a_table_can_hold(content: bytes, meant: object, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    found = json_document(tmp_path / "a.json")
    assert found == meant
    str(found).encode()


@pytest.mark.parametrize("content", [b"", b"{", b"[1,]", b"[" * 1_000_000, b'{"a":' * 1_000_000, b"\xff\xfe"])
def test_what_is_damaged_or_too_deep_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CaptureError, match=r"a\.json: cannot be read as JSON: .*; copy the file again$") as caught:
        json_document(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


def test_a_document_beyond_its_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"[" + b" " * 2_000 + b"]")
    with pytest.raises(CaptureError, match="more than 1000 bytes when unpacked; not read"):
        json_document(tmp_path / "a.json", Limits(document_bytes=1_000))


def test_control_characters_are_text_where_that_is_asked_for() -> None:
    assert parsed('["a\x01"]', strict=False) == ["a\x01"]
    with pytest.raises(ValueError, match="control character"):
        parsed('["a\x01"]')
