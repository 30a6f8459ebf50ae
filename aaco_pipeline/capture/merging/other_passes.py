"""What the parts beside the base trace add to it: samples, each at the dispatch it belongs to.

Counters are `aaco_pipeline.capture.merging.counted`.
"""

from collections.abc import Sequence

import polars as pl

from aaco_pipeline.capture.merging.base import Base, renumbered
from aaco_pipeline.capture.merging.parts import NamedReading


def pc_samples(parts: Sequence[NamedReading], base: Base) -> pl.DataFrame:
    """All samples of the program counter, numbered one part after another."""
    found = []
    for part in parts:
        samples = part.table("pc_samples")
        if part.name in base.dispatch_offsets:
            offsets = {"dispatch_id": base.dispatch_offsets[part.name], "time_ns": base.time_offsets[part.name]}
            found.append(renumbered(samples, offsets, {}))
        else:
            # Another run's clock: its times say nothing on this axis.
            found.append(samples.with_columns(time_ns=pl.lit(None, pl.Int64), dispatch_id=pl.lit(None, pl.Int32)))
    return pl.concat(found).with_columns(sample_id=pl.int_range(pl.len(), dtype=pl.Int32))
