"""Look up values by id for full columns, number ids densely, and read cells of any type.

`sqlite_database` opens databases.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from polars._typing import PolarsDataType

from aaco_pipeline.formats.parsing.json_document import parsed
from aaco_pipeline.formats.parsing.redaction import RANK_VARIABLES

#: Smaller ids are looked up in an array instead of by binary search.
_LARGEST_DIRECT: Final = 1 << 22


class Lookup:
    """A column of values by id, applied to entire series at once."""

    def __init__(self, ids: Sequence[int], values: pl.Series) -> None:
        self._values = values
        keys = np.array(ids, np.int64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._direct: npt.NDArray[np.int64] | None = None
        if len(keys) and self._keys[0] >= 0 and self._keys[-1] < _LARGEST_DIRECT:
            self._direct = np.full(int(self._keys[-1]) + 1, -1, np.int64)
            self._direct[self._keys[::-1]] = self._order[::-1]  # the first of equal ids is used

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, object]], dtype: PolarsDataType) -> "Lookup":
        """Build a lookup from ids and values; anything that is not an integer is skipped."""
        known = [(one, value) for one, value in pairs if isinstance(one, int)]
        return cls([one for one, _ in known], pl.Series([value for _, value in known], dtype=dtype))

    def applied(self, ids: pl.Series) -> pl.Series:
        """Return the value of each id; null for a null and for an id without a value."""
        if not len(self._keys):
            return pl.Series(ids.name, [None], dtype=self._values.dtype).new_from_index(0, len(ids))
        asked = ids.fill_null(-(2**63)).to_numpy()
        if self._direct is not None:
            inside = (asked >= 0) & (asked < len(self._direct))
            place = np.where(inside, self._direct[np.where(inside, asked, 0)], -1)
        else:
            found = np.minimum(np.searchsorted(self._keys, asked), len(self._keys) - 1)
            place = np.where(self._keys[found] == asked, self._order[found], -1)
        places = pl.Series(place)
        if (place < 0).any():
            places = places.set(places < 0, None)
        return self._values.gather(places)


class Numbering:
    """Dense numbers for ids; an unknown id gets the next number, so no event is lost."""

    def __init__(self, known: Iterable[int] = ()) -> None:
        self.ids: list[int | None] = list(dict.fromkeys(known))
        self.known_count = len(self.ids)

    def applied(self, ids: pl.Series, *, keep_null: bool = False) -> pl.Series:
        """Return the number of each id as int32. A null is numbered like an unknown id, or stays null."""
        numbers = self.lookup().applied(ids)
        if not numbers.null_count():
            return numbers
        strangers = ids.filter(numbers.is_null()).unique(maintain_order=True).to_list()
        self.ids += [one for one in strangers if one not in self.ids and not (one is None and keep_null)]
        numbers = self.lookup().applied(ids)
        if None in self.ids:
            numbers = numbers.fill_null(self.ids.index(None))
        return numbers

    def unknown(self) -> list[tuple[int, int | None]]:
        """List number and id of each id that was not known beforehand."""
        return list(enumerate(self.ids))[self.known_count :]

    def lookup(self) -> Lookup:
        """Return the numbers by id."""
        return Lookup.of(((one, number) for number, one in enumerate(self.ids)), pl.Int32)


def names(rows: Iterable[Mapping[str, Any]], column: str) -> Lookup:
    """Look up text by id."""
    return Lookup.of(((row["id"], text(row[column])) for row in rows), pl.String)


def text(value: object) -> str | None:
    """Convert a value of a text column, which in SQLite can have any type."""
    return None if value is None else value if isinstance(value, str) else str(value)


def integer(value: object) -> int | None:
    """Return the value if it is an integer that fits int64, else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits and isinstance(value, int) else None


def fields(value: object, depth: int) -> dict[str, Any]:
    """Parse a JSON object from a text column; empty if it is not one, damaged or nested deeper than `depth`."""
    if not isinstance(value, str) or value in ("", "{}"):
        return {}
    marks = np.frombuffer(value.encode("utf-8", "replace"), np.uint8)
    steps = np.isin(marks, (0x5B, 0x7B)).astype(np.int32) - np.isin(marks, (0x5D, 0x7D))
    if np.cumsum(steps).max() > depth:  # also counts brackets in strings: this is a bound, not a parser
        return {}
    try:
        meant = parsed(value)
    except (ValueError, RecursionError):
        return {}
    return meant if isinstance(meant, dict) else {}


def rank_of(environment: Mapping[str, Any]) -> int | None:
    """Return the process's rank in its job from the variables that launchers set; None without one."""
    for name in RANK_VARIABLES:
        stated = str(environment.get(name, ""))
        if stated.isascii() and stated.isdigit() and int(stated[:10]) < 2**31:
            return int(stated[:10])
    return None
