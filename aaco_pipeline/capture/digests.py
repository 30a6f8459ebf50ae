"""What a raw folder's content is known by: digests of its files, each file read once a process.

The digest of files as they were handed over, whatever they were called, is `aaco_pipeline.resources.ingestion`.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.files import file_digest


def file_digests(raw: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file of a raw folder, by name. A file that did not change is read once a process."""
    return [(file.relative_to(raw).as_posix(), _digest(file)) for file in _files(raw)]


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


def _digest(file: Path) -> str:
    status = file.stat()
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known not in _DIGESTS:
        _DIGESTS[known] = file_digest(file)
    return _DIGESTS[known]


_DIGESTS: Final[dict[tuple[int, ...], str]] = {}
