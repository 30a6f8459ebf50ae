"""Arrays that need not be held in memory: put one after another into a file without a name, and read back in parts.

What the arrays mean is known to who puts them there.
"""

import tempfile
import weakref
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Less than this stays in memory and never sees the disk.
_HELD_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Stored:
    """Where an array lies: its first byte, how many values, of what type."""

    at: int
    count: int
    dtype: np.dtype[Any]


class Spool:
    """One file of arrays. OSError where the disk of temporary files is full."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115 (open as long as this object is)
        weakref.finalize(self, self._file.close)
        self._end = 0

    def put(self, values: npt.NDArray[Any]) -> Stored:
        self._file.seek(self._end)
        self._file.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")
        stored = Stored(self._end, len(values), values.dtype)
        self._end += values.nbytes
        return stored

    def get(self, stored: Stored, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """The array's values from `first` to before `last`."""
        count = (stored.count if last is None else last) - first
        self._file.seek(stored.at + first * stored.dtype.itemsize)
        return np.frombuffer(self._file.read(count * stored.dtype.itemsize), stored.dtype)
