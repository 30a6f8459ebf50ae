"""The roofs that rocprof-compute measured, `roofline.csv`: which of them hold for the devices that ran kernels.

The benchmark runs on every device of the machine and numbers them by its own order; which number is whose the file does
not say. Where all numbered devices reach the same, the number does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import polars.selectors as cs

from aaco_pipeline.hardware.ceilings import measured_ceilings
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Devices whose figures differ by no more than this part of their mean are taken to agree. The bounds that such files
#: give a single device's figures lie up to 2.5 % apart (matrix BF16 of an MI200).
AGREEMENT: Final = 0.01
_BOUNDS: Final = ("low", "high")


@dataclass(frozen=True)
class MeasuredRoofs:
    """`ceilings` is the table; `reason` why not all of the file's figures are in it, None where they are."""

    ceilings: pl.DataFrame
    reason: str | None


def measured_roofs(roofline: pl.DataFrame, device_ids: Sequence[int]) -> MeasuredRoofs:
    """The roofs of the devices that ran kernels, from the file's columns as numbers where they hold nothing else.

    Of several measured devices a figure is their mean, where they agree; one in which they differ is left out.
    """
    nothing = empty_table("ceilings")
    name = next((one for one in roofline.columns if one.lower() == "device"), None)
    numbers = None if name is None else roofline.get_column(name)
    if name is None or numbers is None or not numbers.dtype.is_float() or not len(numbers) or numbers.null_count():
        return MeasuredRoofs(nothing, "the file does not number its devices; they are kept in roofline only")
    if not numbers.is_between(0, 2**31).all():
        return MeasuredRoofs(nothing, "the file does not number its devices; they are kept in roofline only")
    stated = roofline.select(cs.float())  # what holds anything but numbers was not measured
    if len(device_ids) > roofline.height:
        reason = (
            f"{roofline.height} devices were measured and {len(device_ids)} ran kernels; the file does not say which "
        )
        return MeasuredRoofs(nothing, f"{reason}is which, so they are kept in roofline only")
    if roofline.height == 1:
        return MeasuredRoofs(_of_devices(stated, int(numbers[0]), device_ids, ""), None)
    spreads = {
        column: spread
        for column in stated.columns
        if column != name and not column.lower().endswith(_BOUNDS)
        if (spread := _spread(stated.get_column(column))) is not None
    }
    agreed = [column for column, spread in spreads.items() if spread <= AGREEMENT]
    apart = [column for column in spreads if column not in agreed]
    largest = max((spreads[column] for column in agreed), default=0.0)
    means = stated.select(pl.col(name).first(), *(pl.col(column).mean() for column in agreed))
    how = f"; mean of {roofline.height} devices that agree within {largest:.2%}"
    found = _of_devices(means, int(numbers[0]), device_ids, how) if agreed else nothing
    reason = f"{', '.join(apart)} differ between the {roofline.height} measured devices, and the file does not say "
    return MeasuredRoofs(found, f"{reason}which of them ran kernels; they are kept in roofline only" if apart else None)


def _of_devices(row: pl.DataFrame, number: int, device_ids: Sequence[int], how: str) -> pl.DataFrame:
    """The one row's figures for each device."""
    frames = [measured_ceilings(row, {number: device}) for device in device_ids]
    if not frames:
        return empty_table("ceilings")
    return to_contract("ceilings", pl.concat(frames).with_columns(pl.col("reference") + how))


def _spread(values: pl.Series) -> float | None:
    """By what part of their mean the values differ; None where one of them is not measured."""
    if values.null_count() or not (values > 0).all() or not values.is_finite().all():
        return None
    low, high, mean = (float(values.min()), float(values.max()), float(values.mean()))  # type: ignore[arg-type]
    return (high - low) / mean
