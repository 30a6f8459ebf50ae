"""Where tests find the project's own files, and the real captures that are not part of it."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIGS: Final = ROOT / "configs"
#: Real captures, counters and sessions; a test that needs one skips with a reason where the folder is absent.
SHARED: Final = Path(os.environ.get("AACO_SHARED") or ROOT.parent / "shared")
