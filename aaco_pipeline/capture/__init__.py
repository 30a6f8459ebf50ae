"""Open a recorded capture in this process: `open_capture` gives every kind of raw capture the same interface.

Untrusted captures are opened through `aaco_pipeline.resources.confinement.client`, which reads them in a process that
can do nothing else; this is what that process does, and what tests may.

The kinds are `measured` (this project's own runs, with passes under rocprofv3 or without), `ingested` (captures made
elsewhere) and `program` (what `aaco record` ran, here or elsewhere). Runs in a folder are found in `discovery`, a run's
parts are combined in `merging`, settings of a measurement are in `request`. The meaning of a file's bytes is in
`aaco_pipeline.formats`.
"""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from aaco_pipeline.capture.face import Capture
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.regular_files import files_beneath, open_regular, settled
from aaco_pipeline.lake.verified import is_of_capture, require_raw_intact


def file_digests(raw: Path) -> list[tuple[str, str]]:
    """List name and SHA-256 of every file of a raw folder, by name; an unchanged file is read once per process.

    LakeError when a file is not as it was received; the list of the received files is not included.
    """
    raw = settled(raw)
    digests = {name: _digest(file) for name, file in _files(raw)}
    require_raw_intact(raw, digests)
    return list(digests.items())


def content_digest(raw: Path) -> str:
    """Hash the names and digests of a raw folder's files. CaptureError when there is no such folder."""
    if not raw.is_dir():
        raise CaptureError(f"{raw}: no capture here; ingest or measure the session again")
    listed = "".join(f"{name}\0{digest}\n" for name, digest in file_digests(raw))
    return hashlib.sha256(listed.encode()).hexdigest()


def raw_bytes(raw: Path) -> int:
    """Sum the sizes of all files of a raw folder."""
    return sum(file.lstat().st_size for _, file in _files(settled(raw)))


def _files(raw: Path) -> list[tuple[str, Path]]:
    """List the capture's files with their names."""
    named = ((file.relative_to(raw).as_posix(), file) for file in files_beneath(raw)[0])
    return [(name, file) for name, file in named if is_of_capture(name)]


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a regular file. CaptureError when it cannot be read, or a link leads to it."""
    try:
        with open_regular(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CaptureError(f"{file}: cannot be read: {error.strerror or error}; check its permissions") from error


def _digest(file: Path) -> str:
    status = file.lstat()
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known not in _DIGESTS:
        _DIGESTS[known] = digest_of(file)
    return _DIGESTS[known]


_DIGESTS: Final[dict[tuple[int, ...], str]] = {}


class Identity(NamedTuple):
    """The digest of a capture's content, and its place; None for an ingested one, which is the same anywhere."""

    digest: str
    place: Path | None


def open_capture(raw: Path) -> Capture:
    """Open the capture in a session's raw folder; returns the same object for the same content.

    An ingested capture is the same wherever it lies, because it is parsed at once; a measured one reads its files on
    demand, so it is the same at its place only. Only the newest one is kept, because a capture's tables may take most
    of the memory. CaptureError when the folder holds no capture, or a damaged one.
    """
    known = identity(raw)
    if known not in _OPENED:
        opened: Capture
        if known.place is None:
            from aaco_pipeline.capture import program

            opened = program.read(raw)
        else:
            from aaco_pipeline.capture import measured  # the readers of models and profiles: only for what ran here

            opened = measured.read(raw)
        _OPENED.clear()
        _OPENED[known] = opened
    return _OPENED[known]


def identity(raw: Path) -> Identity:
    """Return what identifies the capture in a raw folder. CaptureError when there is no such folder."""
    from aaco_pipeline.capture import ingested

    digest = content_digest(raw)
    return Identity(digest, None if ingested.probe(raw) else settled(raw))


_OPENED: Final[dict[Identity, Capture]] = {}
