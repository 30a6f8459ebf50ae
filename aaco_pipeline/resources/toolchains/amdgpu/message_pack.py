"""MessagePack, as code objects hold their metadata in it: https://github.com/msgpack/msgpack/blob/master/spec.md.

For bytes of strangers: every length is held against what is left, and nesting against a bound.
"""

import struct
from typing import Final

_DEEPEST: Final = 16
#: By first byte: the format of a number, or of the length of what follows.
_NUMBERS: Final = {
    **{0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"},
    **{0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"},
}
_TEXTS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BYTES: Final = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_LISTS: Final = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Final = {0xDE: ">H", 0xDF: ">I"}
_SINGLES: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def unpacked(data: bytes) -> object:
    """The one value that `data` holds: None, bool, int, float, str, bytes, list, or dict by str.

    ValueError when it is none, holds an extension type, a key twice or one that is no text, or nests deeper than 16.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        first = self._taken(1)[0]
        if first <= 0x7F or first >= 0xE0:
            return first if first <= 0x7F else first - 0x100
        if first in _SINGLES:
            return _SINGLES[first]
        if first in _NUMBERS:
            return self._number(_NUMBERS[first])
        return self._several(first, depth)

    def _several(self, first: int, depth: int) -> object:
        """What states its length: a map, a list, a text or bytes."""
        if first <= 0x8F or first in _MAPS:
            return self._map(first & 0xF if first <= 0x8F else self._length(_MAPS[first]), depth)
        if first <= 0x9F or first in _LISTS:
            count = first & 0xF if first <= 0x9F else self._length(_LISTS[first])
            return [self.value(depth + 1) for _ in range(self._possible(count))]
        if first <= 0xBF or first in _TEXTS:
            return self._taken(first & 0x1F if first <= 0xBF else self._length(_TEXTS[first])).decode()
        if first in _BYTES:
            return self._taken(self._length(_BYTES[first]))
        raise ValueError(f"byte {first:#x} begins no value that is known")

    def _map(self, count: int, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(self._possible(count)):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("a key is no text")
            if key in found:
                raise ValueError("a key stands twice")
            found[key] = self.value(depth + 1)
        return found

    def _number(self, form: str) -> int | float:
        number: int | float = struct.unpack(form, self._taken(struct.calcsize(form)))[0]
        return number

    def _length(self, form: str) -> int:
        return int(self._number(form))

    def _possible(self, count: int) -> int:
        """A count of values, each of which takes a byte at least."""
        if count > len(self._data) - self.at:
            raise ValueError(f"{count} values in {len(self._data) - self.at} bytes")
        return count

    def _taken(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise ValueError(f"{size} bytes wanted where {len(self._data) - self.at} are left")
        self.at += size
        return self._data[self.at - size : self.at]
