"""What was recorded, opened in this process: `open_capture` gives every kind of raw capture the same face.

Whoever opens captures of strangers goes through `aaco_pipeline.resources.confinement.doors`, which reads them in a
process that can do nothing else; this is what that process does, and what tests may.

The kinds are beside this module: `measured` (this project's own runs), `profiled` (those with passes under rocprofv3),
`ingested` (captures made elsewhere) and `program` (what `aaco record` ran, here or elsewhere). Finding runs in a folder
is `discovery`, putting a run's parts together `merging`, what may be asked to be measured `request`. What a file's
bytes mean is `aaco_pipeline.formats`.
"""

from pathlib import Path
from typing import Final, NamedTuple

from aaco_pipeline.capture.digests import content_digest
from aaco_pipeline.capture.face import Capture
from aaco_pipeline.formats.parsing.regular_files import settled


class Identity(NamedTuple):
    """The digest of a capture's content, and where it lies; None for an ingested one, which is the same anywhere."""

    digest: str
    place: Path | None


def open_capture(raw: Path) -> Capture:
    """The capture in a session's raw folder; the same object for the same content, however often it is asked for.

    An ingested capture is the same wherever it lies, because it is parsed at once; a measured one reads its files when
    they are asked for, so that it is the same at its place only. The newest one only is kept, because a capture's
    tables may be most of the memory. CaptureError when the folder holds no capture, or a damaged one.
    """
    known = identity(raw)
    if known not in _OPENED:
        opened: Capture
        if known.place is None:
            from aaco_pipeline.capture import program

            opened = program.read(raw)
        else:
            from aaco_pipeline.capture import profiled  # the readers of models and profiles: only for what ran here

            opened = profiled.read(raw)
        _OPENED.clear()
        _OPENED[known] = opened
    return _OPENED[known]


def identity(raw: Path) -> Identity:
    """What the capture in a raw folder is known by. CaptureError when there is no such folder."""
    from aaco_pipeline.capture import ingested

    digest = content_digest(raw)
    return Identity(digest, None if ingested.probe(raw) else settled(raw))


_OPENED: Final[dict[Identity, Capture]] = {}
