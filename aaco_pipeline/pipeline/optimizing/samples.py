"""Copies of the sample kernels with their harnesses, for a person to try `aaco optimize` on."""

from importlib import resources
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError

_PACKAGE: Final = "aaco_pipeline.optimization.samples"


def copy_samples(folder: Path) -> list[Path]:
    """Copy every sample to a folder, which is made; the sources. UsageError where a file there is another already."""
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
