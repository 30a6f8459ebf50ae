"""A decoded thread trace's folder while it is read: its files, and what was found in them so far.

What the single files hold is `aaco_pipeline.formats.thread_trace.files`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Findings, Limits
from aaco_pipeline.formats.parsing.regular_files import readable_entries
from aaco_pipeline.formats.thread_trace import files

_NAMED: Final = 5


class Folder(Findings):
    """What is said of one folder, with the details that were read from it."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path.name)
        self.path, self.limits = path, limits
        self.details: dict[str, pl.DataFrame] = {}

    def names(self) -> list[str]:
        """The names of all files, in order."""
        return [entry.path.name for entry in readable_entries(self.path)]

    def optional(
        self, name: str, parse: Callable[[Path, Limits], Any], item: str, *, required: bool = False
    ) -> Any | None:
        """What `parse` makes of the file; None, said absent or invalid, where it cannot be used."""
        path = files.inside(self.path, name)
        if path is None:
            self.say(item, "absent", f"the folder has no {name}")
            return None
        try:
            return parse(path, self.limits)
        except CaptureError as error:
            if required:
                raise
            self.say(item, "invalid", str(error).removeprefix(f"{path}: "))
            return None

    def take(self, name: str, parse: Callable[[Path, Limits], pl.DataFrame], item: str) -> pl.DataFrame | None:
        """As `optional`, for a file all of whose rows are taken."""
        frame: pl.DataFrame | None = self.optional(name, parse, item)
        if frame is not None:
            self.took(name, frame.height)
        return frame

    def detail(
        self, name: str, item: str, parse: Callable[[Path, Limits], pl.DataFrame], schema: pl.Schema
    ) -> pl.DataFrame:
        """The detail `item` out of one file, without rows where there is none."""
        frame = self.take(name, parse, item)
        if frame is not None:
            self.say(item, "present", rows=frame.height)
        self.details[item] = schema.to_frame() if frame is None else frame
        return self.details[item]

    def gather(self, detail: str, item: str, frames: Sequence[pl.DataFrame], schema: pl.Schema, lacking: str) -> None:
        """A detail out of several files, and how many rows it has or why none."""
        self.details[detail] = pl.concat([schema.to_frame(), *frames])
        self.have(item, self.details[detail].height, lacking)


def some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
