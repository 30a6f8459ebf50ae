"""Copy foreign captures into the lake's raw folder, and redact secrets on the way.

`aaco_pipeline.formats` interprets the files; `aaco_pipeline.pipeline.ingestion` decides which session they become.
"""

import errno
import gzip
import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from aaco_pipeline import __version__
from aaco_pipeline.capture import digest_of
from aaco_pipeline.capture.discovery import STATISTICS, Run
from aaco_pipeline.capture.ingested import FILES_FOLDER, FORMAT, FORMAT_VERSION, LIST_FILE, ORIGINALS_FOLDER
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.cupti import MAGIC as CUPTI_MAGIC
from aaco_pipeline.formats.cupti import stream as cupti
from aaco_pipeline.formats.parsing.compression import Unpacked, first_bytes, open_decompressed
from aaco_pipeline.formats.parsing.redaction import RULES_VERSION, redacted_pieces, safe_name
from aaco_pipeline.formats.parsing.regular_files import is_regular, open_regular
from aaco_pipeline.formats.parsing.sqlite_database import MAGIC
from aaco_pipeline.formats.program.marks import without_secrets
from aaco_pipeline.formats.program.runs import MARKS_SUFFIX
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.resources.confinement.requests import size_on_disk
from aaco_pipeline.resources.sqlite_copy import copy_database

_CHUNK_BYTES: Final = 8 << 20
#: Programs and raw traces: they contain no text typed by a user, and a changed byte would corrupt them.
_BINARY: Final = (".att", ".out")


@dataclass(frozen=True)
class KeptFile:
    """One source file (`sha256`, `bytes`), and the number of redactions in its copy."""

    name: str
    sha256: str
    bytes: int
    redactions: int


def capture_digest(run: Run) -> str:
    """Return the SHA-256 over the digests of a run's files: equal for equal content, regardless of file names.

    Raises CaptureError if a file cannot be read, or if the files are mostly holes.
    """
    files = [path for part in run.parts for path in part.files]
    size, limits = sum(path.lstat().st_size for path in files), Limits()
    if size > max(limits.freely_expanded_bytes, limits.expansion_ratio * size_on_disk(files)):
        raise CaptureError(f"{run.folder}: its files have {size} bytes, mostly holes; not read")
    return _digest_of([digest_of(path) for path in files])


def copy_capture(run: Run, folder: Path, workload: str | None, *, keep_original: bool = False) -> None:
    """Fill `folder` with the run's files, without secrets, and the list of them.

    Files of the run that no reader takes are kept if they may be useful later (raw thread traces, code objects). With
    `keep_original`, a file that was redacted is also kept unchanged next to its copy, readable only by its owner.
    Raises CaptureError if a file cannot be copied, and LakeError if there is no room for it.
    """
    read = [path for part in run.parts for path in part.files]
    names = _names(run, read)
    kept = [_copied(path, names[path], folder / FILES_FOLDER) for path in [*read, *_kept_beside(run)]]
    originals = []
    if keep_original:
        for path, one in zip([*read, *_kept_beside(run)], kept, strict=True):
            if digest_of(folder / FILES_FOLDER / one.name) != one.sha256:
                _keep_original(path, folder / ORIGINALS_FOLDER / one.name)
                originals.append({"name": one.name, "sha256": one.sha256})
    listed = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "writer": f"aaco_pipeline {__version__}",
        "workload": workload and safe_name(workload),
        "found_as": safe_name(run.folder.name),
        "capture_digest": _digest_of([one.sha256 for one in kept[: len(read)]]),
        "redaction_rules": RULES_VERSION,
        "files": [vars(one) for one in kept],
        "originals": originals,
        "unread": [{"name": names[one.path], "reason": one.reason} for one in run.unread],
    }
    with _writing(folder / LIST_FILE):
        (folder / LIST_FILE).write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")


def _digest_of(digests: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()


def _kept_beside(run: Run) -> list[Path]:
    """Return the files that are kept although no reader takes them."""
    beside = [one.path for one in run.unread if one.path.suffix in _BINARY or one.path.name.startswith(STATISTICS)]
    return [path for path in beside if is_regular(path)]


def _names(run: Run, read: Sequence[Path]) -> dict[Path, str]:
    """Name the run's files in the lake: original names without secrets, all different."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in dict.fromkeys([*read, *_kept_beside(run), *(one.path for one in run.unread)]):
        stated = PurePosixPath(_name(path, run))
        safe = stated if stated.is_absolute() else PurePosixPath(*map(safe_name, stated.parts))
        name, number = safe.as_posix(), 1
        while name in taken:
            number += 1
            name = safe.with_name(f"{number}_{safe.name}").as_posix()
        names[path] = name
        taken.add(name)
    return names


def _name(path: Path, run: Run) -> str:
    inside = path.relative_to(run.folder) if path != run.folder else Path(path.name)
    # For a format that is a folder, keep the folder's name.
    folder_format = run.folder.is_dir() and any(part.files and part.name == run.folder.name for part in run.parts)
    return (Path(run.folder.name) / inside).as_posix() if folder_format else inside.as_posix()


def _copied(path: Path, name: str, folder: Path) -> KeptFile:
    target = folder / name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise CaptureError(f"{path}: its place would be outside the capture; not taken")
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    digest, size, redactions = _copy(path, target)
    return KeptFile(name, digest, size, redactions)


def _copy(path: Path, target: Path) -> tuple[str, int, int]:
    """Copy a file without secrets; return its digest, size and number of redactions."""
    size = path.lstat().st_size
    if path.suffix in _BINARY:
        return _copy_bytes(path, target), size, 0
    if path.suffix == MARKS_SUFFIX:
        return digest_of(path), size, _copy_marks(path, target)
    plain = target.with_name(f"{target.name}.unpacked")
    limits = Limits()
    is_database = first_bytes(path, len(MAGIC)) == MAGIC
    with open_decompressed(path, limits) as source, _writing(plain):
        packed = isinstance(source, Unpacked)
        read = hashlib.sha256()
        if is_database:
            hits = copy_database(path, plain, limits)
        else:
            pieces = _pieces(source, path) if packed else _digested(_pieces(source, path), read)
            with plain.open("wb") as copy:
                hits = _filtered(pieces, copy, path)
            if not packed:
                for _ in pieces:
                    pass  # data after the end of a compressed stream belongs to the file, but not to its copy
        # The digest of a plain file is computed from exactly the bytes that were copied.
        digest = digest_of(path) if packed or is_database else read.hexdigest()
    with _writing(target):
        if not packed:
            plain.rename(target)
            return digest, size, hits
        if hits or is_database:
            with plain.open("rb") as source, gzip.GzipFile(target, "wb", compresslevel=1, mtime=0) as repacked:
                shutil.copyfileobj(source, repacked, _CHUNK_BYTES)
        plain.unlink()
    if not (hits or is_database):
        _copy_bytes(path, target)
    return digest, size, hits


def _copy_marks(path: Path, target: Path) -> int:
    """Copy a program's marks without secrets in their names; return the number of secrets."""
    limits = Limits()
    if path.lstat().st_size > limits.whole_bytes:
        raise CaptureError(f"{path}: more than {limits.whole_bytes} bytes of marks; mark less and record again")
    with open_regular(path) as source:
        clean, hits = without_secrets(source.read())
    with _writing(target):
        target.write_bytes(clean)
    return hits


def _keep_original(path: Path, target: Path) -> None:
    with _writing(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.touch(mode=0o600)
    _copy_bytes(path, target)


def _copy_bytes(path: Path, target: Path) -> str:
    """Copy a file unchanged; return its digest."""
    try:
        source = open_regular(path)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be copied: {error.strerror or error}") from error
    read = hashlib.sha256()
    with source, _writing(target), target.open("wb") as copy:
        for piece in _digested(_pieces(source, path), read):
            copy.write(piece)
    return read.hexdigest()


def _pieces(source: gzip.GzipFile | IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield a file's content in chunks. CaptureError if reading fails."""
    while True:
        try:
            piece = source.read(_CHUNK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            # The reader reports truncated or damaged files. Such a file was not searched completely, so none of it is
            # kept.
            raise CaptureError(f"{path}: cannot be unpacked: damaged or cut; copy the file again") from None
        except OSError as error:
            raise CaptureError(f"{path}: cannot be copied: {error.strerror or error}") from error
        if not piece:
            return
        yield piece


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Convert system errors while writing the copy, which are not the capture's fault."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CaptureError(f"{target.name}: larger than its capture can stand for; not taken") from error
        with lake_errors(target):
            raise


def _digested(pieces: Iterator[bytes], read: "hashlib._Hash") -> Iterator[bytes]:
    """Pass the chunks on, adding each to a digest."""
    for piece in pieces:
        read.update(piece)
        yield piece


def _filtered(pieces: Iterator[bytes], copy: IO[bytes], path: Path) -> int:
    """Copy a file's chunks without their secrets; return the number of secrets."""
    hits = 0
    is_cupti = first_bytes(path, len(CUPTI_MAGIC)) == CUPTI_MAGIC
    for clean, count in cupti.without_secrets(pieces, Limits(), str(path)) if is_cupti else redacted_pieces(pieces):
        copy.write(clean)
        hits += count
    return hits
