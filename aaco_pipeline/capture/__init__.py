"""The one door to what was recorded: `open_capture` gives every kind of raw capture the same face.

The kinds are beside this module: `measured` (this project's own runs), `profiled` (those with passes under rocprofv3)
and `ingested` (captures made elsewhere). Finding runs in a folder is `discovery`, putting a run's parts together
`merging`, what may be asked to be measured `request`. What a file's bytes mean is `aaco_pipeline.formats`.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.capture.digests import content_digest
from aaco_pipeline.capture.face import Capture


def open_capture(raw: Path) -> Capture:
    """The capture in a session's raw folder; the same object for the same content, however often it is asked for.

    An ingested capture is the same wherever it lies, because it is parsed at once; a measured one reads its files when
    they are asked for, so that it is the same at its place only. The newest one only is kept, because a capture's
    tables may be most of the memory. CaptureError when the folder holds no capture, or a damaged one.
    """
    from aaco_pipeline.capture import ingested

    is_ingested = ingested.probe(raw)
    known = content_digest(raw), None if is_ingested else raw
    if known not in _OPENED:
        opened: Capture
        if is_ingested:
            opened = ingested.read(raw)
        else:
            from aaco_pipeline.capture import profiled  # the readers of models and profiles: only for what ran here

            opened = profiled.read(raw)
        _OPENED.clear()
        _OPENED[known] = opened
    return _OPENED[known]


_OPENED: Final[dict[tuple[str, Path | None], Capture]] = {}
