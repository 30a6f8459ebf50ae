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
