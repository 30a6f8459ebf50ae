"""MessagePack of strangers: every kind of value as the specification has it, and one error for all that is none."""

import struct

import pytest

from aaco_pipeline.resources.toolchains.amdgpu.message_pack import unpacked


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\xe0", -32),
        (b"\xff", -1),
        (b"\xc0", None),
        (b"\xc2", False),
        (b"\xc3", True),
        (b"\xcc\xff", 255),
        (b"\xcd\x01\x00", 256),
        (b"\xce\x00\x01\x00\x00", 65536),
        (b"\xcf" + struct.pack(">Q", 2**64 - 1), 2**64 - 1),
        (b"\xd0\x80", -128),
        (b"\xd1\x80\x00", -32768),
        (b"\xd2\xff\xff\xff\xfe", -2),
        (b"\xd3" + struct.pack(">q", -(2**63)), -(2**63)),
        (b"\xca" + struct.pack(">f", 0.5), 0.5),
        (b"\xcb" + struct.pack(">d", 0.1), 0.1),
        (b"\xa3abc", "abc"),
        (b"\xd9\x02\xc3\xa9", "é"),
        (b"\xda\x00\x01x", "x"),
        (b"\xdb\x00\x00\x00\x01x", "x"),
        (b"\xc4\x02\x00\xff", b"\x00\xff"),
        (b"\x93\x01\xc0\xa1x", [1, None, "x"]),
        (b"\xdc\x00\x02\x01\x02", [1, 2]),
        (b"\xdd\x00\x00\x00\x01\x90", [[]]),
        (b"\x82\xa1a\x01\xa1b\x80", {"a": 1, "b": {}}),
        (b"\xde\x00\x01\xa1a\xc3", {"a": True}),
        (b"\xdf\x00\x00\x00\x00", {}),
    ],
)
def test_every_kind_of_value(data: bytes, value: object) -> None:
    assert unpacked(data) == value
    assert type(unpacked(data)) is type(value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "1 bytes wanted where 0 are left"),
        (b"\xa3ab", "3 bytes wanted where 2 are left"),
        (b"\xdb\xff\xff\xff\xff", "4294967295 bytes wanted"),
        (b"\xdd\xff\xff\xff\xff", "4294967295 values in 0 bytes"),
        (b"\xdf\xff\xff\xff\xff\xa1a", "4294967295 values in 2 bytes"),
        (b"\xcd\x01", "2 bytes wanted where 1 are left"),
        (b"\x01\x02", "1 bytes follow the value"),
        (b"\x81\x01\x02", "a key is no text"),
        (b"\x82\xa1a\x01\xa1a\x02", "a key stands twice"),
        (b"\x91" * 40 + b"\x01", "nested deeper than 16"),
        (b"\xc7\x01\x00\x00", "0xc7 begins no value"),
        (b"\xd4\x00\x00", "0xd4 begins no value"),
        (b"\xc1", "0xc1 begins no value"),
        (b"\xa1\xff", "can't decode byte"),
    ],
)
def test_what_is_no_value_is_one_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpacked(data)
