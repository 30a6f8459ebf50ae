"""Temporary working folders in the cache for searches and jobs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aaco_pipeline.cache_folder import own_folder, private_folder
from aaco_pipeline.lake.files import TEMPORARY_PREFIX, lake_errors, temporary_beside, writer_is_gone


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty folder below `name` that is deleted after the block, together with those of killed processes."""
    place = own_folder(name) or private_folder()
    with lake_errors(place):
        for left in place.glob(f"{TEMPORARY_PREFIX}*"):
            if writer_is_gone(left):
                shutil.rmtree(left, ignore_errors=True)
        folder = temporary_beside(place / name)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
