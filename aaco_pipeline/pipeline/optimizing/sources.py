"""Copy sample kernels for the user to try, and replace the user's source by an accepted patch.

Nothing else writes outside the lake and the cache on behalf of a search.
"""

import difflib
import hashlib
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.files import sync_folder, temporary_beside


def unified_diff(before: bytes, after: bytes, name: str) -> bytes:
    """A diff that `patch -p1` and `git apply` take, of files of any bytes; empty when they are the same."""
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), f"a/{name}".encode(), f"b/{name}".encode()
    )
    return b"".join(one if one.endswith(b"\n") else one + b"\n\\ No newline at end of file\n" for one in lines)


def read_source(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
    """The bytes of a source. UsageError when it cannot be read."""
    try:
        return read(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file of HIP or CUDA source") from error


def replace_source(path: Path, before_sha256: str, after: bytes) -> None:
    """Put `after` in place of a source at once: a kill leaves the one or the other, whole.

    A link is followed, and the file keeps its permissions. UsageError, and the file as it is, when it has changed since
    it was read or cannot be replaced.
    """
    try:
        file = path.resolve(strict=True)
        temporary = temporary_beside(file)
        try:
            with temporary.open("xb") as stream:
                stream.write(after)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(file.stat().st_mode & 0o7777)
            if hashlib.sha256(file.read_bytes()).hexdigest() != before_sha256:
                raise UsageError(f"{path} was changed while the search ran, and stays as it is")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(file.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be replaced: {error.strerror}; it stays as it is") from error


def _lines(content: bytes) -> list[bytes]:
    """Lines end at `\\n` alone, as `patch` sees them."""
    return list(_split(content))


def _split(content: bytes) -> Iterator[bytes]:
    *whole, rest = content.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


_PACKAGE: Final = "aaco_pipeline.optimization.samples"


def copy_samples(folder: Path) -> list[Path]:
    """Copy every sample to a folder, which is made; the sources. UsageError where a file there is another already."""
    found = [one for one in resources.files(_PACKAGE).iterdir() if one.name.endswith((".hip", "_harness.py"))]
    files = {folder / one.name: one.read_bytes() for one in found}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            if path.exists() and path.read_bytes() != content:
                raise UsageError(f"{path} is there and differs; give an empty folder")
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; give a folder that can be written") from error
    return sorted(path for path in files if path.suffix == ".hip")
