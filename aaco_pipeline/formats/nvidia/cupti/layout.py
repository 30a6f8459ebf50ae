"""The records of a CUPTI stream as numpy types; `aaco_pipeline/recording/profilers/injection.cpp` writes them.

Only layout belongs here. What the fields mean is CUPTI's documentation of its activity records.
"""

from typing import Final

import numpy as np

VERSION: Final = 2
HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("pid", "<u4"),
        ("cupti_version", "<u4"),
        ("driver_version", "<u4"),
        ("monotonic", "<i8"),
        ("realtime", "<i8"),
        ("cupti", "<i8"),
        ("reserved", "<u8", (2,)),
    ]
)
CHUNK: Final = np.dtype([("kind", "<u4"), ("record_bytes", "<u4"), ("count", "<u4"), ("payload_bytes", "<u4")])

#: Added to a kind whose records are columns of steps: see `unpacked` in `packing`.
PACKED: Final = 0x100

#: Chunks of texts: records are a number, a length and so many bytes, filled up to a multiple of four.
NAMES: Final = 1
CALL_NAMES: Final = 12
SYMBOLS: Final = 16
#: Lines of text: what was enabled and refused, and what else the recorder noticed.
NOTES: Final = 15

_SPAN: Final = [("start", "<i8"), ("end", "<i8")]
_LANE: Final = [("device", "<u4"), ("context", "<u4"), ("stream", "<u4"), ("correlation", "<u4")]
RECORDS: Final = {
    2: np.dtype(
        [
            *_SPAN,
            ("queued", "<i8"),
            ("submitted", "<i8"),
            *_LANE,
            ("name", "<u4"),
            *((f"{what}_{axis}", "<u4") for what in ("grid", "block") for axis in "xyz"),
            ("registers", "<u4"),
            ("static_shared", "<u4"),
            ("dynamic_shared", "<u4"),
            ("graph_node", "<u8"),
            ("graph", "<u4"),
            ("local_memory", "<u4"),
        ]
    ),
    3: np.dtype([*_SPAN, ("thread", "<u4"), ("correlation", "<u4"), ("call", "<u4"), ("domain", "<u4")]),
    4: np.dtype(
        [
            *_SPAN,
            ("bytes", "<u8"),
            *_LANE,
            ("kind", "u1"),
            ("source_kind", "u1"),
            ("destination_kind", "u1"),
            ("flags", "u1"),
            ("graph", "<u4"),
            ("graph_node", "<u8"),
            ("source", "<u4"),
            ("destination", "<u4"),
        ]
    ),
    5: np.dtype([*_SPAN, ("bytes", "<u8"), *_LANE, ("value", "<u4"), ("memory_kind", "<u4")]),
    6: np.dtype(
        [
            *_SPAN,
            ("type", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("correlation", "<u4"),
            ("event", "<u4"),
            ("pad", "<u4"),
            ("recording", "<u8"),
        ]
    ),
    7: np.dtype(
        [
            ("time", "<i8"),
            ("address", "<u8"),
            ("bytes", "<u8"),
            ("operation", "<u4"),
            ("memory_kind", "<u4"),
            *_LANE,
            ("process", "<u4"),
            ("pad", "<u4", (3,)),
        ]
    ),
    8: np.dtype(
        [
            ("time", "<i8"),
            ("range", "<u8"),
            ("kind", "<u4"),
            ("thread", "<u4"),
            ("name", "<u4"),
            ("domain", "<u4"),
            ("pad", "<u4", (2,)),
        ]
    ),
    9: np.dtype([*_SPAN, ("kind", "<u4"), ("object", "<u4"), ("thread", "<u4"), ("pad", "<u4")]),
    10: np.dtype(
        [
            ("device", "<u4"),
            ("major", "<u4"),
            ("minor", "<u4"),
            ("multiprocessors", "<u4"),
            ("memory_bytes", "<u8"),
            ("memory_kb_per_s", "<u8"),
            ("clock_khz", "<u4"),
            ("l2_bytes", "<u4"),
            ("threads_per_multiprocessor", "<u4"),
            ("threads_per_warp", "<u4"),
            ("shared_per_multiprocessor", "<u4"),
            ("registers_per_multiprocessor", "<u4"),
            ("threads_per_block", "<u4"),
            ("pad", "<u4"),
            ("name", "S64"),
            ("uuid", "V16"),
            ("reserved", "V16"),
        ]
    ),
    11: np.dtype([("time", "<i8"), ("count", "<u8")]),
    13: np.dtype([("monotonic", "<i8"), ("realtime", "<i8"), ("cupti", "<i8"), ("uncertainty", "<i8")]),
    14: np.dtype([("time", "<i8"), ("reason", "<u4"), ("pad", "<u4")]),
    17: np.dtype(
        [("event", "<u4"), ("context", "<u4"), ("stream", "<u4"), ("correlation", "<u4"), ("recording", "<u8")]
    ),
    18: np.dtype([("context", "<u4"), ("device", "<u4")]),
}
#: What the kinds of records are called here and in evidence.
KERNELS: Final = 2
CALLS: Final = 3
COPIES: Final = 4
FILLS: Final = 5
WAITS: Final = 6
ALLOCATIONS: Final = 7
RANGES: Final = 8
OVERHEADS: Final = 9
DEVICES: Final = 10
DROPPED: Final = 11
CLOCKS: Final = 13
ENDS: Final = 14
EVENTS: Final = 17
CONTEXTS: Final = 18
WORDS: Final = {
    KERNELS: "kernels",
    CALLS: "calls",
    COPIES: "copies",
    FILLS: "fills",
    WAITS: "waits",
    ALLOCATIONS: "allocations",
    RANGES: "ranges' ends and instants",
    OVERHEADS: "overheads",
    DEVICES: "devices",
    EVENTS: "events recorded",
    CONTEXTS: "contexts",
}
#: Fields that no table needs, by kind: not kept, for a stream may hold many millions of records.
UNUSED: Final = {
    KERNELS: ("queued", "submitted", "graph"),
    COPIES: ("flags", "graph", "graph_node"),
    FILLS: ("value",),
    WAITS: ("pad", "event"),
    ALLOCATIONS: ("process", "pad", "stream"),
    RANGES: ("pad", "domain"),
    OVERHEADS: ("object", "thread", "pad"),
    EVENTS: ("event",),
}
