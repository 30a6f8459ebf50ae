"""Copy sample kernels for the user to try, and replace the user's source with the accepted version.

A search writes outside the lake and the cache only through this module.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.files import sync_folder, temporary_beside


def unified_diff(before: bytes, after: bytes, name: str) -> bytes:
    """Create a diff for `patch -p1` and `git apply` from files of any bytes; empty if they are equal."""
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), f"a/{name}".encode(), f"b/{name}".encode()
    )
    return b"".join(one if one.endswith(b"\n") else one + b"\n\\ No newline at end of file\n" for one in lines)


def read_source(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
    """Read a source; UsageError if it cannot be read."""
    try:
        return read(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file of HIP or CUDA source") from error


def replace_source(path: Path, before_sha256: str, after: bytes) -> None:
    """Replace a source atomically: after a kill, the file is either the complete old or the complete new version.

    Links are followed and permissions kept. UsageError, with the file untouched, if it has changed since it was read or
    cannot be replaced.
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
    """Split into lines that end only at `\\n`, as `patch` does."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


_PACKAGE: Final = "aaco_pipeline.optimization.samples"


def copy_samples(folder: Path) -> list[Path]:
    """Copy every sample to a folder and return the sources; UsageError if a different file already exists there."""
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
