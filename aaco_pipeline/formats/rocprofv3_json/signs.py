"""How rocprofv3's results file is recognized: by its first key; and what its beginning states of its process.

Reading it is `aaco_pipeline.formats.rocprofv3_json.reading`.
"""

import json
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.formats.capture_tables import DetectedFormat, StatedProcess
from aaco_pipeline.formats.parsing.compression import first_bytes

ROOT: Final = "rocprofiler-sdk-tool"
_PROBED_BYTES: Final = 4096
#: The first process's metadata is a few kilobytes, most of them the command and what the tool was asked for.
_METADATA_BYTES: Final = 64 << 10
_METADATA: Final = '"metadata":'


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a results file by its first key; None for anything else. Reads at most 4 KiB."""
    head = first_bytes(path, _PROBED_BYTES).lstrip()
    if head.startswith(b"{") and head[1:].lstrip().startswith(f'"{ROOT}"'.encode()):
        return DetectedFormat("rocprofv3-json", "rocprofv3 results (JSON)")
    return None


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """The process that the first element's metadata state; none where these do not come first or are damaged."""
    head = first_bytes(path, _METADATA_BYTES).decode("utf-8", "replace")
    at = head.find(_METADATA)
    if at < 0:
        return ()
    try:
        found, _ = json.JSONDecoder().raw_decode(head, at + len(_METADATA) + _blanks(head[at + len(_METADATA) :]))
    except (ValueError, RecursionError):
        return ()
    return (_process(found),) if isinstance(found, dict) else ()


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())


def _process(metadata: dict[str, Any]) -> StatedProcess:
    node, settings = (value if isinstance(value := metadata.get(name), dict) else {} for name in ("node", "config"))
    command = metadata.get("command")
    output = settings.get("output_path")
    host = node.get("hostname")
    return StatedProcess(
        host=host if isinstance(host, str) else None,
        pid=_whole(metadata.get("pid")),
        command=" ".join(map(str, command)) if isinstance(command, list) and command else None,
        start_ns=_whole(metadata.get("init_time")),
        end_ns=_whole(metadata.get("fini_time")),
        output=output if isinstance(output, str) else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None
