"""Reading a small file of the kernel that may not be there; what it means is its reader's business."""

from pathlib import Path


def text_of(path: Path) -> str | None:
    """What the file holds, without white space around it; None when there is nothing, or nothing that may be read."""
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None  # the kernel has no such file here, or does not let us read it: the fact is unknown
