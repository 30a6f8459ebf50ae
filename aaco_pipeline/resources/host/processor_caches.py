"""The caches of this host's processor by level, as the kernel states them, and which CPUs share each."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.host.kernel_files import text_of

_CPUS: Final = Path("/sys/devices/system/cpu")
_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One level: bytes of one cache, and the CPUs that share it, for each of the caches of that level."""

    level: int
    size_bytes: int
    groups: tuple[frozenset[int], ...]

    def threads_sharing(self, cpus: Collection[int]) -> int:
        """The most of `cpus` that share one cache."""
        return max((len(group & set(cpus)) for group in self.groups), default=0)

    def touched(self, cpus: Collection[int]) -> int:
        """How many caches of this level `cpus` have between them."""
        return sum(1 for group in self.groups if group & set(cpus))


def caches(cpus: Collection[int], folder: Path = _CPUS) -> tuple[Cache, ...]:
    """The data and unified caches of these CPUs by level, as the kernel states them; empty where it does not."""
    found: dict[int, tuple[int, set[frozenset[int]]]] = {}
    for cpu in sorted(cpus):
        for index in sorted((folder / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
            level, size = _text(index / "level"), _SIZE.fullmatch(_text(index / "size"))
            shared = cpu_list(_text(index / "shared_cpu_list"))
            if _text(index / "type") in ("Data", "Unified") and level.isdigit() and size is not None and cpu in shared:
                amount = int(size[1]) * _FACTORS[size[2]]
                known, groups = found.setdefault(int(level), (amount, set()))
                # Cores of two kinds have caches of two sizes: what fits the smaller fits all.
                found[int(level)] = (min(known, amount), groups | {shared})
    return tuple(
        Cache(level, size, tuple(sorted(groups, key=min))) for level, (size, groups) in sorted(found.items()) if size
    )


def cpu_list(text: str) -> frozenset[int]:
    """The numbers that the kernel writes as `0-3,8`; none when it is not of that form."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return frozenset()
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _text(path: Path) -> str:
    return text_of(path) or ""
