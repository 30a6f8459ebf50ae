"""Tables by name that are read when they are first taken, several of one source at once.

Which table comes from which source is each kind of capture's own.
"""

from collections.abc import Callable, Iterator, Mapping

import polars as pl

Source = Callable[[], Mapping[str, pl.DataFrame]]


class LazyTables(Mapping[str, pl.DataFrame]):
    """A mapping over `sources`: for each name the function that reads it, with its neighbours or alone."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._read: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._read:
            self._read.update(self._sources[name]())
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
