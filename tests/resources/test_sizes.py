"""No module of the room is too long to be read at a sitting."""

from pathlib import Path
from typing import Final

import pytest

import aaco_pipeline.resources
from tests.places import ROOT

ROOM: Final = Path(aaco_pipeline.resources.__file__).parent
MOST_LINES: Final = 400
#: Single scripts: with -P the interpreter does not look beside them for modules, so nothing there can stand in for one.
SCRIPTS: Final = {"measure/inference_worker.py", "calibrate/worker.py"}


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_unless_it_has_to_be_one_file(path: Path) -> None:
    if path.relative_to(ROOM).as_posix() not in SCRIPTS:
        assert len(path.read_text().splitlines()) <= MOST_LINES
