"""Digests of this package's code by its rooms: what a module imports from decides what it computes."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(r"^\s*from aaco_pipeline\.([\w.]+) import", re.MULTILINE)


def imported_rooms(text: str) -> set[str]:
    """The rooms, or halls of rooms, that a module's text imports from: `errors`, `analysis/timeline`."""
    return {"/".join(name.split(".")[:2]) for name in _IMPORT.findall(text)}


@cache
def room_digest(package: Path, room: str) -> str:
    """The SHA-256 of every file of a room, or of the module of that name."""
    place = package / room
    files = sorted(place.rglob("*.*")) if place.is_dir() else [place.with_suffix(".py")]
    files = [file for file in files if file.is_file() and "__pycache__" not in file.parts]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
