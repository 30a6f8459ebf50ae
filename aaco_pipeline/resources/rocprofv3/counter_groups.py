"""Resolve named sets of hardware counters for an architecture, and group counters that fit into one run.

Uses only the standard library, because the recorder's archive includes it with the sets as JSON. The sets and the slots
of the hardware blocks are data in `configs/counter_sets.yaml`, which `aaco_pipeline.resources.configuration` reads.
"""

import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.errors import UnavailableError, UsageError

#: The archive's file with the sets, next to this module.
PACKED: Final = "packed_counter_sets.json"
#: Counters whose prefix differs from the block whose slots they take.
_SHARED_SLOTS: Final = {"SQC": "SQ"}


@dataclass(frozen=True)
class CounterSets:
    """Counters by set and architecture, and slots by architecture; `place` is the file to extend."""

    place: str
    sets: Mapping[str, Mapping[str, tuple[str, ...]]]
    slots: Mapping[str, Mapping[str, int]]

    def groups(self, names: str, architecture: str) -> tuple[tuple[str, ...], ...]:
        """Return the counters of the comma-separated sets `names`, one group for each run on that architecture.

        Raises UsageError for an unknown set, and UnavailableError if a set has no counters for the architecture.
        """
        counters: list[str] = []
        for name in self.named(names):
            if architecture not in self.sets[name]:
                known = ", ".join(sorted(self.sets[name]))
                raise UnavailableError(
                    f"counters: the set {name} names none for {architecture}, only for {known}; "
                    f"add them to {self.place} (`aaco init` writes one to edit) or leave --counters out"
                )
            counters += self.sets[name][architecture]
        return counter_groups(counters, self.slots.get(architecture, {}))

    def named(self, names: str) -> tuple[str, ...]:
        """Return the names of the sets in `names`; UsageError for one that the file does not define."""
        listed = tuple(part.strip() for part in names.split(","))
        for name in listed:
            if name not in self.sets:
                raise UsageError(
                    f"counters: unknown set {name!r}; expected one or several of {', '.join(self.sets)}, "
                    f"or add it to {self.place} (`aaco init` writes one to edit)"
                )
        return listed


def counter_groups(counters: Sequence[str], slots: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Group the counters greedily in their order: each once, with no block over its `slots`.

    A counter of a block with unknown slots gets a group of its own, because it may be derived from several others.
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
    """Return the hardware block whose slots a counter takes, by its prefix: `TCC` for `TCC_HIT_sum`."""
    prefix = counter.partition("_")[0]
    return _SHARED_SLOTS.get(prefix, prefix)


def packed(sets: CounterSets) -> bytes:
    """Return the sets in the archive's format."""
    return json.dumps({"sets": sets.sets, "slots": sets.slots}, sort_keys=False).encode()


def unpacked() -> CounterSets:
    """Return the sets in the archive. UnavailableError if this is not an archive."""
    try:
        content = pkgutil.get_data(__package__, PACKED)
    except OSError:
        content = None
    if content is None:
        raise UnavailableError("counters: only the recorder's archive carries the sets of AMD's; use `aaco record`")
    document = json.loads(content)
    sets = {
        name: {gfx: tuple(counters) for gfx, counters in by_architecture.items()}
        for name, by_architecture in document["sets"].items()
    }
    return CounterSets("configs/counter_sets.yaml of the project that wrote this archive", sets, document["slots"])
