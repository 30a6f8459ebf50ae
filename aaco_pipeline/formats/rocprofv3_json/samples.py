"""rocprofv3's program-counter samples, host-trap and stochastic, to the canonical table `pc_samples`."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from aaco_pipeline.formats.rocprofv3_json.columns import INSTRUCTIONS, KEY, STALLS, coded
from aaco_pipeline.formats.rocprofv3_json.processes import Process
from aaco_pipeline.lake.validation import to_contract

_STOCHASTIC: Final = "pc_sample_stochastic"
SAMPLES: Final = ("pc_sample_host_trap", _STOCHASTIC)
_TRUTH: Final = {"1": True, "true": True, "0": False, "false": False}


def pc_samples(processes: Sequence[Process], keys: pl.DataFrame) -> pl.DataFrame:
    """The samples of all processes; `keys` are the dispatches with their `process_id` and `source_dispatch_id`.

    Of a wavefront that issued, the reason field is left over from before; of one that did not, the type field is.
    """
    first = keys.unique(["process_id", "source_dispatch_id"], keep="first", maintain_order=True)
    frames = [
        _samples(process, place, kind, pl.lit(kind == _STOCHASTIC))
        for place, process in enumerate(processes)
        for kind in SAMPLES
    ]
    frame = pl.concat(frames).join(first, on=["process_id", "source_dispatch_id"], how="left", maintain_order="left")
    return to_contract("pc_samples", frame.drop("process_id").with_columns(sample_id=pl.int_range(pl.len(), dtype=KEY)))


def _samples(process: Process, place: int, kind: str, stochastic: pl.Expr) -> pl.DataFrame:
    record = pl.col("record").struct
    position = record.field("pc").struct
    truth = record.field("wave_issued").str.to_lowercase()
    issued = truth.replace_strict(_TRUTH, default=None, return_dtype=pl.Boolean)
    instruction_type = coded(record.field("inst_type"), INSTRUCTIONS, "TYPE_")
    stall = coded(record.field("snapshot").struct.field("stall_reason"), STALLS, "REASON_")
    return process.frame(kind).select(
        process_id=pl.lit(place, KEY),
        time_ns=record.field("timestamp").cast(pl.Int64, strict=False),
        source_dispatch_id=record.field("dispatch_id"),
        correlation_id=record.field("corr_id").struct.field("internal"),
        code_object_id=position.field("code_object_id"),
        address=position.field("code_object_offset"),
        instruction=_text(process, "pc_sample_instructions"),
        source=_text(process, "pc_sample_comments"),
        execution_mask=record.field("exec_mask"),
        wave_issued=pl.when(stochastic).then(issued),
        instruction_type=pl.when(stochastic & issued).then(instruction_type),
        stall_reason=pl.when(stochastic & ~issued).then(stall),
        active_waves=record.field("wave_cnt"),
    )


def _text(process: Process, name: str) -> pl.Expr:
    """The text that a sample's index names; -1 names none."""
    listed = process.part("strings", name)
    texts = [text if isinstance(text, str) and text else None for text in listed] if isinstance(listed, list) else []
    places, words = pl.Series(range(len(texts)), dtype=pl.Int64), pl.Series(texts, dtype=pl.String)
    return pl.col("inst_index").replace_strict(places, words, default=None, return_dtype=pl.String)
