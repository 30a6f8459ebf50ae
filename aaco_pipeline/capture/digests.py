"""What a raw folder's content is known by: digests of its files, each file read once a process.

The digest of files as they were handed over, whatever they were called, is `aaco_pipeline.resources.ingestion`.
"""

import hashlib
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.regular_files import files_beneath, open_regular, settled
from aaco_pipeline.lake.verified import is_of_capture, require_raw_intact


def file_digests(raw: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file of a raw folder, by name. A file that did not change is read once a process.

    LakeError when one is not as it was received; the list that tells is not among them.
    """
    raw = settled(raw)
    digests = {name: _digest(file) for name, file in _files(raw)}
    require_raw_intact(raw, digests)
    return list(digests.items())


def content_digest(raw: Path) -> str:
    """SHA-256 over the names and digests of a raw folder's files. CaptureError when there is no such folder."""
    if not raw.is_dir():
        raise CaptureError(f"{raw}: no capture here; ingest or measure the session again")
    listed = "".join(f"{name}\0{digest}\n" for name, digest in file_digests(raw))
    return hashlib.sha256(listed.encode()).hexdigest()


def raw_bytes(raw: Path) -> int:
    """Bytes of all files of a raw folder."""
    return sum(file.lstat().st_size for _, file in _files(settled(raw)))


def _files(raw: Path) -> list[tuple[str, Path]]:
    """The capture's files with their names."""
    named = ((file.relative_to(raw).as_posix(), file) for file in files_beneath(raw)[0])
    return [(name, file) for name, file in named if is_of_capture(name)]


def digest_of(file: Path) -> str:
    """SHA-256 of a regular file's bytes. CaptureError when it cannot be read, or a link leads to it."""
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
