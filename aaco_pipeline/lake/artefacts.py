"""Artefacts: models of baselines and builds, stored by content hash so that measurements can be repeated.

Equal content under equal names is stored once, unless a fresh copy is requested.
"""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.files import copy_file, file_digest, lake_errors
from aaco_pipeline.lake.storage import STORAGE

ARTEFACTS: Final = "artefacts"
#: Folder of builds; interpreters are built in place and stay there, because most cannot be moved.
BUILDS: Final = "builds"


def keep_artefact(lake: Path, file: Path, beside: Sequence[Path] = ()) -> Path:
    """Copy a file, and the files `beside` it that it needs, into the lake; return the path relative to the lake.

    Its folder is named by the digest of these files and their names, and appears atomically. LakeError if a file is
    unreadable or the lake cannot be written.
    """
    with lake_errors(file):
        names = {one.relative_to(file.parent).as_posix(): one for one in (file, *beside)}
        folder, storage = lake / ARTEFACTS / _digest(names), STORAGE
        if storage.state(folder) is None:
            with storage.new_folder(folder) as temporary:
                for name, one in names.items():
                    copy_file(one, temporary / name)
                try:
                    storage.place(temporary, folder)
                except OSError:
                    if storage.state(folder) is None:  # otherwise another process has just stored the same files
                        raise
        storage.touch(folder)  # cleanup skips recent artefacts, which nothing may reference yet
    return (folder / file.name).relative_to(lake)


def copy_artefact(lake: Path, file: Path, beside: Sequence[Path], name: str) -> Path:
    """Make a new copy of a file, and the files `beside` it, in the artefacts' folder `name`; return its path.

    Unlike `keep_artefact`, it never reuses an existing copy, so the disk blocks are new. LakeError as there.
    """
    with lake_errors(file):
        folder, storage = lake / ARTEFACTS / name, STORAGE
        storage.remove_folder(folder)
        with storage.new_folder(folder) as temporary:
            for one in (file, *beside):
                copy_file(one, temporary / one.relative_to(file.parent))
            storage.place(temporary, folder)
        return folder / file.name


def artefact_digest(file: Path, beside: Sequence[Path] = ()) -> str:
    """Digest an artefact by the contents of its files; the name of the main file does not matter.

    This is the SHA-256 of the file. With files `beside` it, it is the SHA-256 of a text: a line with the file's
    SHA-256, then one line per other file, sorted by name: its SHA-256, two spaces, and its name relative to the file.
    OSError when a file cannot be read.
    """
    own = file_digest(file)
    if not beside:
        return own
    names = {one.relative_to(file.parent).as_posix(): one for one in beside}
    return hashlib.sha256(f"{own}\n{_listed(names)}".encode()).hexdigest()


def unnamed_artefacts(lake: Path, named: Collection[str]) -> list[Path]:
    """Return sorted artefact folders without any of the files `named`, which are relative to the lake."""
    needed = {(lake / one).parent for one in named}
    listed = STORAGE.listed(lake / ARTEFACTS)
    folders = (lake / ARTEFACTS / one.name for one in listed if one.is_folder and not one.name.startswith("."))
    return [one for one in folders if one not in needed]


def drop_artefact(folder: Path) -> None:
    """Remove an artefact's folder atomically: a partial folder would be mistaken for a complete one."""
    with lake_errors(folder):
        STORAGE.remove_folder(folder)


def _digest(names: dict[str, Path]) -> str:
    """Digest names and contents: the same graph with different weights is another artefact."""
    return hashlib.sha256(_listed(names).encode()).hexdigest()


def _listed(names: dict[str, Path]) -> str:
    return "".join(f"{file_digest(one)}  {name}\n" for name, one in sorted(names.items()))
