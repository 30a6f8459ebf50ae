"""What a recorded folder is known by."""

from typing import Final

FORMAT: Final = "aaco-program"
CAPTURE_FILE: Final = "capture.json"
