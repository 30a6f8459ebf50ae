"""Files that the lake keeps because a measurement must be repeatable: models of baselines and builds, each by content.

Equal content under equal names is kept once, but for a copy that is wanted for being one. What is in such a file is not
looked at here.
"""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.files import copy_file, file_digest, lake_errors
from aaco_pipeline.lake.storage import STORAGE

ARTEFACTS: Final = "artefacts"
#: Where builds are made, and where an interpreter that was made stays, because most cannot be moved.
BUILDS: Final = "builds"


def keep_artefact(lake: Path, file: Path, beside: Sequence[Path] = ()) -> Path:
    """Copy a file into the lake, with the files `beside` it that it needs; where it lies now, relative to the lake.

    Its folder is named by the digest of all these files and their names, and appears at once and whole. LakeError when
    one of them cannot be read or the lake cannot be written.
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
                    if storage.state(folder) is None:  # where it is, another process was as quick to keep the same
                        raise
        storage.touch(folder)  # whoever tidies up leaves alone what was kept a moment ago and is not named yet
    return (folder / file.name).relative_to(lake)


def copy_artefact(lake: Path, file: Path, beside: Sequence[Path], name: str) -> Path:
    """Copy a file anew, with the files `beside` it, into the artefacts' folder `name`, in place of what was there.

    Unlike `keep_artefact` it never takes a copy that there is already: the blocks of the disk are fresh. LakeError as
    there. Where the copy lies.
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
    """What makes two artefacts the same, in hexadecimal digits: their contents, and not what the file is called.

    The SHA-256 of the file; with files `beside` it the SHA-256 of a text: the file's SHA-256 in a line by itself, then
    a line for each of the others, sorted by name, with its SHA-256, two spaces and its name as seen from the file.
    OSError when one of them cannot be read.
    """
    own = file_digest(file)
    if not beside:
        return own
    names = {one.relative_to(file.parent).as_posix(): one for one in beside}
    return hashlib.sha256(f"{own}\n{_listed(names)}".encode()).hexdigest()


def unnamed_artefacts(lake: Path, named: Collection[str]) -> list[Path]:
    """The folders of artefacts in which lies none of the files `named`, which are relative to the lake; sorted."""
    needed = {(lake / one).parent for one in named}
    listed = STORAGE.listed(lake / ARTEFACTS)
    folders = (lake / ARTEFACTS / one.name for one in listed if one.is_folder and not one.name.startswith("."))
    return [one for one in folders if one not in needed]


def drop_artefact(folder: Path) -> None:
    """Remove an artefact's folder at once: half of one would be taken for all of it."""
    with lake_errors(folder):
        STORAGE.remove_folder(folder)


def _digest(names: dict[str, Path]) -> str:
    """Of names and contents: the same graph with other weights beside it is another artefact."""
    return hashlib.sha256(_listed(names).encode()).hexdigest()


def _listed(names: dict[str, Path]) -> str:
    return "".join(f"{file_digest(one)}  {name}\n" for name, one in sorted(names.items()))
