"""Time the encoder of Perfetto traces against the builders of the perfetto package, on the same data in one run.

Half of the slices are launches, half the kernels they launch, each pair joined by a flow; every twentieth slice brings
a counter value. Run as `python benchmarks/perfetto_encoding.py --slices 1000000`; it exits with 1 when the encoder is
not ten times as fast as both builders, or when the two traces do not hold the same.
"""

import argparse
import io
import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
import polars as pl
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder, TraceProtoBuilder

from aaco_pipeline.report.perfetto.encoding import Track, encode

THREAD, DEVICE, POWER = 1, 2, 3
TRACKS: Final = (Track(THREAD, "launches"), Track(DEVICE, "kernels"), Track(POWER, "power", kind="counter", unit="W"))
BUILDER_SLICES: Final = 100_000
REPEATS: Final = 5
REQUIRED_RATIO: Final = 10.0


def invented(slices: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Slices in time order, two per pair, and counter values."""
    random = np.random.default_rng(0)
    pairs = slices // 2
    launch = np.cumsum(random.integers(500, 3_000, pairs))
    start = np.stack([launch, launch + 400], axis=1).ravel()
    frame = pl.DataFrame(
        {
            "track": np.tile(np.array([THREAD, DEVICE], np.uint64), pairs),
            "start_ns": start,
            "end_ns": start + random.integers(50, 400, 2 * pairs),
            "name": np.repeat(np.array([f"kernel_{i}" for i in range(64)])[random.integers(0, 64, pairs)], 2),
            "flow_id": np.repeat(np.arange(pairs, dtype=np.uint64), 2),
            "flow_role": pl.Series(["out", "in"] * pairs),
        }
    )
    times = launch[::10]
    counters = pl.DataFrame(
        {"track": np.full(len(times), POWER, np.uint64), "time_ns": times, "value": random.random(len(times))}
    )
    return frame, counters


def encoded(frame: pl.DataFrame, counters: pl.DataFrame) -> bytes:
    return b"".join(encode(TRACKS, frame, counters))


def built_in_memory(frame: pl.DataFrame, counters: pl.DataFrame) -> bytes:
    builder = TraceProtoBuilder()
    fill(frame, counters, builder.add_packet, lambda packet: None)
    return bytes(builder.serialize())


def built_as_stream(frame: pl.DataFrame, counters: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    builder = StreamingTraceProtoBuilder(content)
    fill(frame, counters, builder.create_packet, builder.write_packet)
    return content.getvalue()


def fill(
    frame: pl.DataFrame,
    counters: pl.DataFrame,
    new: Callable[[], TracePacket],
    done: Callable[[TracePacket], None],
) -> None:
    """One packet per begin, end and value, as the builder's own documentation shows, with interned names.

    The builder is spared the sorting and the checks that the encoder does.
    """
    packet = new()
    packet.trusted_packet_sequence_id, packet.sequence_flags = 1, 1
    names = {name: iid for iid, name in enumerate(frame["name"].unique(maintain_order=True), 1)}
    for name, iid in names.items():
        packet.interned_data.event_names.add(iid=iid, name=name)
    done(packet)
    for track in TRACKS:
        packet = new()
        packet.track_descriptor.uuid, packet.track_descriptor.name = track.uuid, track.name
        if track.kind == "counter":
            packet.track_descriptor.counter.unit_name = track.unit
        done(packet)
    begin, end, value_type = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_COUNTER
    for uuid, start_ns, end_ns, name, flow_id, flow_role in frame.iter_rows():
        packet = new()
        packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = start_ns, 1, 2
        event = packet.track_event
        event.type, event.track_uuid, event.name_iid = begin, uuid, names[name]
        (event.flow_ids if flow_role == "out" else event.terminating_flow_ids).append(flow_id)
        done(packet)
        packet = new()
        packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = end_ns, 1, 2
        event = packet.track_event
        event.type, event.track_uuid = end, uuid
        done(packet)
    for uuid, time_ns, value in counters.iter_rows():
        packet = new()
        packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = time_ns, 1, 2
        event = packet.track_event
        event.type, event.track_uuid, event.double_counter_value = value_type, uuid, value
        done(packet)


def content_of(trace: bytes) -> Counter[tuple[object, ...]]:
    """All events of a trace, whatever their order."""
    return Counter(
        (
            *(packet.timestamp, packet.track_event.type, packet.track_event.track_uuid, packet.track_event.name_iid),
            *(*packet.track_event.flow_ids, "→", *packet.track_event.terminating_flow_ids),
            packet.track_event.double_counter_value,
        )
        for packet in Trace.FromString(trace).packet
        if packet.HasField("track_event")
    )


def processor_seconds(
    make: Callable[[pl.DataFrame, pl.DataFrame], bytes], data: tuple[pl.DataFrame, pl.DataFrame]
) -> tuple[float, int]:
    """The median over all repeats of the processor time of this process, and the size of the trace."""
    seconds = []
    for _ in range(REPEATS):
        before = time.process_time()
        content = make(*data)
        seconds.append(time.process_time() - before)
    return median(seconds), len(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=1_000_000)
    slices = max(2, parser.parse_args().slices // 2 * 2)
    data = invented(slices)
    few = min(slices, BUILDER_SLICES)
    few_data = invented(few)

    print(f"Processor time of the process, medians of {REPEATS}; uncompressed, into memory.")
    if few < slices:
        print(f"The builders get {few:,} slices and are compared by their rate: they take long.")
    seconds, size = processor_seconds(encoded, data)
    rate = slices / seconds
    print(
        f"{'aaco_pipeline.report.perfetto.encoding':28} {slices:>10,} slices {seconds:8.3f} s {rate:12,.0f} slices/s"
        f" {size / slices:6.1f} bytes/slice"
    )
    fast_enough = True
    for name, make in (("TraceProtoBuilder", built_in_memory), ("StreamingTraceProtoBuilder", built_as_stream)):
        seconds, size = processor_seconds(make, few_data)
        ratio = rate * seconds / few
        fast_enough &= ratio >= REQUIRED_RATIO
        print(
            f"{name:28} {few:>10,} slices {seconds:8.3f} s {few / seconds:12,.0f} slices/s"
            f" {size / few:6.1f} bytes/slice; the encoder is {ratio:.1f} times as fast"
        )
    same = content_of(encoded(*few_data)) == content_of(built_in_memory(*few_data))
    print(f"Both traces hold the same events: {'yes' if same else 'NO'}")
    print(f"At least {REQUIRED_RATIO:g} times as fast as either builder: {'yes' if fast_enough else 'NO'}")
    return 0 if same and fast_enough else 1


if __name__ == "__main__":
    sys.exit(main())
