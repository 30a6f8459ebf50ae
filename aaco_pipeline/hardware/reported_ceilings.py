"""What benchmarks are reported to sustain on a product: less than it is published to do, and nearer to what code can.

A figure of a product is a share of what the product is published to do, and a device of it, whole or partitioned, has
that share of its own published ceiling. A device that is of no recognized product gets the largest share that any
product of its architecture has, so that it is never held against less than such a device may reach.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from aaco_pipeline.hardware.architecture import Architecture, Product, SourcedValue
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.ceilings import SCHEMA
from aaco_pipeline.hardware.device_facts import device_facts

_MATRIX: Final = ("fp16", "bf16", "fp8")
_Share = tuple[float, str]


def reported_ceilings(devices: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """The rows of the table `ceilings` with the source `reported`.

    Args:
        devices: rows of the table `devices`.
        published: what `spec_ceilings` gives for them.

    Returns:
        The columns of `ceilings.SCHEMA`. Resources for which no benchmark is known have no row.
    """
    rows = [
        (row["device_id"], resource, dtype, share, reference)
        for row in devices.iter_rows(named=True)
        if (known := architecture(row["arch"])) is not None
        for (resource, dtype), (share, reference) in _shares(device_facts(row, known).product, known).items()
    ]
    schema = {
        "device_id": pl.Int32,
        "resource": pl.String,
        "dtype": pl.String,
        "share": pl.Float64,
        "reported": pl.String,
    }
    shares = pl.DataFrame(rows, schema=schema, orient="row")
    reached = published.join(shares, on=["device_id", "resource", "dtype"], nulls_equal=True, maintain_order="left")
    return reached.select(
        "device_id",
        "resource",
        "dtype",
        pl.col("value") * pl.col("share"),
        "unit",
        source=pl.lit("reported"),
        reference="reported",
    ).cast(SCHEMA)


def _shares(product: Product | None, known: Architecture) -> Mapping[tuple[str, str | None], _Share]:
    """By resource and number format the share of the published ceiling, with what it rests on."""
    if product is not None:
        return dict(_of_product(product, known))
    largest: dict[tuple[str, str | None], _Share] = {}
    for one in known.products:
        for key, share in _of_product(one, known):
            largest[key] = max(share, largest.get(key, share))
    return largest


def _of_product(product: Product, known: Architecture) -> Iterator[tuple[tuple[str, str | None], _Share]]:
    memory = product.memory_bandwidth
    if memory is not None and product.achieved_memory_bandwidth is not None:
        yield from _share("dram", None, product, product.achieved_memory_bandwidth, memory.value)
    reached = (product.achieved_matrix_fp16, product.achieved_matrix_bf16, product.achieved_matrix_fp8)
    units, clock = product.compute_units, product.matrix_clock_mhz or product.max_clock_mhz
    for dtype, figure in zip(_MATRIX, reached, strict=True):
        rate = known.operations.get("matrix", {}).get(dtype)
        if figure is not None and rate is not None and units is not None and clock is not None:
            peak = rate.value * units.value * clock.value * 1e6
            yield from _share("matrix", dtype, product, figure, peak)


def _share(
    resource: str, dtype: str | None, product: Product, figure: SourcedValue, published: float
) -> Iterator[tuple[tuple[str, str | None], _Share]]:
    share = figure.value / published
    said = f"{share:.3f} of the published ceiling, as {product.name}: {figure.words} ({figure.source})"
    yield (resource, dtype), (share, said)
