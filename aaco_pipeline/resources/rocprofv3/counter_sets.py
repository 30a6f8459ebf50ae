"""Which hardware counters a named set means on an architecture, and which of them fit into one run together.

The sets and the slots of the hardware blocks are data, in `configs/counter_sets.yaml`; how rocprofv3 is asked for a
group is `aaco_pipeline.resources.rocprofv3.command`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.configuration import Form, expecting, load_form
from aaco_pipeline.resources.project import DEFAULTS

COUNTER_SETS_FILE: Final = "counter_sets.yaml"
#: Counters whose name has another prefix than the block whose slots they take.
_SHARED_SLOTS: Final = {"SQC": "SQ"}


@dataclass(frozen=True)
class CounterSets:
    """Per set and per architecture the counters, per architecture the slots; `file` is where a person may add some."""

    file: Path
    sets: Mapping[str, Mapping[str, tuple[str, ...]]]
    slots: Mapping[str, Mapping[str, int]]

    def groups(self, names: str, architecture: str) -> tuple[tuple[str, ...], ...]:
        """The counters of the sets `names` (separated by commas), one group for each run on that architecture.

        UsageError for an unknown set; UnavailableError when a set names no counters for the architecture.
        """
        counters: list[str] = []
        for name in self.named(names):
            if architecture not in self.sets[name]:
                known = ", ".join(sorted(self.sets[name]))
                raise UnavailableError(
                    f"counters: the set {name} names none for {architecture}, only for {known}; "
                    f"add them to {self.file} (`aaco init` writes one to edit) or leave --counters out"
                )
            counters += self.sets[name][architecture]
        return counter_groups(counters, self.slots.get(architecture, {}))

    def named(self, names: str) -> tuple[str, ...]:
        """The names of the sets in `names`; UsageError for one that the file does not have."""
        listed = tuple(part.strip() for part in names.split(","))
        for name in listed:
            if name not in self.sets:
                raise UsageError(
                    f"counters: unknown set {name!r}; expected one or several of {', '.join(self.sets)}, "
                    f"or add it to {self.file} (`aaco init` writes one to edit)"
                )
        return listed


def counter_groups(counters: Sequence[str], slots: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """The counters in as few groups as going through them in order gives: each once, no block over its `slots`.

    A counter of a block without known slots gets a group of its own: it may be made of several others.
    """
    groups: list[list[str]] = []
    used: list[dict[str, int]] = []
    for counter in dict.fromkeys(counters):
        block = counter_block(counter)
        limit = slots.get(block)
        fitting = (n for n, taken in enumerate(used) if limit is not None and taken.get(block, 0) < limit)
        place = next((n for n in fitting if counter_block(groups[n][0]) in slots), None)
        if place is None:
            groups.append([counter])
            used.append({block: 1})
        else:
            groups[place].append(counter)
            used[place][block] = used[place].get(block, 0) + 1
    return tuple(tuple(group) for group in groups)


def counter_block(counter: str) -> str:
    """The hardware block whose slots a counter takes, by the prefix of its name: `TCC` of `TCC_HIT_sum`."""
    prefix = counter.partition("_")[0]
    return _SHARED_SLOTS.get(prefix, prefix)


def load_counter_sets(path: Path) -> CounterSets:
    """The counter sets of the file at `path`, or the package's where there is none. UsageError naming file and key."""
    file = load_form(path, _File) or load_form(DEFAULTS / "configs" / COUNTER_SETS_FILE, _File)
    assert file is not None
    sets: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in file.counter_sets}
    for name, entries in file.counter_sets.items():
        for architecture, counters in ((gfx, one.counters) for one in entries for gfx in one.architectures):
            sets[name][architecture] = (*sets[name].get(architecture, ()), *counters)
    return CounterSets(path, sets, {gfx: one.blocks for one in file.slots for gfx in one.architectures})


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
