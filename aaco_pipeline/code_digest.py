"""Digest this package's code per top-level package, because a module's results depend on its imports."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(r"^\s*from aaco_pipeline\.([\w.]+) import", re.MULTILINE)


def imported_rooms(text: str) -> set[str]:
    """Return the packages that a module imports from, at most two levels deep: `errors`, `analysis/timeline`."""
    return {"/".join(name.split(".")[:2]) for name in _IMPORT.findall(text)}


@cache
def room_digest(package: Path, room: str) -> str:
    """Compute the SHA-256 of all files of a package, or of the module with that name."""
    place = package / room
    files = sorted(place.rglob("*.*")) if place.is_dir() else [place.with_suffix(".py")]
    files = [file for file in files if file.is_file() and "__pycache__" not in file.parts]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
