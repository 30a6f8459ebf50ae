"""The one door to what was recorded: `open_capture` gives every kind of raw capture the same face.

The kinds are beside this module: `measured` (this project's own runs), `profiled` (those with passes under rocprofv3)
and `ingested` (captures made elsewhere). Finding runs in a folder is `discovery`, putting a run's parts together
`merging`, what may be asked to be measured `request`. What a file's bytes mean is `aaco_pipeline.formats`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from aaco_pipeline.errors import CaptureError

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.capture.model import RecordedModel
    from aaco_pipeline.lake.evidence import Evidence

Kind = Literal["measured", "profiled", "ingested"]
#: What a statement of evidence is about; each is published by the stage that answers for it.
Subject = Literal["files", "host", "iterations", "trace", "telemetry"]
#: Frames of thread traces that `tables` gives beside the lake's tables; `analysis.instructions` says what is in them.
THREAD_TRACE: Final = (
    *("instruction_parts", "wait_executions", "wait_dependencies", "waves", "wave_starts", "sampled_stalls"),
)


@dataclass(frozen=True)
class Facts:
    """What kind of capture it is, as far as an analysis may care.

    `kernels_named_by`: whether names are a compiler's (a GPU's kernels) or the model's nodes. `ran_here`: whether this
    project measured it, so that the calibrations of its machine hold. `asked_to_trace`: kernels that a thread trace was
    asked for. `summary`: what the stage `capture` shows of it.
    """

    kind: Kind
    kernels_named_by: Literal["compiler", "model"]
    ran_here: bool
    asked_to_trace: tuple[str, ...] = ()
    summary: Mapping[str, str | int | None] = field(default_factory=dict)


class Capture(Protocol):
    """A raw capture, parsed when first asked and once."""

    def tables(self) -> Mapping[str, "pl.DataFrame"]:
        """Every table of the lake that a capture can state, by name, without the session key; empty where it does not.

        Beside them, where a thread trace was taken, the frames named in `THREAD_TRACE`. A table is read when it is
        taken from the mapping: CaptureError where its file is damaged.
        """
        ...

    def facts(self) -> Facts: ...

    def model(self) -> "RecordedModel | None":
        """The model that ran, with what the runtime left of it; None where the capture holds no model."""
        ...

    def evidence(self, subject: Subject) -> "tuple[Evidence, ...]":
        """What the capture has and lacks of one subject."""
        ...


def open_capture(raw: Path) -> Capture:
    """The capture in a session's raw folder; the same object for the same content, however often it is asked for.

    The newest one only is kept, because a capture's tables may be most of the memory. CaptureError when the folder
    holds no capture, or a damaged one.
    """
    from aaco_pipeline.capture import ingested, measured

    digest = content_digest(raw)
    if digest not in _OPENED:
        opened: Capture = ingested.read(raw) if ingested.probe(raw) else measured.read(raw)
        _OPENED.clear()
        _OPENED[digest] = opened
    return _OPENED[digest]


def file_digests(raw: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file of a raw folder, by name. A file that did not change is read once a process."""
    return [(file.relative_to(raw).as_posix(), _sha256(file)) for file in _files(raw)]


def content_digest(raw: Path) -> str:
    """SHA-256 over the names and digests of a raw folder's files. CaptureError when there is no such folder."""
    if not raw.is_dir():
        raise CaptureError(f"{raw}: no capture here; ingest or measure the session again")
    listed = "".join(f"{name}\0{digest}\n" for name, digest in file_digests(raw))
    return hashlib.sha256(listed.encode()).hexdigest()


def raw_bytes(raw: Path) -> int:
    """Bytes of all files of a raw folder."""
    return sum(file.stat().st_size for file in _files(raw))


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _sha256(file: Path) -> str:
    status = file.stat()
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known not in _DIGESTS:
        with file.open("rb") as stream:
            _DIGESTS[known] = hashlib.file_digest(stream, "sha256").hexdigest()
    return _DIGESTS[known]


_OPENED: Final[dict[str, Capture]] = {}
_DIGESTS: Final[dict[tuple[int, ...], str]] = {}
