"""What program-counter samples say about single instructions, and why wavefronts stalled by the hardware's own word.

Samples count moments, not cycles, so no column of cycles is filled. A reason counts only where the sampled wavefront
issued nothing: the hardware's field holds a reason in other samples too, left over from before. Host-trap samples have
no reason at all.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

#: The hardware's reasons, as the readers name them, in words.
REASONS: Final[Mapping[str, str]] = {
    "none": "no reason given",
    "no_instruction_available": "instruction fetch",
    "alu_dependency": "result of an ALU instruction not ready",
    "waitcnt": "wait counter",
    "internal_instruction": "internal instruction",
    "barrier_wait": "barrier",
    "arbiter_not_win": "other wavefront chosen",
    "arbiter_win_ex_stall": "execution unit busy",
    "other_wait": "other wait",
    "sleep_wait": "sleep",
}
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
_PLACE: Final = (*_KEYS, "code_object_id", "address", "instruction", "source")


def sampled_instructions(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """The sampled instructions: kernel_id, dispatch_id, capture (null), code_object_id, address, instruction, source
    and samples.

    `pc_samples` is the table, `dispatches` has dispatch_id and kernel_id. Samples of all dispatches of a kernel are
    summed; dispatch_id is null unless all are of one. Every sample counts, whether the wavefront issued or stalled.
    """
    return (
        _of_kernels(pc_samples, dispatches)
        .group_by(_PLACE)
        .agg(samples=pl.len().cast(pl.Int64))
        .sort(*_PLACE, nulls_last=True)
    )


def sample_reasons(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """How often which reason was found: kernel_id, dispatch_id, capture (null), reason (in words), samples.

    Stalled samples only.
    """
    return _counted(
        _of_kernels(pc_samples.filter(~pl.col("wave_issued")), dispatches).select(
            *_KEYS, reason=pl.col("stall_reason").fill_null("none"), samples=pl.lit(1, pl.Int64)
        )
    )


def listed_reasons(sampled_stalls: pl.DataFrame) -> pl.DataFrame:
    """As `sample_reasons`, of a listing that has kernel_id, dispatch_id, capture and a column of counts a reason.

    The decoder's listing counts stalled samples only.
    """
    return _counted(
        sampled_stalls.unpivot(
            [name for name in REASONS if name in sampled_stalls.columns],
            index=list(_KEYS),
            variable_name="reason",
            value_name="samples",
        )
    )


def sampled_stalls(reasons: pl.DataFrame) -> pl.DataFrame:
    """`att_stalls` of sampled kernels, from what `sample_reasons` and `listed_reasons` give; cycles are null."""
    found = reasons.group_by(*_KEYS, "reason").agg(pl.col("samples").sum())
    return found.select(
        "kernel_id",
        "dispatch_id",
        "reason",
        stall_cycles=pl.lit(None, pl.Int64),
        samples="samples",
        share_ratio=pl.col("samples") / pl.col("samples").sum().over(_KEYS),
        capture="capture",
    ).sort(*_KEYS, "samples", "reason", descending=[False, False, False, True, False], nulls_last=True)


def _of_kernels(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """The samples with their kernel, and with their dispatch only where the kernel was sampled in no other.

    They are of no thread trace.
    """
    one = pl.col("dispatch_id").n_unique().over("kernel_id") == 1
    return pc_samples.join(
        dispatches.select("dispatch_id", "kernel_id"), on="dispatch_id", how="left", maintain_order="left"
    ).with_columns(dispatch_id=pl.when(one).then("dispatch_id"), capture=pl.lit(None, pl.String))


def _counted(reasons: pl.DataFrame) -> pl.DataFrame:
    return (
        reasons.with_columns(pl.col("reason").replace(REASONS))
        .group_by(*_KEYS, "reason")
        .agg(pl.col("samples").sum())
        .filter(pl.col("samples") > 0)
        .sort(*_KEYS, "reason", nulls_last=True)
    )
