"""A kernel's instructions with what each cost, the hottest region first, as `terminal` and `html` show them.

A region is a stretch of the program that ends with a branch, a barrier or the end of the program. Within a shown region
the instructions are in program order; stretches in which next to nothing was lost are folded, as are all other regions.
How it is put into words is `aaco_pipeline.report.words.instruction_text`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.report.words.instruction_text import Fold, Line, Listing, Region
from aaco_pipeline.report.words.printable import in_a_line

#: Instructions with less than this part of the kernel's stalls, and whose neighbours have less too, are folded.
_COLD_RATIO: Final = 0.002
_SHORTEST_FOLD: Final = 3
_MISSING: Final = "–"
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
_ENDS: Final = ("branch", "barrier")
Row = Mapping[str, Any]


def listings(
    instructions: pl.DataFrame, stalls: pl.DataFrame, kernels: pl.DataFrame, *, regions: int = 3
) -> list[Listing]:
    """A listing for each kernel, dispatch and thread trace in `att_instructions`, traced ones first, and of those what
    lost most.

    `instructions` is `att_instructions`, `stalls` `att_stalls`, `kernels` has kernel_id and name. At most `regions`
    regions of each are shown, and none in which nothing was lost.
    """
    names = dict(kernels.select("kernel_id", "name").iter_rows())
    found = []
    ordered = instructions.sort("code_object_id", "address", "line", nulls_last=True, maintain_order=True)
    apart = [*_KEYS, pl.col("stall_cycles").is_not_null().alias("traced")]
    for (kernel_id, dispatch_id, capture, traced), own in ordered.group_by(apart, maintain_order=True):
        unit, amount = ("cycles", "stall_cycles") if traced else ("samples", "samples")
        reasons = stalls.filter(
            pl.col("kernel_id").eq_missing(pl.lit(kernel_id))
            & pl.col("dispatch_id").eq_missing(pl.lit(dispatch_id))
            & pl.col("capture").eq_missing(pl.lit(capture))
            & pl.col(amount).is_not_null()
        ).sort(amount, "reason", descending=[True, False], maintain_order=True)
        found.append(
            _listing(
                [_line(row, amount) for row in own.iter_rows(named=True)],
                _split(own),
                regions,
                kernel=_clean(names.get(kernel_id)),
                dispatch_id=dispatch_id,
                capture=_clean(capture),
                unit=unit,
                reasons=tuple(
                    (_clean(reason) or _MISSING, lost, ratio)
                    for reason, lost, ratio in reasons.select("reason", amount, "share_ratio").iter_rows()
                ),
            )
        )
    return sorted(found, key=lambda one: (one.unit != "cycles", -one.lost))


def listings_of_rows(
    instructions: Sequence[Row], stalls: Sequence[Row], kernels: Sequence[Row], *, regions: int = 3
) -> list[Listing]:
    """The same from rows of those tables, as a document holds them; rows may lack the session's id."""
    names = {row["kernel_id"]: row["name"] for row in kernels}
    return listings(
        pl.DataFrame(instructions, schema=polars_types("att_instructions")),
        pl.DataFrame(stalls, schema=polars_types("att_stalls")),
        pl.DataFrame([*names.items()], schema=polars_types("kernels", "kernel_id", "name"), orient="row"),
        regions=regions,
    )


def _listing(lines: Sequence[Line], starts: Sequence[int], shown: int, **named: Any) -> Listing:
    whole = sum(line.lost or 0 for line in lines)
    most = max((max(line.lost or 0, line.charged or 0) for line in lines), default=0)
    stretches = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    hottest = sorted(stretches, key=lambda stretch: -sum(line.lost or 0 for line in stretch))
    told = [stretch for stretch in hottest[:shown] if any(line.lost for line in stretch)]
    rest = hottest[len(told) :]
    return Listing(
        lost=whole,
        most=most,
        sourced=any(line.source for line in lines),
        regions=tuple(_region(stretch, whole) for stretch in told),
        rest=_fold([line for stretch in rest for line in stretch], regions=len(rest)) if rest else None,
        **named,
    )


def _split(instructions: pl.DataFrame) -> list[int]:
    """The positions at which regions begin, for instructions in program order."""
    ends = pl.col("instruction_class").is_in(_ENDS) | pl.col("instruction").str.starts_with("s_endpgm")
    begins = ends.shift(1).fill_null(False) | (pl.col("code_object_id").ne_missing(pl.col("code_object_id").shift(1)))
    found = instructions.select(begins.fill_null(False)).to_series().arg_true().to_list()
    return found if found and found[0] == 0 else [0, *found]


def _line(row: Row, amount: str) -> Line:
    return Line(
        row["line"],
        row["address"],
        _clean(row["instruction"]) or "(not decoded)",
        _clean(row["instruction_class"]) or _MISSING,
        row["hits"],
        row[amount],
        row["charged_stall_cycles"],
        _clean(row["source"]),
    )


def _clean(text: str | None) -> str | None:
    return None if text is None else in_a_line(text)


def _region(lines: Sequence[Line], whole: int) -> Region:
    least = max(1, _COLD_RATIO * whole)
    warm = [max(line.lost or 0, line.charged or 0) >= least for line in lines]
    near = [any(warm[max(0, at - 1) : at + 2]) for at in range(len(lines))]
    lost = sum(line.lost or 0 for line in lines)
    return Region(lines[0], lines[-1], len(lines), lost, tuple(_folded(lines, near)))


def _folded(lines: Sequence[Line], shown: Sequence[bool]) -> Iterator[Line | Fold]:
    """The lines, runs of those that are not to be shown replaced by a fold where that saves something."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and shown[end] == shown[at]:
            end += 1
        if shown[at] or end - at < _SHORTEST_FOLD:
            yield from lines[at:end]
        else:
            yield _fold(lines[at:end])
        at = end


def _fold(lines: Sequence[Line], *, regions: int = 0) -> Fold:
    lost, charged = sum(line.lost or 0 for line in lines), sum(line.charged or 0 for line in lines)
    return Fold(len(lines), lost, charged, regions)
