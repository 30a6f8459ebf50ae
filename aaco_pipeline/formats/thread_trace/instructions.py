"""The instructions of a decoded thread trace, and whether its sums agree with its wavefronts and the CSV beside it."""

from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.thread_trace import files
from aaco_pipeline.formats.thread_trace.folder import Folder
from aaco_pipeline.formats.thread_trace.waves import aggregated
from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.validation import empty_table, to_contract

_CYCLE_COLUMNS: Final = ("hits", "latency_cycles", "stall_cycles", "idle_cycles")
_STATISTICS: Final = ("CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source")
_STATISTICS_OF: Final = ("code_object_id", "address", "instruction", *_CYCLE_COLUMNS, "source")


def instruction_rows(folder: Folder, code: pl.DataFrame | None, sampled: bool, listing: dict[str, Any]) -> pl.DataFrame:
    """`att_instructions`; also the details `functions` and `sampled_stalls`."""
    rows = code if code is not None else files.CODE_SCHEMA.to_frame()
    heading = pl.col("instruction").str.starts_with(";").fill_null(False)
    functions = rows.filter(heading)
    folder.details["functions"] = functions.select(
        "line",
        name=pl.col("instruction").str.strip_prefix(";").str.strip_chars(),
        display_name=_stated(pl.col("source")),
        code_object_id=pl.col("code_object_id"),
        address=pl.col("address"),
    )
    rows = rows.filter(~heading)
    folder.details["sampled_stalls"] = rows.filter(pl.col("stall_reasons").is_not_null()).select(
        "line",
        "code_object_id",
        "address",
        "issued",
        "stalled",
        *(
            pl.col("stall_reasons").list.get(number, null_on_oob=True).alias(reason)
            for number, reason in enumerate(files.STALL_REASONS)
        ),
    )
    if code is not None:
        folder.took("code.json instructions", rows.height)
        folder.took("code.json function headings", functions.height)
        folder.have("instructions", rows.height, "code.json lists none")
    elif files.inside(folder.path, "code.json") is not None:
        folder.say("instructions", "absent", "code.json says null: the decoder had no code object for it", 0)
    if sampled:
        _say_samples(folder, listing)
    traced = not sampled or listing.get("thread_trace") is True
    columns = rows.select(
        "code_object_id",
        "address",
        "line",
        instruction=_stated(pl.col("instruction")),
        instruction_class=instruction_class(_stated(pl.col("instruction"))),
        source=_stated(pl.col("source")),
        samples=pl.col("issued") + pl.col("stalled"),
        **{name: pl.col(name) if traced else pl.lit(None, pl.Int64) for name in _CYCLE_COLUMNS},
    )
    return to_contract("att_instructions", columns) if rows.height else empty_table("att_instructions")


def _say_samples(folder: Folder, listing: dict[str, Any]) -> None:
    stalls = folder.details["sampled_stalls"]
    count = int(stalls.select((pl.col("issued") + pl.col("stalled")).sum()).item() or 0)
    folder.have("program-counter samples", count, "all are 0")
    reasons = pl.sum_horizontal(*files.STALL_REASONS)
    apart = stalls.filter(reasons != pl.col("stalled")).height
    if apart:
        why = f"the reasons of {apart} instructions do not add up to their stalled samples"
        folder.say("stall reasons", "invalid", why, stalls.height)
    elif listing.get("is_pcs_stochastic") is False and stalls.filter(reasons > 0).height:
        why = (
            "filenames.json says that the samples are not stochastic, and only stochastic ones have a reason; yet "
            "reasons are there"
        )
        folder.say("stall reasons", "partial", why, stalls.height)
    else:
        folder.say("stall reasons", "present", rows=stalls.height)


def compare_with_waves(folder: Folder, code: pl.DataFrame | None, complete: bool) -> None:
    """State whether the sums in `code.json` follow from the wavefronts, if `complete`: none of them is missing."""
    item = "sums recomputed from the wavefronts"
    waves, executed = folder.details["waves"], folder.details["wave_instructions"]
    if code is None or not waves.height:
        folder.say(item, "absent", "there is no code" if code is None else "there are no wavefronts")
        return
    if not complete:
        folder.say(item, "absent", "not compared: wavefronts that the sums include are missing")
        return
    sums = aggregated(waves, executed)
    joined = code.select("line", *_CYCLE_COLUMNS).join(sums, on="line", how="full", coalesce=True, suffix="_again")
    different = joined.filter(
        pl.any_horizontal(pl.col(name).fill_null(0) != pl.col(f"{name}_again").fill_null(0) for name in _CYCLE_COLUMNS)
        | ~pl.col("line").is_in(code.get_column("line").implode())
    ).height
    told = (
        f"{different} of {joined.height} rows differ in hits, latency, stall or idle cycles; recomputed from "
        f"{executed.height} executed instructions of {waves.height} wavefronts"
    )
    folder.say(item, "invalid" if different else "present", told, executed.height)


def compare_with_statistics(folder: Folder, code: pl.DataFrame | None) -> None:
    """State whether the CSV beside the folder says the same as `code.json`, ordered by code object and address."""
    name = f"stats_{folder.path.name}.csv"
    item = "statistics beside the folder"
    path = files.inside(folder.path.parent, name)
    if path is None:
        folder.say(item, "absent", f"there is no {name}")
        return
    try:
        content = read_decompressed(path, folder.limits)
        stated = pl.read_csv(content, infer_schema=False).fill_null("")
    except (CaptureError, pl.exceptions.PolarsError) as error:
        folder.say(item, "invalid", str(error).removeprefix(f"{path}: ").strip().split("\n", 1)[0])
        return
    if tuple(stated.columns) != _STATISTICS:
        folder.say(item, "invalid", f"its columns are not {', '.join(_STATISTICS)}", stated.height)
    elif code is None:
        folder.say(item, "partial", "there is no code to compare them with", stated.height)
    else:
        listed = code.sort("code_object_id", "address", "line").select(
            pl.col(_STATISTICS_OF).cast(pl.String).fill_null("")
        )
        listed.columns = list(_STATISTICS)
        both = min(stated.height, listed.height)
        unequal = pl.any_horizontal(pl.col(column).ne_missing(pl.col(f"{column}_code")) for column in _STATISTICS)
        beside = pl.concat([stated[:both], listed[:both].rename(lambda one: f"{one}_code")], how="horizontal")
        different = beside.filter(unequal).height + max(stated.height, listed.height) - both
        told = f"{different} of {max(stated.height, listed.height)} rows differ from code.json, which they repeat"
        folder.say(item, "invalid" if different else "present", told, stated.height)
    folder.took(item, stated.height, 0)


def _stated(text: pl.Expr) -> pl.Expr:
    """The text, null where it is empty."""
    return pl.when(text != "").then(text)
