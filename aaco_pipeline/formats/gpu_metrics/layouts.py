"""Binary layouts of the amdgpu driver's `gpu_metrics` tables, versions 1.3 to 1.9, as NumPy data types.

The fixed tables are C structures of little-endian numbers with natural alignment, so the order and types of the fields
determine every offset. Version 1.9 is self-describing: each value follows a code that identifies it.
`aaco_pipeline.formats.gpu_metrics` interprets the values.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

#: Size and version, at the start of every table.
HEADER_BYTES: Final = 4
#: Version of a table: the two bytes after its size.
Version = tuple[int, int]
_HEADER: Final = "structure_size:u2 format_revision:u1 content_revision:u1"
_FROM_1_4: Final = (
    f"{_HEADER} temperature_hotspot:u2 temperature_mem:u2 temperature_vrsoc:u2 curr_socket_power:u2"
    " average_gfx_activity:u2 average_umc_activity:u2"
)
_LINKS: Final = (
    "gfxclk_lock_status:u4 pcie_link_width:u2 pcie_link_speed:u2 xgmi_link_width:u2 xgmi_link_speed:u2"
    " gfx_activity_acc:u4 mem_activity_acc:u4 pcie_bandwidth_acc:u8 pcie_bandwidth_inst:u8"
    " pcie_l0_to_recov_count_acc:u8 pcie_replay_count_acc:u8 pcie_replay_rover_count_acc:u8"
)
_NAKS: Final = "pcie_nak_sent_count_acc:u4 pcie_nak_rcvd_count_acc:u4"
_XGMI: Final = "xgmi_read_data_acc:8u8 xgmi_write_data_acc:8u8"
_CLOCKS: Final = (
    "firmware_timestamp:u8 current_gfxclk:8u2 current_socclk:4u2 current_vclk0:4u2 current_dclk0:4u2 current_uclk:u2"
)
_RESIDENCIES: Final = (
    "accumulation_counter:u4 prochot_residency_acc:u4 ppt_residency_acc:u4 socket_thm_residency_acc:u4"
    " vr_thm_residency_acc:u4 hbm_thm_residency_acc:u4"
)
_TIMES: Final = "energy_accumulator:u8 system_clock_counter:u8"
_FROM_1_7: Final = (
    f"{_FROM_1_4} mem_max_bandwidth:u8 {_TIMES} {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} xgmi_link_status:8u2 padding:u2"
    f" {_CLOCKS} num_partition:u2 xcp_stats:8{{}} pcie_lc_perf_other_end_recovery:u4"
)
_LAYOUTS: Final[Mapping[Version, str]] = {
    (1, 3): (
        f"{_HEADER} temperature_edge:u2 temperature_hotspot:u2 temperature_mem:u2 temperature_vrgfx:u2"
        " temperature_vrsoc:u2 temperature_vrmem:u2 average_gfx_activity:u2 average_umc_activity:u2"
        f" average_mm_activity:u2 average_socket_power:u2 {_TIMES} average_gfxclk:u2 average_socclk:u2"
        " average_uclk:u2 average_vclk0:u2 average_dclk0:u2 average_vclk1:u2 average_dclk1:u2 current_gfxclk:u2"
        " current_socclk:u2 current_uclk:u2 current_vclk0:u2 current_dclk0:u2 current_vclk1:u2 current_dclk1:u2"
        " throttle_status:u4 current_fan_speed:u2 pcie_link_width:u2 pcie_link_speed:u2 padding:u2 gfx_activity_acc:u4"
        " mem_activity_acc:u4 temperature_hbm:4u2 firmware_timestamp:u8 voltage_soc:u2 voltage_gfx:u2 voltage_mem:u2"
        " padding1:u2 indep_throttle_status:u8"
    ),
    (1, 4): f"{_FROM_1_4} vcn_activity:4u2 {_TIMES} throttle_status:u4 {_LINKS} {_XGMI} {_CLOCKS} padding:u2",
    (1, 5): (
        f"{_FROM_1_4} vcn_activity:4u2 jpeg_activity:32u2 {_TIMES} throttle_status:u4 {_LINKS} {_NAKS} {_XGMI}"
        f" {_CLOCKS} padding:u2"
    ),
    (1, 6): (
        f"{_FROM_1_4} {_TIMES} {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI} {_CLOCKS} num_partition:u2 xcp_stats:8xcp_1_0"
        " pcie_lc_perf_other_end_recovery:u4"
    ),
    (1, 7): _FROM_1_7.format("xcp_1_1"),
    (1, 8): _FROM_1_7.format("xcp_1_2"),
}
_PARTITION: Final[Mapping[str, str]] = {
    "xcp_1_0": "gfx_busy_inst:8u4 jpeg_busy:32u2 vcn_busy:4u2 gfx_busy_acc:8u8",
    "xcp_1_1": "gfx_busy_inst:8u4 jpeg_busy:32u2 vcn_busy:4u2 gfx_busy_acc:8u8 gfx_below_host_limit_acc:8u8",
    "xcp_1_2": (
        "gfx_busy_inst:8u4 jpeg_busy:40u2 vcn_busy:4u2 gfx_busy_acc:8u8 gfx_below_host_limit_ppt_acc:8u8"
        " gfx_below_host_limit_thm_acc:8u8 gfx_low_utilization_acc:8u8 gfx_below_host_limit_total_acc:8u8"
    ),
}
SELF_DESCRIBING: Final[Version] = (1, 9)
#: Every version that can be read.
VERSIONS: Final[tuple[Version, ...]] = (*_LAYOUTS, SELF_DESCRIBING)
#: Names of the values in a self-describing table, by their number.
ATTRIBUTES: Final = (
    *("temperature_hotspot", "temperature_mem", "temperature_vrsoc", "curr_socket_power", "average_gfx_activity"),
    *("average_umc_activity", "mem_max_bandwidth", "energy_accumulator", "system_clock_counter"),
    *("accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc"),
    *("vr_thm_residency_acc", "hbm_thm_residency_acc", "gfxclk_lock_status", "pcie_link_width", "pcie_link_speed"),
    *("xgmi_link_width", "xgmi_link_speed", "gfx_activity_acc", "mem_activity_acc", "pcie_bandwidth_acc"),
    *("pcie_bandwidth_inst", "pcie_l0_to_recov_count_acc", "pcie_replay_count_acc", "pcie_replay_rover_count_acc"),
    *("pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc", "xgmi_read_data_acc", "xgmi_write_data_acc"),
    *("xgmi_link_status", "firmware_timestamp", "current_gfxclk", "current_socclk", "current_vclk0", "current_dclk0"),
    *("current_uclk", "num_partition", "pcie_lc_perf_other_end_recovery", "gfx_busy_inst", "jpeg_busy", "vcn_busy"),
    *("gfx_busy_acc", "gfx_below_host_limit_ppt_acc", "gfx_below_host_limit_thm_acc", "gfx_low_utilization_acc"),
    "gfx_below_host_limit_total_acc",
)
#: Prefix for values whose number is not in `ATTRIBUTES`.
UNKNOWN_ATTRIBUTE: Final = "attribute_"
#: Prefix of a value's code in a self-describing table; tables of one form have the same codes.
CODE_OF: Final = "code of "
#: Fields that are not readings: the header and padding.
NOT_READINGS: Final = frozenset(
    ("structure_size", "format_revision", "content_revision", "padding", "padding1", "attr_count")
)
#: Types of the values in a self-describing table, by their number.
ATTRIBUTE_TYPES: Final = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
_PREFIX_BYTES: Final = 8
_CODE_BYTES: Final = 8


def header(head: bytes) -> tuple[int, Version]:
    """Return the size and version stated in a table."""
    return int.from_bytes(head[:2], "little"), (head[2], head[3])


def dotted(version: Version) -> str:
    """Format a version like 1.9."""
    return f"{version[0]}.{version[1]}"


def is_table(head: bytes) -> bool:
    """Return whether the bytes begin with a table, including one of an unreadable version."""
    size, version = header(head)
    if version != SELF_DESCRIBING:
        return size == (layout(version).itemsize if version in VERSIONS else len(head))
    try:
        described(head[:size])
    except ValueError:
        return False
    return len(head) >= size


@cache
def layout(version: Version) -> np.dtype[Any]:
    """Return the fixed table of a version as one structured data type. KeyError for 1.9 and unknown versions."""
    return _structure(_LAYOUTS[version])


def described(table: bytes) -> np.dtype[Any]:
    """Return the data type of a self-describing table, from its own codes; unknown codes are named by number.

    ValueError, with the reason, if the codes reach beyond the table or make no sense.
    """
    if len(table) < _PREFIX_BYTES:
        raise ValueError("it ends before its number of values")
    count = int.from_bytes(table[HEADER_BYTES:_PREFIX_BYTES], "little", signed=True)
    if not 0 <= count <= (len(table) - _PREFIX_BYTES) // (_CODE_BYTES + 1):
        raise ValueError(f"it states {count} values, which it is too small for")
    at = _PREFIX_BYTES
    seen: dict[str, int] = {}
    names, formats, offsets = ["attr_count"], ["<i4"], [HEADER_BYTES]
    for number in range(count):
        if at + _CODE_BYTES > len(table):
            raise ValueError(f"it ends before value {number}")
        code = int.from_bytes(table[at : at + _CODE_BYTES], "little")
        kind, attribute, instances = (code >> 20) & 0xF, (code >> 10) & 0x3FF, code & 0x3FF
        if kind >= len(ATTRIBUTE_TYPES) or not instances:
            raise ValueError(f"value {number} has no type or no instance")
        name = ATTRIBUTES[attribute] if attribute < len(ATTRIBUTES) else f"{UNKNOWN_ATTRIBUTE}{attribute}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}_{seen[name]}"  # the same value for another partition
        scalar = np.dtype(f"<{ATTRIBUTE_TYPES[kind]}")
        names += [f"{CODE_OF}{name}", name]
        formats += ["<u8", scalar.str if instances == 1 else f"{instances}{scalar.str}"]
        offsets += [at, at + _CODE_BYTES]
        at += _CODE_BYTES + scalar.itemsize * instances
        if at > len(table):
            raise ValueError(f"it ends within {name}")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(table)})


def _structure(fields: str) -> np.dtype[Any]:
    parts: list[Any] = []
    for field in fields.split():
        name, count, base = _FIELD.fullmatch(field).groups()  # type: ignore[union-attr]
        scalar = _structure(_PARTITION[base]) if base in _PARTITION else np.dtype(f"<{base}")
        parts.append((name, scalar, (int(count),)) if count else (name, scalar))
    return np.dtype(parts, align=True)


_FIELD: Final = re.compile(r"(\w+):(\d*)(\D.*)")
