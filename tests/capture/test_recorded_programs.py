"""Programs with a known cause, recorded on a real GPU: the answer's class is the one they were built for, and what it
says a fix saves at most bounds what removing the cause alone has gained, closely.

The recordings are the project's own: `benchmarks/live/h200_programs.py` on an NVIDIA H100, by `aaco record`; paths of
the commands are relative to the checkout. loops.json holds what the loops of all unprofiled runs took, as the programs
said, as they are and with the cause removed.
"""

import json
import statistics
import tarfile
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.lake.store import TraceLake
from benchmarks.live.judge import Gain, right, taken_in
from benchmarks.live.programs.catalogue import HELD_OUT, PROGRAMS, Program

FOLDER: Final = Path(__file__).parent / "recorded_programs"
LOOPS: Final = json.loads((FOLDER / "loops.json").read_text())
#: Bounded, but by more than a quarter above what was gained.
LOOSE: Final = frozenset({"gradient_norms"})
ARCHIVES: Final = {
    **dict.fromkeys((program.name for program in PROGRAMS), "programs"),
    **dict.fromkeys((program.name for program in HELD_OUT), "held_out"),
}


#: In CI one program of each cause that an answer can name; the others at night.
OF_EACH_CAUSE: Final = {(one.classes, one.resources): one.name for one in reversed(PROGRAMS)}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, id=one.name, marks=() if one.name in OF_EACH_CAUSE.values() else pytest.mark.nightly)
        for one in (*PROGRAMS, *HELD_OUT)
    ],
)
def test_the_cause_is_named_and_what_its_removal_gained_is_bounded(program: Program, tmp_path: Path) -> None:
    name = f"{program.name}-recorded"
    with tarfile.open(FOLDER / f"{ARCHIVES[program.name]}.tar.xz") as archive:
        members = [one for one in archive if one.name.split("/")[0] == name]
        archive.extractall(tmp_path / "recorded", members, filter="data")
    lake = TraceLake(tmp_path / "lake")
    (session,) = taken_in(lake, tmp_path / "recorded" / name)
    answer = lake.read("answers", session).row(0, named=True)
    assert right(program, answer), (answer["class"], answer["resource"])
    if not program.bounded:
        return
    loops = LOOPS[program.name]
    gained = 1 - statistics.median(loops["without_the_cause_ns"]) / statistics.median(loops["as_it_is_ns"])
    saves, period = answer["saves_unprofiled_ns"], answer["unprofiled_period_ns"]
    if saves is None:
        saves, period = answer["saves_at_most_ns"], answer["window_ns"]
    bound = saves / period
    judged = Gain(bound, gained, "", (0, 0))
    assert judged.bounds, (bound, gained)
    assert judged.is_close == (program.name not in LOOSE), (bound, gained)
