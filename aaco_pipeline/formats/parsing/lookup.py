"""What a rocpd database says about processes, devices and names, and the dense numbers for its ids.

The events themselves are `aaco_pipeline.formats.rocpd.tables`'; opening the database is
`aaco_pipeline.formats.parsing.sqlite_database`'s.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from polars._typing import PolarsDataType

from aaco_pipeline.formats.parsing.json_document import parsed
from aaco_pipeline.formats.parsing.redaction import RANK_VARIABLES, safe_command, safe_environment
from aaco_pipeline.lake.contracts import polars_types

#: Below this an id is looked up in an array instead of searched for.
_LARGEST_DIRECT: Final = 1 << 22
_KIBIBYTE: Final = 1024

_PROCESS_SCHEMA: Final = polars_types("processes")
_DEVICE_SCHEMA: Final = polars_types(
    *(
        "devices",
        "device_id",
        "vendor",
        "arch",
        "product",
        "compute_units",
        "xcc_count",
        "simd_per_cu",
        "wavefront_size",
    ),
    *("max_clock_mhz", "memory_clock_mhz", "memory_bytes", "memory_bus_bits", "l2_bytes", "lds_bytes", "handle"),
)
_DEVICE_KEY_SCHEMA: Final = {
    "device_id": pl.Int32,
    "host": pl.String,
    "handle": pl.String,
    "agent_id": pl.Int64,
    "absolute_index": pl.Int64,
    "type_index": pl.Int64,
    "pci_address": pl.String,
}
_ENVIRONMENT_SCHEMA: Final = polars_types("environment")


class Lookup:
    """A column of values by id, applied to whole series at once."""

    def __init__(self, ids: Sequence[int], values: pl.Series) -> None:
        self._values = values
        keys = np.array(ids, np.int64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._direct: npt.NDArray[np.int64] | None = None
        if len(keys) and self._keys[0] >= 0 and self._keys[-1] < _LARGEST_DIRECT:
            self._direct = np.full(int(self._keys[-1]) + 1, -1, np.int64)
            self._direct[self._keys[::-1]] = self._order[::-1]  # of equal ids the first is meant

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, object]], dtype: PolarsDataType) -> "Lookup":
        """Of ids with their values; what is no id is passed over."""
        known = [(one, value) for one, value in pairs if isinstance(one, int)]
        return cls([one for one, _ in known], pl.Series([value for _, value in known], dtype=dtype))

    def applied(self, ids: pl.Series) -> pl.Series:
        """The value of each id; null for a null and for an id without a value."""
        if not len(self._keys):
            return pl.Series(ids.name, [None], dtype=self._values.dtype).new_from_index(0, len(ids))
        asked = ids.fill_null(-(2**63)).to_numpy()
        if self._direct is not None:
            inside = (asked >= 0) & (asked < len(self._direct))
            place = np.where(inside, self._direct[np.where(inside, asked, 0)], -1)
        else:
            found = np.minimum(np.searchsorted(self._keys, asked), len(self._keys) - 1)
            place = np.where(self._keys[found] == asked, self._order[found], -1)
        places = pl.Series(place)
        if (place < 0).any():
            places = places.set(places < 0, None)
        return self._values.gather(places)


class Numbering:
    """Dense numbers for ids; one that was not known gets the next number, so that no event is lost for it."""

    def __init__(self, known: Iterable[int] = ()) -> None:
        self.ids: list[int | None] = list(dict.fromkeys(known))
        self.known_count = len(self.ids)

    def applied(self, ids: pl.Series, *, keep_null: bool = False) -> pl.Series:
        """The number of each id as int32. A null is numbered like an unknown id, or stays null."""
        numbers = self.lookup().applied(ids)
        if not numbers.null_count():
            return numbers
        strangers = ids.filter(numbers.is_null()).unique(maintain_order=True).to_list()
        self.ids += [one for one in strangers if one not in self.ids and not (one is None and keep_null)]
        numbers = self.lookup().applied(ids)
        if None in self.ids:
            numbers = numbers.fill_null(self.ids.index(None))
        return numbers

    def unknown(self) -> list[tuple[int, int | None]]:
        """Number and id of each id that was not known beforehand."""
        return list(enumerate(self.ids))[self.known_count :]

    def lookup(self) -> Lookup:
        """The numbers by id."""
        return Lookup.of(((one, number) for number, one in enumerate(self.ids)), pl.Int32)


def names(rows: Iterable[Mapping[str, Any]], column: str) -> Lookup:
    """Text by id."""
    return Lookup.of(((row["id"], text(row[column])) for row in rows), pl.String)


def text(value: object) -> str | None:
    """A value of a text column, which SQLite lets be anything."""
    return None if value is None else value if isinstance(value, str) else str(value)


def integer(value: object) -> int | None:
    """The value when it is an integer that fits int64, else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits and isinstance(value, int) else None


def fields(value: object, depth: int) -> dict[str, Any]:
    """The JSON object a column holds as text; empty when it is none, is damaged or nests deeper than `depth`."""
    if not isinstance(value, str) or value in ("", "{}"):
        return {}
    marks = np.frombuffer(value.encode("utf-8", "replace"), np.uint8)
    steps = np.isin(marks, (0x5B, 0x7B)).astype(np.int32) - np.isin(marks, (0x5D, 0x7D))
    if np.cumsum(steps).max() > depth:  # brackets within strings count too: a bound, not a parser
        return {}
    try:
        meant = parsed(value)
    except (ValueError, RecursionError):
        return {}
    return meant if isinstance(meant, dict) else {}


def processes(
    rows: Sequence[Mapping[str, Any]], numbering: Numbering, guid: str | None, hosts: Mapping[object, str | None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`processes`, and `environment` from the allowed variables of the first process that states any.

    `hosts` are host names by node id.
    """
    by_id = {row["id"]: row for row in rows}
    found: list[dict[str, Any]] = []
    kept: dict[str, str] = {}
    for number, one in enumerate(numbering.ids):
        row = by_id.get(one, {})
        environment = fields(row.get("environment"), depth=8)
        kept = kept or safe_environment(environment)
        command = text(row.get("command"))
        found.append(
            {
                "process_id": number,
                "guid": guid,
                "host": hosts.get(row.get("nid")),
                "pid": integer(row.get("pid")),
                "rank": rank_of(environment),
                "command": safe_command(command) if command else None,
            }
        )
    variables = [
        {"category": "environment_variable", "key": key, "value": value, "in_fingerprint": True}
        for key, value in kept.items()
    ]
    return pl.DataFrame(found, schema=_PROCESS_SCHEMA), pl.DataFrame(variables, schema=_ENVIRONMENT_SCHEMA)


def devices(
    agents: Sequence[Mapping[str, Any]], numbering: Numbering, hosts: Mapping[object, str | None], depth: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`devices` of the numbered agents, and the detail `device_keys`. An agent without a row has only its handle."""
    by_id = {agent["id"]: agent for agent in agents}
    found: list[dict[str, Any]] = []
    keys: list[dict[str, Any]] = []
    for number, one in enumerate(numbering.ids):
        agent = by_id.get(one, {})
        facts = fields(agent.get("extdata"), depth)
        handle = facts.get("id")
        handle = handle.get("handle") if isinstance(handle, dict) else None
        named = str(handle) if isinstance(handle, int) else "agent not stated" if one is None else f"agent {one}"
        found.append({"device_id": number, "handle": named, **_device_facts(agent, facts)})
        keys.append(
            {
                "device_id": number,
                "host": hosts.get(agent.get("nid")),
                "handle": named,
                "agent_id": one,
                "absolute_index": integer(agent.get("absolute_index")),
                "type_index": integer(agent.get("type_index")),
                "pci_address": _pci_address(facts),
            }
        )
    return pl.DataFrame(found, schema=_DEVICE_SCHEMA), pl.DataFrame(keys, schema=_DEVICE_KEY_SCHEMA)


def _device_facts(agent: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `devices` from an agent's structure; a zero there means that the driver did not say."""

    def known(name: str) -> int | None:
        return integer(facts.get(name)) or None

    banks, caches = _listed(facts, "mem_banks"), _listed(facts, "caches")
    second = [size for cache in caches if cache.get("level") == 2 and (size := integer(cache.get("size")))]
    local = known("lds_size_in_kb")
    sizes = [size for bank in banks if (size := integer(bank.get("size_in_bytes")))]
    widths = [width for bank in banks if (width := integer(bank.get("width")))]
    clocks = [clock for bank in banks if (clock := integer(bank.get("mem_clk_max")))]
    return {
        "vendor": text(agent.get("vendor_name")) or None,
        "arch": text(agent.get("name")) or None,
        "product": text(agent.get("product_name")) or None,
        "compute_units": known("cu_count"),
        "xcc_count": known("num_xcc"),
        "simd_per_cu": known("simd_per_cu"),
        "wavefront_size": known("wave_front_size"),
        "max_clock_mhz": known("max_engine_clk_fcompute"),
        "memory_clock_mhz": max(clocks, default=None),
        "memory_bytes": _sum(sizes),
        "memory_bus_bits": _sum(widths),
        "l2_bytes": _scaled(max(second, default=None)),
        "lds_bytes": _scaled(local),
    }


def _listed(facts: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = facts.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _sum(values: Sequence[int]) -> int | None:
    return integer(sum(values)) if values else None


def _scaled(kibibytes: int | None) -> int | None:
    return None if kibibytes is None else integer(kibibytes * _KIBIBYTE)


def _pci_address(facts: Mapping[str, Any]) -> str | None:
    """`domain:bus:device.function`, the same in every process of a host, which the handle is not."""
    location, domain = integer(facts.get("location_id")), integer(facts.get("domain"))
    if not location or domain is None or location < 0 or domain < 0:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def rank_of(environment: Mapping[str, Any]) -> int | None:
    """The process's rank in its job, by the variables that launchers set; None without one."""
    for name in RANK_VARIABLES:
        stated = str(environment.get(name, ""))
        if stated.isascii() and stated.isdigit() and int(stated[:10]) < 2**31:
            return int(stated[:10])
    return None
