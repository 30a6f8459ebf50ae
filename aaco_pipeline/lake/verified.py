"""Verify the bytes of tables and raw captures: a process hashes each file when it first reads it.

Table digests come from the manifest; those of a raw capture come from a list in its folder. All table reads go through
`require_intact`. `aaco_pipeline.lake.health` repairs damage.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import TEMPORARY_PREFIX, file_digest, lake_errors, stream_digest
from aaco_pipeline.lake.layout import owner_of
from aaco_pipeline.lake.manifest import Entry

#: The list in a raw capture's folder: digests of all its other files.
RAW_LIST: Final = "digests.json"
_RAW_LIST_VERSION: Final = 1
#: A process that verifies more files than this forgets the earliest ones.
_REMEMBERED: Final = 1 << 17

_Identity = tuple[int, int, int, int]
#: Digests of files by identity, and of sections of files by identity and offset.
_DIGESTS: Final[dict[tuple[int, ...], str]] = {}
_AT_ONCE_BYTES: Final = 1 << 20
_REBUILDING: Final = "`aaco doctor --mend` rebuilds it from the raw capture"


def require_intact(lake: Path, published: Entry) -> Path:
    """Return the file of a published table after verifying its digest. LakeError if it is torn or missing."""
    path = lake / published.file
    with lake_errors(path):
        try:
            if _digest(path, published.bytes) == published.sha256:
                return path
        except FileNotFoundError as error:
            raise missing(path) from error
    raise torn(path)


def require_section(path: Path, size: int, section: tuple[int, int], sha256: str, told: str) -> None:
    """Verify a section (offset and length) of a file of `size` bytes; `told` describes the content."""
    begin, length = section
    with lake_errors(path):
        try:
            known = _identity(path.stat())
            if known[2] == size:
                key = (*known, begin)
                if key not in _DIGESTS:
                    _remember(key, section_digest(path, begin, length))
                if _DIGESTS[key] == sha256:
                    return
        except FileNotFoundError as error:
            raise LakeError(f"{path}: published but missing ({told}); {_REBUILDING}") from error
    raise LakeError(f"{path}: its bytes are not those published ({told}); {_REBUILDING}")


def section_digest(path: Path, begin: int, length: int) -> str:
    """Compute the SHA-256 of a section of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        stream.seek(begin)
        while length > 0 and (read := stream.read(min(length, _AT_ONCE_BYTES))):
            digest.update(read)
            length -= len(read)
    return digest.hexdigest()


def missing(path: Path) -> LakeError:
    """Return the error for a published file that does not exist."""
    return LakeError(f"{path}: published but missing ({described(path)}); {_mending(path)}")


def torn(path: Path) -> LakeError:
    """Return the error for a file whose bytes differ from those published."""
    return LakeError(f"{path}: its bytes are not those published ({described(path)}); {_mending(path)}")


def described(path: Path) -> str:
    """Describe a published file by the table, session or campaign, and stage in its path."""
    scope, identifier = owner_of(path)
    return f"table {path.parent.parent.name} of {scope} {identifier}, stage {path.name.rpartition('-')[0]}"


def raw_digests(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of every file of a raw capture by its name, excluding the list itself."""
    found = {}
    for at, _, names in os.walk(folder):
        for path in (Path(at, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if is_of_capture(name) and path.is_file() and not path.is_symlink():
                found[name] = file_digest(path)
    return found


def is_of_capture(name: str) -> bool:
    """Return whether a name in a raw folder belongs to the capture, rather than being the list or a temporary file."""
    return name != RAW_LIST and not name.startswith(TEMPORARY_PREFIX)


def raw_list(digests: Mapping[str, str]) -> bytes:
    """Encode the list; the same files give the same bytes."""
    document = {"list_version": _RAW_LIST_VERSION, "sha256": digests}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def require_raw_intact(folder: Path, digests: Mapping[str, str]) -> bool:
    """Verify a raw folder by its list and `digests`, LakeError if they differ; False if it has no list.

    A folder that is still being filled, or was filled by an early version, has no list.
    """
    path = folder / RAW_LIST
    with lake_errors(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return False
    if content != raw_list(digests):
        raise LakeError(
            f"{folder}: {_difference(content, digests)}; it cannot be rebuilt: measure or ingest the session again"
        )
    return True


def _digest(path: Path, size: int) -> str | None:
    """Return the digest of a file, computed or cached; None if it has another size."""
    known = _identity(path.stat())
    if known[2] != size:
        return None
    if known not in _DIGESTS:
        with path.open("rb", buffering=0) as stream:
            known = _identity(os.fstat(stream.fileno()))
            digest = stream_digest(stream)
        _remember(known, digest)
    return _DIGESTS[known]


def _remember(key: tuple[int, ...], digest: str) -> None:
    if len(_DIGESTS) >= _REMEMBERED:
        _DIGESTS.clear()
    _DIGESTS[key] = digest


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _mending(path: Path) -> str:
    if owner_of(path)[0] == "campaign":
        return "publish it again"
    return _REBUILDING


def _difference(content: bytes, digests: Mapping[str, str]) -> str:
    """Describe how a raw capture differs from its list."""
    try:
        stated = json.loads(content)["sha256"]
        torn = [name for name in sorted(stated.keys() & digests.keys()) if stated[name] != digests[name]]
        gone, more = sorted(stated.keys() - digests.keys()), sorted(digests.keys() - stated.keys())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"its list {RAW_LIST} is torn"
    if torn:
        return f"the bytes of {torn[0]} are not those that {RAW_LIST} states"
    if gone:
        return f"{gone[0]} was received and is not there"
    return f"{more[0]} was not received with it" if more else f"its list {RAW_LIST} is torn"
