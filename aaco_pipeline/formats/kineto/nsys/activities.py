"""Device activities of an export of Nsight Systems as canonical tables: dispatches, copies, waits.

How they come out of the export, and who launched them, is `aaco_pipeline.formats.kineto.nsys.reading`.
"""

from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import described_kernels
from aaco_pipeline.formats.rocpd.lookup import Lookup
from aaco_pipeline.lake.evidence import AS_A_WHOLE
from aaco_pipeline.lake.validation import empty_table, to_contract

AXES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_RESOURCES: Final = ("static_lds_bytes", "static_scratch_bytes")
#: CUDA's kinds of copies, by their number; arrays lie in the device's memory, and managed memory moves by itself.
_DIRECTIONS: Final = {
    **dict.fromkeys((1, 3, 11), "host_to_device"),
    **dict.fromkeys((2, 4, 12), "device_to_host"),
    **dict.fromkeys((5, 6, 7, 8, 10, 13), "device_to_device"),
    9: "host_to_host",
}
#: What a wait's call says that it waits for.
_WAIT_CALLS: Final = {
    "^(?:cudaDevice|cudaThread|cuCtx)Synchronize": "device_synchronize",
    "^(?:cuda|cu)StreamSynchronize": "stream_synchronize",
    "^(?:cuda|cu)EventSynchronize": "event_synchronize",
    "^(?:cuda|cu)StreamWaitEvent": "stream_wait_event",
}
#: CUPTI's numbers of kinds of waits.
_WAIT_KINDS: Final = {
    1: "event_synchronize",
    2: "stream_wait_event",
    3: "stream_synchronize",
    4: "device_synchronize",
}
_NO_EVENT: Final = 0xFFFFFFFF
_FILL: Final = "fill"
_WHO: Final = ("process_id", "device_id", "stream_id", "correlation_id", "start_ns", "end_ns")


def kernels(recorded: pl.DataFrame, graphs: pl.DataFrame, names: Lookup) -> pl.DataFrame:
    """Executed kernels, and graphs that were recorded as one piece each, with `name` and `symbol`."""
    texts = {column: names.applied(recorded.get_column(column)) for column in ("demangled", "short", "mangled")}
    own = recorded.with_columns(
        symbol=texts["mangled"],
        name=pl.coalesce(*(pl.lit(one) for one in texts.values()), pl.lit("kernel not stated"))
        if recorded.height
        else pl.lit(None, pl.String),
    )
    numbered = pl.concat_str(pl.lit("CUDA graph "), pl.col("graph"), pl.lit(AS_A_WHOLE))
    whole = graphs.with_columns(name=numbered.fill_null(f"CUDA graph{AS_A_WHOLE}"))
    return pl.concat([own, whole], how="diagonal")


def dispatches(ran: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The tables `kernels` and `dispatches`, and the detail `launch_facts`, from what `kernels` gives."""
    what = ["name", "symbol", *_RESOURCES]
    distinct = ran.select(what).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    if not distinct.height:
        return empty_table("kernels"), empty_table("dispatches"), pl.DataFrame(schema=_FACTS)
    rows = ran.with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32))
    rows = rows.join(distinct, on=what, how="left", nulls_equal=True, maintain_order="left")
    table = to_contract(
        "dispatches",
        rows.select(
            *(*_WHO, "dispatch_id", "kernel_id"),
            *(pl.col(f"workgroup_{axis}") for axis in "xyz"),
            # The export counts blocks.
            *((pl.col(f"grid_{axis}") * pl.col(f"workgroup_{axis}")).alias(f"grid_{axis}") for axis in "xyz"),
            thread_id="thread_id",
            lds_allocated_bytes=pl.col("static_lds_bytes") + pl.col("dynamic_lds_bytes"),
            scratch_bytes="static_scratch_bytes",
            graph_node_id=pl.when(pl.col("graph_node") > 0).then("graph_node").cast(pl.UInt64, strict=False),
            self_ns=(pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0),
            below_resolution=pl.lit(False),
        ),
    )
    facts = rows.select("dispatch_id", "registers_per_thread").drop_nulls()
    return described_kernels(distinct), table, facts


_FACTS: Final = {"dispatch_id": pl.Int32, "registers_per_thread": pl.Int64}


def copies(moved: pl.DataFrame, filled: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The table `memory_copies`; `devices` gives a process's own numbers of devices their `device_id`."""
    direction = pl.col("kind").replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String)
    rows = pl.concat(
        [moved.with_columns(direction=direction), filled.with_columns(direction=pl.lit(_FILL))], how="diagonal"
    )
    for end in ("source", "destination"):
        known = devices.drop_nulls().rename({"device": end, "device_id": f"{end}_known"})
        rows = rows.join(known, on=["process_id", end], how="left", maintain_order="left")
    own = pl.col("device_id")
    is_from = pl.col("direction").is_in(["device_to_host", "device_to_device"])
    is_to = pl.col("direction").is_in(["host_to_device", "device_to_device", _FILL])
    # A copy between two devices names both; any other only the one that carried it out.
    peers = pl.col("kind") == 10
    return to_contract(
        "memory_copies",
        rows.select(
            *_WHO,
            "direction",
            copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
            source_device_id=pl.coalesce("source_known", pl.when(is_from & peers.not_()).then(own)),
            destination_device_id=pl.coalesce("destination_known", pl.when(is_to & ~peers.fill_null(False)).then(own)),
            size_bytes=pl.when(pl.col("bytes") >= 0).then("bytes"),
        ),
    )


def waits(recorded: pl.DataFrame, events: pl.DataFrame, *, numbered_right: bool) -> pl.DataFrame:
    """The table `synchronizations`; `events` are the recorded events that a wait names by their number.

    A wait's kind is what its call says; of a wait without one it is what the waits of the same number are whose calls
    say it. Real exports before schema 3.25 number the kinds otherwise than their own list of kinds says, so that the
    number alone (`numbered_right`) counts since then.
    """
    named = events.filter(pl.col("event").is_between(1, _NO_EVENT - 1)).select(
        "process_id",
        "event",
        waited_stream_id="stream_id",
        waited_correlation_id=pl.when(pl.col("correlation") > 0).then("correlation").cast(pl.UInt64, strict=False),
    )
    rows = recorded.join(
        named.unique(["process_id", "event"], keep="none", maintain_order=True),
        on=["process_id", "event"],
        how="left",
        maintain_order="left",
    )
    said = pl.coalesce(
        pl.when(pl.col("call").str.contains(pattern)).then(pl.lit(kind)) for pattern, kind in _WAIT_CALLS.items()
    )
    rows = rows.with_columns(said=said)
    alike = rows.drop_nulls(["said", "kind"]).select("kind", alike="said").unique().unique("kind", keep="none")
    rows = rows.join(alike, on="kind", how="left", maintain_order="left")
    stated = pl.col("kind").replace_strict(_WAIT_KINDS, default=None, return_dtype=pl.String)
    return to_contract(
        "synchronizations",
        rows.select(
            *_WHO,
            *("waited_stream_id", "waited_correlation_id"),
            synchronization_id=pl.int_range(pl.len(), dtype=pl.Int32),
            kind=pl.coalesce("said", "alike", *([stated] if numbered_right else []), pl.lit("unknown")),
        ),
    )
