"""By what a CUPTI stream is recognized."""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes

#: How every stream begins.
MAGIC: Final = b"AACOCUPT"


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a stream by its first bytes; None for anything else."""
    if first_bytes(path, len(MAGIC)) == MAGIC:
        return DetectedFormat("cupti", "CUPTI stream of aaco record")
    return None
