"""Reads the sets of hardware counters and the slots of the hardware blocks from `configs/counter_sets.yaml`.

What a set means on an architecture is `aaco_pipeline.resources.rocprofv3.counter_groups`; how rocprofv3 is asked for a
group is `aaco_pipeline.resources.rocprofv3.command`.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from aaco_pipeline.resources.configuration import Form, expecting, load_form
from aaco_pipeline.resources.project import DEFAULTS
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

COUNTER_SETS_FILE: Final = "counter_sets.yaml"


def load_counter_sets(path: Path) -> CounterSets:
    """The counter sets of the file at `path`, or the package's where there is none. UsageError naming file and key."""
    file = load_form(path, _File) or load_form(DEFAULTS / "configs" / COUNTER_SETS_FILE, _File)
    assert file is not None
    sets: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in file.counter_sets}
    for name, entries in file.counter_sets.items():
        for architecture, counters in ((gfx, one.counters) for one in entries for gfx in one.architectures):
            sets[name][architecture] = (*sets[name].get(architecture, ()), *counters)
    return CounterSets(str(path), sets, {gfx: one.blocks for one in file.slots for gfx in one.architectures})


_Name = Annotated[
    str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9_]*$"), expecting("a name of letters, digits and '_'")
]
_Architectures = list[
    Annotated[str, StringConstraints(pattern="^gfx[0-9a-f]+$"), expecting("an architecture, such as gfx942")]
]


class _Slots(Form):
    architectures: _Architectures
    source: str
    blocks: dict[_Name, Annotated[int, Field(ge=1), expecting("how many counters fit, 1 or more")]]


class _Entry(Form):
    architectures: _Architectures
    counters: Annotated[list[_Name], Field(min_length=1), expecting("a list of counters, at least one")]


class _File(Form):
    counter_sets: dict[_Name, list[_Entry]]
    slots: list[_Slots] = Field(default=[])
