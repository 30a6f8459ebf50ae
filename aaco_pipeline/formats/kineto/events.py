"""Columns of a trace's events and of their arguments: launches, collectives, inputs, devices, losses.

`tables` builds the canonical tables.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, table_of
from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.formats.parsing.redaction import safe_value
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, STOPPED

#: Earlier spellings of categories in Kineto's writer (`output_json.cpp`), with the current names.
FORMER: Final = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime"}
KERNELS: Final = "kernel"
COPIES: Final = ("gpu_memcpy", "gpu_memset")
#: Host calls; on ROCm, those that launch a kernel state its name and grid.
RUNTIMES: Final = ("cuda_runtime", "cuda_driver")
LAUNCHED_KERNEL: Final = "kernel"
SYNCS: Final = "cuda_sync"
OPERATORS: Final = "cpu_op"
CALLS: Final = (*RUNTIMES, OPERATORS, "python_function")
MARKERS: Final = ("user_annotation", "gpu_user_annotation")
FLOWS: Final = "fwdbwd"
#: The operator whose arguments describe a collective; its kernels' names often do not.
COLLECTIVE_RECORD: Final = "record_param_comms"
#: Its arguments, keyed by the column that each fills.
COLLECTIVE_TEXTS: Final = {
    "collective": "Collective name",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "dtype": "dtype",
}
COLLECTIVE_NUMBERS: Final = {"group_size": "Group size", "sequence": "Seq", "elements": "In msg nelems"}
#: An operator's arguments with the shapes and types of its inputs, and the column that each fills.
SHAPES: Final = {"Input Dims": "shapes", "Input type": "types"}
#: Further arguments of later profilers: strides, and the values of non-tensor inputs.
MORE_OF_INPUTS: Final = {"Input Strides": "strides", "Concrete Inputs": "values"}
#: Columns of the table `operator_inputs` besides the call.
INPUT_COLUMNS: Final = ("operator", *SHAPES.values(), *MORE_OF_INPUTS.values())
_TIMES: Final = dict.fromkeys(("start_ns", "end_ns"), pl.Int64())
_EVENT: Final = {**dict.fromkeys(("cat", "name"), pl.Categorical()), **_TIMES, "correlation": pl.UInt64()}
_HOST: Final = {**_EVENT, "pid": pl.Int64(), "tid": pl.Int64()}
_DEVICE: Final = {**_EVENT, "device": pl.Int64(), "stream": pl.Int64()}
RATIOS: Final = ("blocks_per_sm", "warps_per_sm", "estimated_occupancy_percent")
AXES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_SCHEMAS: Final[Mapping[str, pl.Schema]] = {
    "counts": pl.Schema({"ph": pl.String(), "cat": pl.String(), "len": pl.UInt32()}),
    "calls": pl.Schema(_HOST),
    "markers": pl.Schema(_HOST),
    "collectives": pl.Schema(
        {**_HOST, **dict.fromkeys(COLLECTIVE_TEXTS, pl.String()), **dict.fromkeys(COLLECTIVE_NUMBERS, pl.Int64())}
    ),
    "copies": pl.Schema({**_DEVICE, "bytes": pl.Int64()}),
    "kernels": pl.Schema(
        {
            **_DEVICE,
            **dict.fromkeys((*AXES, "lds", "registers_per_thread"), pl.Int64()),
            "graph_node_id": pl.UInt64(),
            **dict.fromkeys(RATIOS, pl.Float64()),
        }
    ),
    "syncs": pl.Schema(
        {**_DEVICE, "kind": pl.String(), "waited_stream": pl.Int64(), "waited_correlation_id": pl.UInt64()}
    ),
    "shapes": pl.Schema({"start_ns": pl.Int64(), **dict.fromkeys(INPUT_COLUMNS, pl.Categorical())}),
    "launches": pl.Schema({"correlation": pl.UInt64(), "kernel": pl.Categorical(), **dict.fromkeys(AXES, pl.Int64())}),
    "flows": pl.Schema({"flow_id": pl.UInt64(), "role": pl.String(), "thread_id": pl.Int64(), "time_ns": pl.Int64()}),
}


@dataclass
class Collected:
    """Frames of each kind of event from the pieces of a trace, in file order, and any oddities in the text."""

    pieces: defaultdict[str, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    found: bool = False
    cut: bool = False

    def take(self, kind: str) -> pl.DataFrame:
        """Join one kind's events, and release the pieces."""
        schema = _SCHEMAS[kind]
        frames = (frame.select(schema.names()) for frame in self.pieces.pop(kind, []))
        return pl.concat([schema.to_frame(), *frames])


#: Numbers, true, false, or lists of these; other values are the program's own text.
_ONE: Final = r"(?:True|False|[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_PLAIN: Final = re.compile(rf"{_ONE}|\[(?:{_ONE}(?:, ?{_ONE})*)?\]")


def kept_inputs(recorded: pl.DataFrame) -> pl.DataFrame:
    """Normalize the spelling of the rows' lists, removing the whitespace of pretty-printed traces.

    In `values`, anything but numbers, booleans and lists of these becomes an empty text. Every distinct text is parsed
    once. Rows whose shapes or types are not JSON are dropped; other columns become null.
    """
    columns = []
    for name in INPUT_COLUMNS[1:]:
        texts = recorded.get_column(name).drop_nulls().unique().cast(pl.String)
        spelled = {text: _spelled(text, plain=name == "values") for text in texts}
        text = pl.col(name).cast(pl.String)
        columns.append(text.replace_strict(spelled, default=None, return_dtype=pl.String))
    return recorded.with_columns(columns).drop_nulls(list(SHAPES.values()))


def _spelled(text: str, *, plain: bool) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if plain:
        found = [one if isinstance(one, str) and _PLAIN.fullmatch(one) else "" for one in found]
    return json.dumps(found)


#: Domains in `api_calls` of the runtime and its driver.
RUNTIME_DOMAINS: Final = ("hip_runtime", "cuda_runtime", "cuda_driver")
_CAPTURING: Final = "StreamBeginCapture"
#: This call takes its grid in work-items; all others take workgroups.
_IN_WORK_ITEMS: Final = "hipExtModuleLaunchKernel"


def named_launches(stated: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """List call_id with the launched kernel and its size, for a trace of graph capture; otherwise empty.

    `stated` has correlation, kernel and the sizes; `calls` is the table `api_calls`. Empty for several processes,
    because their correlations may collide.
    """
    stated = stated.rename({"correlation": "correlation_id"})
    names = calls.get_column("name").unique().cast(pl.String)
    if not names.str.contains(_CAPTURING, literal=True).any() or calls.get_column("process_id").n_unique() > 1:
        stated = stated.clear()
    launches = calls.filter(pl.col("domain").is_in(RUNTIME_DOMAINS)).select(
        "call_id", "correlation_id", in_work_items=pl.col("name").cast(pl.String) == _IN_WORK_ITEMS
    )
    unique = stated.unique("correlation_id", keep="none")
    found = launches.join(unique, on="correlation_id", how="inner", maintain_order="left").with_columns(_grids())
    return found.drop("correlation_id", "in_work_items")


def with_grids_in_work_items(dispatches: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Correct the grids of `dispatches` whose call takes work-items."""
    key = ["process_id", "correlation_id"]
    asked = calls.filter(pl.col("name").cast(pl.String) == _IN_WORK_ITEMS).select(*key, in_work_items=True)
    if asked.is_empty():
        return dispatches
    rows = dispatches.join(asked.unique(key), on=key, how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("in_work_items").fill_null(False)).with_columns(_grids())
    return rows.drop("in_work_items")


def _grids() -> list[pl.Expr]:
    """Undo the multiplication by the workgroup size if the call already took work-items."""
    return [
        pl.when(pl.col("in_work_items") & (pl.col(f"workgroup_{axis}") > 0))
        .then(pl.col(f"grid_{axis}") // pl.col(f"workgroup_{axis}"))
        .otherwise(f"grid_{axis}")
        .alias(f"grid_{axis}")
        for axis in "xyz"
    ]


#: Columns of the table `markers` that describe a collective.
COLLECTIVE_COLUMNS: Final = ("collective", "communicator", "group_size", "sequence", "dtype", "size_bytes")
#: Bytes per element by PyTorch's type name (c10/core/ScalarType.h).
_ELEMENT_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: A larger element count indicates damage, and the byte count would not fit the column.
_MOST_ELEMENTS: Final = 2**58


def described_collectives(recorded: pl.DataFrame) -> pl.DataFrame:
    """Replace the recording operators' arguments with `COLLECTIVE_COLUMNS`.

    `recorded` has collective, group, ranks, dtype, group_size, sequence and elements, as stated in the trace. Missing
    and negative numbers become null, as do element counts that exceed any memory. The communicator is the group's name
    with its ranks, because groups of different ranks may share a name.
    """

    def stated(name: str) -> pl.Expr:
        return pl.when(pl.col(name) >= 0).then(name)

    width = pl.col("dtype").replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    # If the trace lists no ranks, or not as text, the communicator is just the group's name.
    with_ranks = pl.when(pl.col("ranks") != "[]").then(pl.concat_str("group", pl.lit(" "), "ranks"))
    return recorded.with_columns(
        communicator=pl.coalesce(with_ranks, "group"),
        group_size=stated("group_size"),
        sequence=stated("sequence"),
        size_bytes=pl.when(pl.col("elements").is_between(0, _MOST_ELEMENTS)).then("elements") * width,
    ).drop("group", "ranks", "elements")


#: Without a base time, a smaller value cannot be microseconds since the Unix epoch: it is before 2001.
_EPOCH_FLOOR_NS: Final = 10**18
#: Version keys that only one vendor's tracer writes.
_AMD_VERSIONS: Final = ("hip_runtime_version", "hip_driver_version", "roctracer_version")
_NVIDIA_VERSIONS: Final = ("cuda_runtime_version", "cuda_driver_version", "cupti_version")
#: HIP capability numbers of only one architecture; 9.0 covers gfx900 to gfx90a, 11.0 gfx1100 to 1103.
_ONLY_ONE: Final = {"9.4": "gfx942", "9.5": "gfx950"}


def is_amd(metadata: Mapping[str, Any], calls: pl.DataFrame) -> bool | None:
    """Return whether the devices are AMD's; None if unknown."""
    if not metadata.keys().isdisjoint(_AMD_VERSIONS):
        return True
    if not metadata.keys().isdisjoint(_NVIDIA_VERSIONS):
        return False
    names = calls.filter(pl.col("cat") == "cuda_runtime").get_column("name").unique().cast(pl.String)
    return bool(names.str.starts_with("hip").any()) if len(names) else None


def described_devices(metadata: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the trace's device properties, by the trace's own numbers."""
    listed = metadata.get("deviceProperties")
    return {
        number: entry
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and (number := whole(entry.get("id"))) is not None
    }


def properties_of(
    seen: Iterable[int], described: Mapping[int, Mapping[str, Any]], amd: bool | None
) -> dict[int, Mapping[str, Any]]:
    """Assign properties to each device with activities, by its number there; other devices are added.

    ROCm's tracer numbers a device among all agents of the host, CPUs first, but the properties among the devices alone,
    so a number without properties is one of the described devices. If all described devices are identical, so are its
    properties; if there is only one, it is that device.
    """
    stated = dict(described)
    strange = sorted(set(seen) - set(described))
    if amd is False or not strange or -1 in strange or len(strange) > len(described):
        return stated
    entries = [{key: value for key, value in entry.items() if key != "id"} for entry in described.values()]
    if any(entry != entries[0] for entry in entries):
        return stated
    if len(described) == 1 and len(strange) == 1 and not set(seen) & set(described):
        return {strange[0]: entries[0]}
    return stated | dict.fromkeys(strange, entries[0])


def device_rows(
    numbers: Mapping[int, int], described: Mapping[int, Mapping[str, Any]], amd: bool | None
) -> pl.DataFrame:
    """Build the table `devices`; `numbers` maps the trace's numbers (-1 for a device without one) to the table's."""
    rows = []
    for number, place in numbers.items():
        entry = described.get(number, {})
        major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
        shared = entry.get("sharedMemPerMultiprocessor", entry.get("maxSharedMemoryPerMultiProcessor"))
        name = entry.get("name")
        rows.append(
            {
                "device_id": place,
                "vendor": {True: "AMD", False: "NVIDIA", None: None}[amd],
                "arch": _architecture(amd, major, minor),
                "product": name if isinstance(name, str) and name else None,
                "compute_units": whole(entry.get("numSms")),
                "wavefront_size": whole(entry.get("warpSize")),
                "memory_bytes": whole(entry.get("totalGlobalMem")),
                "lds_bytes": whole(shared),
                "handle": str(number) if number >= 0 else None,
            }
        )
    return table_of("devices", rows)


def _architecture(amd: bool | None, major: int | None, minor: int | None) -> str | None:
    """Name the architecture by its capability numbers: always for CUDA, for HIP if they are unique to one."""
    if amd:
        return _ONLY_ONE.get(f"{major}.{minor}")
    return f"sm_{major}{minor}" if amd is False and None not in (major, minor) else None


def clocks(metadata: Mapping[str, Any], starts: Iterable[pl.Series]) -> tuple[pl.DataFrame, bool]:
    """Build `clock_domains`: the trace's clock, and the wall clock if the two are tied; return whether they are."""
    base, first = whole(metadata.get("baseTimeNanoseconds")), pl.concat(starts).min()
    rows: list[tuple[str, int, int | None, str]] = []
    if base is not None:
        rows.append(("realtime", -base, None, f"the trace's times count from baseTimeNanoseconds {base}"))
        origin = f"from baseTimeNanoseconds {base} after the Unix epoch"
    elif isinstance(first, int) and first > _EPOCH_FLOOR_NS:
        rows.append(("realtime", 0, None, "the trace has no base: its times count from the Unix epoch"))
        origin = "from the Unix epoch"
    else:
        origin = "from where it does not say"
    rows.insert(0, ("kineto", 0, 0, f"the trace's own times, counted {origin}"))
    return pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row"), len(rows) > 1


def versions(metadata: Mapping[str, Any]) -> pl.DataFrame:
    """Build the table `environment` from the versions that the trace states."""
    rows = [
        {"category": "library", "key": key, "value": safe_value(key, str(value)), "in_fingerprint": True}
        for key, value in sorted(metadata.items())
        if key.endswith("_version") and isinstance(value, int | float | str) and len(key) <= 64
    ]
    return table_of("environment", rows)


_LEVELS: Final = ("INFO", "WARNING", "ERROR")
_MOST_MESSAGES: Final = 1_000
_LONGEST: Final = 300
_COUNT: Final = r"(\d{1,15})"
_DROPPED: Final = re.compile(rf"Dropped {_COUNT} activity records")
_OUT_OF_RANGE: Final = re.compile(rf"Out-of-range = {_COUNT}")
_STOPPED: Final = re.compile(
    "Exceeded max GPU buffer count|stopped early\\? = [1-9]|activity collection was stopped early"
)


def say_losses(metadata: Mapping[str, Any], findings: Findings) -> None:
    """Report events that the tool counts as dropped or outside its recording, and whether it stopped early."""
    messages = list(_messages(metadata))
    for item, pattern, what in (
        (DROPPED, _DROPPED, "{} records were dropped from its buffers"),
        (OUT_OF_RANGE, _OUT_OF_RANGE, "{} records lay outside the time of the recording"),
    ):
        counts = [int(found[1]) for text in messages for found in pattern.finditer(text)]
        if counts:
            said = what.format(sum(counts))
            findings.say(item, "partial" if sum(counts) else "present", said, sum(counts))
    stopped = next((text for text in messages if _STOPPED.search(text)), None)
    if stopped is not None:
        findings.say(STOPPED, "partial", f"it stopped early: {safe_value('message', stopped[:_LONGEST])}")


def _messages(metadata: Mapping[str, Any]) -> Iterator[str]:
    for level in _LEVELS:
        listed = metadata.get(level)
        for text in (listed if isinstance(listed, list) else [])[:_MOST_MESSAGES]:
            if isinstance(text, str):
                yield text
