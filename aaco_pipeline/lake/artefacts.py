"""Files that the lake keeps because a measurement must be repeatable: models of baselines and builds, each by content.

Equal content under equal names is kept once. What is in such a file is not looked at here.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.files import file_digest, lake_errors, make_folder, sync_file, sync_folder
from aaco_pipeline.lake.writers import temporary_beside

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
        folder = lake / ARTEFACTS / _digest(names)
        if not folder.is_dir():
            make_folder(folder.parent)
            temporary = temporary_beside(folder)
            temporary.mkdir()
            try:
                for name, one in names.items():
                    target = temporary / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(one, target)
                    sync_file(target)
                sync_folder(temporary)
                _appear(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        os.utime(folder)  # whoever tidies up leaves alone what was kept a moment ago and is not named yet
    return (folder / file.name).relative_to(lake)


def unnamed_artefacts(lake: Path, named: Collection[str]) -> list[Path]:
    """The folders of artefacts in which lies none of the files `named`, which are relative to the lake; sorted."""
    needed = {(lake / one).parent for one in named}
    return sorted(one for one in (lake / ARTEFACTS).glob("[!.]*") if one.is_dir() and one not in needed)


def drop_artefact(folder: Path) -> None:
    """Remove an artefact's folder at once: half of one would be taken for all of it."""
    with lake_errors(folder):
        folder.rename(going := temporary_beside(folder))
        shutil.rmtree(going)


def _digest(names: dict[str, Path]) -> str:
    """Of names and contents: the same graph with other weights beside it is another artefact."""
    listed = [f"{file_digest(one)}  {name}\n" for name, one in sorted(names.items())]
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def _appear(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # where it is, another process was as quick to keep the same
            raise
    sync_folder(folder.parent)
