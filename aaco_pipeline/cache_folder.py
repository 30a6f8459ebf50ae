"""The folder for what can be made again at any time: generated models, compiled templates."""

import os
from pathlib import Path

from aaco_pipeline.errors import UsageError


def default_cache_dir() -> Path:
    """Where is kept what can be made again: `$AACO_CACHE`, else `$XDG_CACHE_HOME/aaco`, else `~/.cache/aaco`."""
    if chosen := os.environ.get("AACO_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # the convention says to ignore a relative one
        return Path(shared) / "aaco"
    try:
        return Path.home() / ".cache" / "aaco"
    except RuntimeError as error:
        raise UsageError(
            "no home folder to keep files in that can be made again; set AACO_CACHE to a folder"
        ) from error


def own_cache_folder(name: str) -> Path | None:
    """A folder in the cache that this person alone may write to, made where it is missing; None where none can be.

    One that others may write to is not used: what they put there would be believed.
    """
    try:
        folder = default_cache_dir() / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
    except (OSError, UsageError):
        return None
    return folder if is_own and os.access(folder, os.W_OK) else None
