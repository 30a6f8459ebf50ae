"""How rocprofv3's results file is recognized: by its first key.

Reading it is `aaco_pipeline.formats.rocprofv3_json.reading`.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes

ROOT: Final = "rocprofiler-sdk-tool"
_PROBED_BYTES: Final = 4096


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a results file by its first key; None for anything else. Reads at most 4 KiB."""
    head = first_bytes(path, _PROBED_BYTES).lstrip()
    if head.startswith(b"{") and head[1:].lstrip().startswith(f'"{ROOT}"'.encode()):
        return DetectedFormat("rocprofv3-json", "rocprofv3 results (JSON)")
    return None
