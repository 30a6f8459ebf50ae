"""What a CUPTI stream says of where it was made: the process, its devices, its clocks, versions and settings."""

import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.nvidia.cupti import layout
from aaco_pipeline.formats.nvidia.cupti.stream import Columns, Stream
from aaco_pipeline.formats.parsing.redaction import safe_value
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract

#: The clock of the stream's times, once CUPTI's own is brought onto it.
CLOCK: Final = "monotonic"
_KHZ_PER_MHZ: Final = 1e3
#: Further apart than any slewing of a clock within a run: another clock was put in place.
_OTHER_CLOCK_NS: Final = 1_000_000_000
#: CUPTI's number of a device that is none.
NO_DEVICE: Final = 0xFFFFFFFF
#: No clock and no memory is read beyond it: the numbers of a damaged stream.
_MOST: Final = 1 << 62
#: What the recorder passes on of a rank in a job.
_RANK: Final = re.compile(r"[0-9]{1,8}")


def process(stream: Stream) -> pl.DataFrame:
    """The table `processes`: the one that wrote the stream."""
    host, rank = (_noted(stream, what) for what in ("host", "rank"))
    row = {
        "process_id": 0,
        "rank": int(rank) if rank and _RANK.fullmatch(rank) else None,
        "guid": f"{stream.header['pid']}@{stream.header['monotonic']}",
        "host": safe_value("host", host) if host else None,
        "pid": stream.header["pid"],
    }
    return to_contract("processes", pl.DataFrame([row], schema=polars_types("processes", *row)))


def _noted(stream: Stream, what: str) -> str | None:
    return next((note.removeprefix(f"{what} ") for note in stream.notes if note.startswith(f"{what} ")), None)


def devices(stream: Stream, used: Sequence[int], findings: Findings) -> tuple[pl.DataFrame, dict[int, int]]:
    """The table `devices`, in order of CUDA's numbers in the process, and the device of each of these numbers.

    `used` are numbers that activities name; one that the stream does not describe is a device of which only that is
    known.
    """
    rows = dict(_described(stream, stream.take(layout.DEVICES)))
    unknown = {number: f"CUDA device {number}" for number in sorted(set(used) - set(rows))}
    unknown |= {NO_DEVICE: "device not stated"} if NO_DEVICE in unknown else {}
    rows |= {number: {"vendor": "NVIDIA", "handle": handle} for number, handle in unknown.items()}
    reason = f"the stream does not describe these: {', '.join(unknown.values())}"
    findings.note(len(unknown), "device properties", "partial", reason)
    numbered = {number: at for at, number in enumerate(sorted(rows))}
    frame = pl.DataFrame(
        [{**dict.fromkeys(_DEVICE), **rows[number], "device_id": at} for number, at in numbered.items()],
        schema=polars_types("devices", *_DEVICE),
    )
    return to_contract("devices", frame) if rows else empty_table("devices"), numbered


_DEVICE: Final = (
    *("device_id", "vendor", "arch", "arch_source", "product", "compute_units", "wavefront_size", "max_clock_mhz"),
    *("memory_bytes", "l2_bytes", "lds_bytes", "handle"),
)


def _require(stream: Stream, what: str, numbers: Iterable[int]) -> None:
    """Refuse numbers that nothing measures."""
    if any(not 0 <= number < _MOST for number in numbers):
        raise CaptureError(f"{stream.path}: damaged: impossible numbers are stated of {what}; copy the file again")


def _described(stream: Stream, records: Columns) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for at, number in enumerate(records["device"].tolist()):
        one = {name: int(records[name][at]) for name in _NUMBERS}
        _require(stream, f"CUDA device {number}", one.values())
        found.append(
            (
                number,
                {
                    "vendor": "NVIDIA",
                    "arch": f"sm_{one['major']}{one['minor']}",
                    "arch_source": "capture",
                    "product": records["name"][at].decode(errors="replace") or None,
                    "compute_units": one["multiprocessors"],
                    "wavefront_size": one["threads_per_warp"],
                    "max_clock_mhz": one["clock_khz"] / _KHZ_PER_MHZ,
                    "memory_bytes": one["memory_bytes"],
                    "l2_bytes": one["l2_bytes"],
                    "lds_bytes": one["shared_per_multiprocessor"],
                    # As nvidia-smi and NVML spell it.
                    "handle": f"GPU-{uuid.UUID(bytes=records['uuid'][at].tobytes())}",
                },
            )
        )
    return found


_NUMBERS: Final = (
    *("major", "minor", "multiprocessors", "threads_per_warp", "clock_khz", "memory_bytes", "l2_bytes"),
    "shared_per_multiprocessor",
)


def onto_monotonic(stream: Stream, findings: Findings) -> tuple[int, pl.DataFrame, int | None]:
    """What to add to CUPTI's times to get CLOCK_MONOTONIC, the table `clock_domains`, and when another clock was seen.

    Where CUPTI took its times from the recorder's clock the sum is 0. Else it is the middle of what pairs of readings
    say, and half their spread is the uncertainty: CUPTI's default is the wall-clock, which is slewed. The last is an
    instant of CLOCK_MONOTONIC by which another tool had given CUPTI its clock; None where none did.
    """
    readings = stream.take(layout.CLOCKS)
    own = "clock monotonic" in stream.notes
    header = stream.header
    for name in ("monotonic", "realtime", "cupti"):
        _require(stream, "its clocks", [header[name], *readings[name].tolist()])
    rows: list[tuple[str, int | None, int | None, str]] = []
    by, uncertainty, anchor = 0, 0, "CUPTI read this clock for its own"
    since: int | None = None
    if len(readings["monotonic"]):
        apart = readings["monotonic"] - readings["cupti"]
        alike = np.abs(apart - apart[0]) < _OTHER_CLOCK_NS
        replaced = int((~alike).sum())
        if replaced:
            since = int(readings["monotonic"][~alike][0])
            reason = (
                f"another tool in the program gave CUPTI its own clock, as was seen at {since} ns: records that lie "
                "later, or before the recording, are of that clock and left out"
            )
            findings.say("clock of CUPTI", "partial", reason, replaced)
        if not own:
            low, high = int(apart[alike].min()), int(apart[alike].max())
            by = (low + high) // 2
            uncertainty = (high - low + 1) // 2 + int(readings["uncertainty"][alike].max())
            anchor = f"{int(alike.sum())} pairs of readings of CUPTI's clock and this one"
    elif not own:
        by, anchor = header["monotonic"] - header["cupti"], "one pair of readings, at the beginning"
        findings.say("clock of CUPTI", "partial", "read against the host's clock only once, at the beginning")
    rows.append((CLOCK, 0, uncertainty, anchor))
    ahead = (readings["monotonic"] - readings["realtime"]).tolist() or [header["monotonic"] - header["realtime"]]
    spread = (max(ahead) - min(ahead) + 1) // 2
    told = "the first of the recorder's readings of both clocks; the uncertainty is half their spread over the run"
    rows.append(("realtime", ahead[0], spread, told))
    frame = pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row")
    return by, to_contract("clock_domains", frame), since


def environment(stream: Stream) -> pl.DataFrame:
    """The table `environment`: what the driver and CUPTI are."""
    driver, cupti = stream.header["driver_version"], stream.header["cupti_version"]
    rows = [("profiler", "cupti_api_version", str(cupti), False)]
    if driver:
        rows.append(("driver", "cuda", f"{driver // 1000}.{driver % 1000 // 10}", True))
    frame = pl.DataFrame(rows, schema=polars_types("environment"), orient="row")
    return to_contract("environment", frame)
