"""Takes foreign captures into the lake's raw folder: copies files, and blots out what looks like a secret on the way.

What the files mean is `aaco_pipeline.formats`; which session they become is `aaco_pipeline.automation.ingestion`.
"""

import gzip
import hashlib
import json
import re
import shutil
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from aaco_pipeline import __version__
from aaco_pipeline.capture.discovery import STATISTICS, Run
from aaco_pipeline.capture.ingested import FILES_FOLDER, FORMAT, FORMAT_VERSION, LIST_FILE
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.redaction import safe_environment
from aaco_pipeline.formats.rocpd.database import damaged, opened
from aaco_pipeline.formats.rocpd.lookup import RANK_VARIABLES
from aaco_pipeline.lake.files import file_digest

_CHUNK_BYTES: Final = 8 << 20
#: No token is longer, so that none is cut by the end of a chunk.
_LONGEST_TOKEN_BYTES: Final = 4_096
_GZIP: Final = b"\x1f\x8b"
_SQLITE: Final = b"SQLite format 3\0"
#: How well-known tokens begin, and what the whole of each looks like.
_TOKENS: Final = {
    **{
        beginning: re.compile(rb"(?<![A-Za-z0-9_])" + beginning + rb"[A-Za-z0-9]{20,255}")
        for beginning in (b"ghp_", b"gho_", b"ghs_", b"ghu_", b"ghr_", b"hf_")
    },
    b"github_pat_": re.compile(rb"github_pat_[A-Za-z0-9_]{20,255}"),
    b"glpat-": re.compile(rb"glpat-[A-Za-z0-9_-]{20,64}"),
    b"sk-": re.compile(rb"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,255}"),
    b"AKIA": re.compile(rb"(?<![A-Za-z0-9])AKIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    b"xox": re.compile(rb"(?<![A-Za-z0-9])xox[abprs]-[A-Za-z0-9-]{10,255}"),
    b"eyJ": re.compile(
        rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,2048}\.[A-Za-z0-9_-]{10,2048}(\.[A-Za-z0-9_-]{0,1024})?"
    ),
}
#: Programs and raw traces: nothing in them was typed by a person, and a changed byte would spoil them.
_BINARY: Final = (".att", ".out")


@dataclass(frozen=True)
class KeptFile:
    """One file as it was handed over (`sha256`, `bytes`), and how many places were blotted out in the copy."""

    name: str
    sha256: str
    bytes: int
    redactions: int


def capture_digest(run: Run) -> str:
    """SHA-256 over the digests of the files a run is read from: the same for the same content, whatever its names."""
    digests = sorted(file_digest(path) for part in run.parts for path in part.files)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def copy_capture(run: Run, folder: Path, workload: str | None) -> None:
    """Fill `folder` with the run's files, minus secrets, and the list of them. CaptureError when one cannot be copied.

    Files of the run that no reader takes are kept where they may be of use later (raw thread traces, code objects).
    """
    kept = [_copied(path, _name(path, run), folder / FILES_FOLDER) for path in _kept_paths(run)]
    listed = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "writer": f"aaco_pipeline {__version__}",
        "workload": workload,
        "capture_digest": capture_digest(run),
        "files": [vars(one) for one in kept],
        "unread": [{"name": _name(one.path, run), "reason": one.reason} for one in run.unread],
    }
    (folder / LIST_FILE).write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")


def without_tokens(content: bytes) -> tuple[bytes, int]:
    """The content with what looks like a well-known token replaced by as many asterisks, and how often that was."""
    hits = 0
    for beginning, pattern in _TOKENS.items():
        if beginning not in content:
            continue
        content, count = pattern.subn(lambda found: b"*" * len(found[0]), content)
        hits += count
    return content, hits


def _kept_paths(run: Run) -> Sequence[Path]:
    read = [path for part in run.parts for path in part.files]
    beside = [one.path for one in run.unread if one.path.suffix in _BINARY or one.path.name.startswith(STATISTICS)]
    return [*read, *(path for path in beside if path.is_file() and not path.is_symlink())]


def _name(path: Path, run: Run) -> str:
    inside = path.relative_to(run.folder) if path != run.folder else Path(path.name)
    # A format that is a folder keeps the folder's name.
    folder_format = run.folder.is_dir() and any(part.files and part.name == run.folder.name for part in run.parts)
    return (Path(run.folder.name) / inside).as_posix() if folder_format else inside.as_posix()


def _copied(path: Path, name: str, folder: Path) -> KeptFile:
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise CaptureError(f"{path}: its place would be outside the capture; not taken")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest, size, redactions = _copy(path, target)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be copied: {error.strerror or error}") from error
    return KeptFile(name, digest, size, redactions)


def _copy(path: Path, target: Path) -> tuple[str, int, int]:
    """Copy a file minus secrets; its digest, size and number of redactions."""
    digest, size = file_digest(path), path.stat().st_size
    if path.suffix in _BINARY:
        shutil.copyfile(path, target)
        return digest, size, 0
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP
    plain = target.with_name(f"{target.name}.unpacked")
    limit = Limits().file_bytes
    try:
        with gzip.open(path) if packed else path.open("rb") as source, plain.open("wb") as copy:
            hits = _filtered(source, copy, limit, path)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        # A cut or damaged file is its reader's to judge; nothing in it was looked at, so nothing of it is kept.
        plain.unlink(missing_ok=True)
        raise CaptureError(f"{path}: cannot be unpacked: damaged or cut; copy the file again") from None
    hits += without_environment(plain, path)
    if packed and not hits:
        plain.unlink()
        shutil.copyfile(path, target)
    elif packed:
        with plain.open("rb") as source, gzip.GzipFile(target, "wb", compresslevel=1, mtime=0) as copy:
            shutil.copyfileobj(source, copy, _CHUNK_BYTES)
        plain.unlink()
    else:
        plain.rename(target)
    return digest, size, hits


def _filtered(source: gzip.GzipFile | IO[bytes], copy: IO[bytes], limit: int, path: Path) -> int:
    """Copy a stream without tokens, holding back the end of each piece for a token that goes on in the next."""
    hits = taken = 0
    held = b""
    while piece := source.read(_CHUNK_BYTES):
        taken += len(piece)
        if taken > limit:
            raise CaptureError(f"{path}: more than {limit} bytes when unpacked; not taken")
        content, count = without_tokens(held + piece)
        hits += count
        copy.write(content[:-_LONGEST_TOKEN_BYTES])
        held = content[-_LONGEST_TOKEN_BYTES:]
    copy.write(held)
    return hits


def without_environment(copy: Path, path: Path) -> int:
    """Reduce the environments in the copy of a rocpd database to what may be known; how many were reduced."""
    with copy.open("rb") as stream:
        if stream.read(len(_SQLITE)) != _SQLITE:
            return 0
    reduced = 0
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA secure_delete = ON")
            named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'rocpd_info_process%'"
            for (table,) in database.execute(named).fetchall():
                quoted = '"' + str(table).replace('"', '""') + '"'
                for row, text in database.execute(f"SELECT rowid, environment FROM {quoted}").fetchall():
                    kept = json.dumps(_allowed(text))
                    if kept != text:
                        database.execute(f"UPDATE {quoted} SET environment = ? WHERE rowid = ?", (kept, row))
                        reduced += 1
    except sqlite3.Error as error:
        # Not to be kept with an environment that nobody could look at. What is wrong with it, its reader knows best.
        with opened(path, Limits()) as damaged_database:
            damaged_database.sets()
        raise damaged(path, error) from None
    return reduced


def _allowed(text: object) -> dict[str, str]:
    try:
        variables = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(variables, dict):
        return {}
    ranks = {name: str(variables[name]) for name in RANK_VARIABLES if str(variables.get(name, "")).isdigit()}
    return {**safe_environment(variables), **ranks}
