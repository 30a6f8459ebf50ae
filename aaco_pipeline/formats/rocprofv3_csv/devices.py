"""The devices of a rocprofv3 run: what its tables call them, and what `agent_info` says of them."""

import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.parsing.csv_text import TextTable, number
from aaco_pipeline.lake.validation import empty_table, to_contract

#: By part of a run, its columns that name an agent, each with the column that gets the device's number.
_NAMED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "dispatch": (("device", "device_id"),),
    "execution": (("device", "device_id"),),
    "copy": (("source_agent", "source_device_id"), ("destination_agent", "destination_device_id")),
    "memory": (("device", "device_id"),),
}
#: Parts that run on a device whether they name it or not.
_ON_A_DEVICE: Final = ("dispatch", "execution")
#: Beyond this a count is damage.
_LARGEST: Final = 2**40
_RELATIVE: Final = re.compile(r"Agent\s+([0-9]{1,9})", re.IGNORECASE)
_BY_TYPE: Final = re.compile(r"(CPU|GPU)\s+([0-9]{1,9})", re.IGNORECASE)
_BARE: Final = re.compile(r"[0-9]{1,9}")


def device_frame(table: TextTable) -> pl.DataFrame:
    """The rows of an `agent_info` table: numbers by which other tables name an agent, and its facts.

    What the table states as 0 where none can be is null. Of a CPU only vendor, product and clock are taken.
    """
    is_gpu = table.text("agent_type").str.to_uppercase() == "GPU"

    def of_gpu(column: str) -> pl.Expr:
        value = table.whole(column)
        return pl.when(is_gpu & value.is_between(1, _LARGEST)).then(value)

    name, product = table.text("name"), table.text("product_name")
    clock = pl.when(is_gpu).then(table.text("max_engine_clk_fcompute")).otherwise(table.text("max_engine_clk_ccompute"))
    megahertz = number(clock)
    return table.frame.select(
        node=table.whole("node_id"),
        relative=table.whole("logical_node_id"),
        by_type=table.whole("logical_node_type_id"),
        type=table.text("agent_type").str.to_uppercase(),
        vendor=table.text("vendor_name"),
        arch=pl.when(is_gpu).then(name),
        product=pl.when(is_gpu).then(product).otherwise(pl.coalesce(product, name)),
        compute_units=of_gpu("cu_count"),
        xcc_count=of_gpu("num_xcc"),
        simd_per_cu=of_gpu("simd_per_cu"),
        wavefront_size=of_gpu("wave_front_size"),
        max_clock_mhz=pl.when(megahertz > 0).then(megahertz),
        lds_bytes=of_gpu("lds_size_in_kb") * 1024,
    )


class Devices:
    """Numbers the devices of one run: those of `agent_info` first, then whatever else its tables name."""

    def __init__(self, listed: pl.DataFrame | None) -> None:
        self._listed: list[dict[str, Any]] = [] if listed is None else listed.to_dicts()
        # Of rows that claim one number the first counts.
        backwards = list(enumerate(self._listed))[::-1]
        self._at: dict[str, dict[object, int]] = {
            index: {row[index]: position for position, row in backwards} for index in ("node", "relative")
        }
        self._at["type"] = {(row["type"], row["by_type"]): position for position, row in backwards}
        self._facts: list[dict[str, object]] = []
        self._absolute = False
        self._unlisted: list[str] = []

    def numbered(self, parts: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """The parts with the numbers of the devices they name; ends of copies in host memory get none."""
        given = dict(parts)
        if "copy" in given:
            given["copy"] = given["copy"].with_columns(
                source_agent=pl.when(~_direction_is("host_to_device", "host_to_host")).then(pl.col("source_agent")),
                destination_agent=pl.when(~_direction_is("device_to_host", "host_to_host")).then(
                    pl.col("destination_agent")
                ),
            )
        named: dict[str | None, None] = {}
        running: set[str] = set()
        for part, columns in _NAMED.items():
            for column, _ in columns if part in given else ():
                values = given[part].get_column(column).unique(maintain_order=True).to_list()
                named |= dict.fromkeys(value for value in values if value is not None or part in _ON_A_DEVICE)
                running |= {value for value in values if value is not None and part in _ON_A_DEVICE}
        numbers = self._numbers(list(named), running)
        schema = {"agent": pl.String, "number": pl.Int32}
        of_agent = pl.DataFrame(list(numbers.items()), schema=schema, orient="row")
        for part, columns in _NAMED.items():
            for column, target in columns if part in given else ():
                renamed = of_agent.rename({"agent": column, "number": target})
                nulls_equal = part in _ON_A_DEVICE
                given[part] = given[part].join(
                    renamed, on=column, how="left", nulls_equal=nulls_equal, maintain_order="left"
                )
        return given

    def table(self) -> pl.DataFrame:
        """The table `devices`, after `numbered`."""
        if not self._facts:
            return empty_table("devices")
        frame = pl.DataFrame(self._facts, infer_schema_length=None)
        return to_contract("devices", frame.with_columns(device_id=pl.int_range(pl.len(), dtype=pl.Int32)))

    def say(self, findings: Findings) -> None:
        """State what is known of the devices, and by which index the tables name them."""
        item, rows = "facts of devices", len(self._facts)
        if not self._listed:
            reason = "no agent_info among the files: only the names of the devices are known"
            findings.say(item, "absent", reason, rows)
        elif self._unlisted:
            findings.say(item, "partial", f"agent_info does not list {', '.join(self._unlisted[:8])}", rows)
        else:
            index = "absolute" if self._absolute else "relative"
            findings.say(item, "present", f"agents named by their {index} index", rows)

    def _numbers(self, named: list[str | None], running: set[str]) -> dict[str | None, int]:
        # "Agent 4" is the index relative to what the process sees, unless the tool was told otherwise. Kernels run on
        # GPUs only, so that tells which it was.
        wrong = [agent for agent in running if self._kind(agent, "relative") != "GPU"]
        self._absolute = bool(wrong) and all(self._kind(agent, "node") == "GPU" for agent in running)
        index = "node" if self._absolute else "relative"
        numbers: dict[str | None, int] = {}
        handles: dict[int, str] = {}
        found: list[tuple[str | None, int | None]] = [(agent, self._position(agent, index)) for agent in named]
        handles |= {position: agent for agent, position in found if position is not None and agent is not None}
        facts = ("node", "relative", "by_type", "type")
        for place, row in enumerate(self._listed):
            handle = handles.get(place, f"Agent {row[index] if row[index] is not None else row['node']}")
            self._facts.append({**{k: v for k, v in row.items() if k not in facts}, "handle": handle})
        for agent, position in found:
            numbers[agent] = len(self._facts) if position is None else position
            if position is None:
                self._facts.append({"handle": agent})
                self._unlisted += [] if agent is None else [agent]
        return numbers

    def _kind(self, agent: str, index: str) -> object:
        position = self._position(agent, index)
        return None if position is None else self._listed[position]["type"]

    def _position(self, agent: str | None, index: str) -> int | None:
        """Which row of `agent_info` a name means; None for none."""
        if agent is None:
            return None
        by_type, relative, bare = _BY_TYPE.fullmatch(agent), _RELATIVE.fullmatch(agent), _BARE.fullmatch(agent)
        if by_type is not None:
            return self._at["type"].get((by_type[1].upper(), int(by_type[2])))
        if relative is not None:
            return self._at[index].get(int(relative[1]))
        return None if bare is None else self._at["node"].get(int(bare[0]))


def _direction_is(*directions: str) -> pl.Expr:
    return pl.col("direction").is_in(directions).fill_null(False)
