"""Open a recorded capture in this process; `open_capture` gives all kinds of captures the same interface.

Untrusted captures are opened through `aaco_pipeline.resources.confinement.client`, which reads them in a confined
process. That process and tests call this module directly.

The kinds are `measured` (this project's own runs, with or without passes under rocprofv3), `ingested` (captures made
elsewhere) and `program` (recordings made by `aaco record`, here or elsewhere). `discovery` finds runs in a folder,
`merging` combines a run's parts, and `request` declares measurement settings. `aaco_pipeline.formats` parses the files.
"""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from aaco_pipeline.capture.face import Capture
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.regular_files import files_beneath, open_regular, settled
from aaco_pipeline.lake.verified import is_of_capture, require_raw_intact


def file_digests(raw: Path) -> list[tuple[str, str]]:
    """List name and SHA-256 of every file in a raw folder, by name; unchanged files are read once per process.

    LakeError if a file differs from when it was received; the list of received files itself is not included.
    """
    raw = settled(raw)
    digests = {name: _digest(file) for name, file in _files(raw)}
    require_raw_intact(raw, digests)
    return list(digests.items())


def content_digest(raw: Path) -> str:
    """Hash the names and digests of a raw folder's files. CaptureError if the folder does not exist."""
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
    """Return the SHA-256 of a regular file. CaptureError if it is unreadable or a symbolic link."""
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
    """Digest of a capture's content, and its location (None for an ingested capture, where it does not matter)."""

    digest: str
    place: Path | None


def open_capture(raw: Path) -> Capture:
    """Open the capture in a session's raw folder; the same content gives the same object.

    An ingested capture is parsed immediately, so its location does not matter. A measured one reads its files on
    demand, so it is only the same at the same location. A capture's tables may take most of the memory, so only the
    most recent one is cached. CaptureError if the folder holds no capture or a damaged one.
    """
    known = identity(raw)
    if known not in _OPENED:
        opened: Capture
        if known.place is None:
            from aaco_pipeline.capture import program

            opened = program.read(raw)
        else:
            from aaco_pipeline.capture import measured  # imported only for local measurements

            opened = measured.read(raw)
        _OPENED.clear()
        _OPENED[known] = opened
    return _OPENED[known]


def identity(raw: Path) -> Identity:
    """Return what identifies the capture in a raw folder. CaptureError if the folder does not exist."""
    from aaco_pipeline.capture import ingested

    digest = content_digest(raw)
    return Identity(digest, None if ingested.probe(raw) else settled(raw))


_OPENED: Final[dict[Identity, Capture]] = {}
