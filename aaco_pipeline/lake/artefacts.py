"""Files that the lake keeps because a measurement must be repeatable: models of baselines, each by its own digest.

Equal content is kept once. What is in such a file is not looked at here.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.files import file_digest, lake_errors, make_folder, sync_file, sync_folder
from aaco_pipeline.lake.writers import temporary_beside

ARTEFACTS: Final = "artefacts"


def keep_artefact(lake: Path, file: Path, beside: Sequence[Path] = ()) -> Path:
    """Copy a file into the lake, with the files `beside` it that it needs; where it lies now, relative to the lake.

    Its folder is named by the file's digest and appears at once and whole.
    """
    with lake_errors(file):
        folder = lake / ARTEFACTS / file_digest(file)
        if not folder.is_dir():
            make_folder(folder.parent)
            temporary = temporary_beside(folder)
            temporary.mkdir()
            try:
                for one in (file, *beside):
                    target = temporary / one.relative_to(file.parent)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(one, target)
                    sync_file(target)
                sync_folder(temporary)
                temporary.rename(folder)
                sync_folder(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return (folder / file.name).relative_to(lake)
