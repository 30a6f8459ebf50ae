"""Device ceilings: peak rates from the architecture, the product or the capture, and rates reported by profilers.

Each row names its source. The data files are read by `aaco_pipeline.hardware.architecture_files`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.hardware.architecture import Architecture, MemoryLevel, Product, SourcedValue
from aaco_pipeline.hardware.architecture_files import architecture, why_unknown
from aaco_pipeline.hardware.device_facts import DeviceFacts, Fact, device_facts

SCHEMA: Final = pl.Schema(
    {
        "device_id": pl.Int32,
        "resource": pl.String,
        "dtype": pl.String,
        "value": pl.Float64,
        "unit": pl.String,
        "source": pl.String,
        "reference": pl.String,
    }
)
_MEGA: Final = 1e6
_GIGA: Final = 1e9
_WHOLE_NUMBERS: Final = "int"
#: Formats whose matrix instructions run at the product's matrix clock, if it has one.
_AT_ENGINE_CLOCK: Final = ("fp64",)
#: Columns of rocprof-compute's `roofline.csv` in lower case, in giga-operations or gigabytes per second.
_MEASURED: Final[Mapping[str, tuple[str, str | None]]] = {
    "hbmbw": ("dram", None),
    "l2bw": ("l2", None),
    "l1bw": ("vl1d", None),
    "ldsbw": ("lds", None),
    "fp16flops": ("vector", "fp16"),
    "fp32flops": ("vector", "fp32"),
    "fp64flops": ("vector", "fp64"),
    "i32ops": ("vector_integer", "int32"),
    "mfmaf64flops": ("matrix", "fp64"),
    "mfmaf32flops": ("matrix", "fp32"),
    "mfmaf16flops": ("matrix", "fp16"),
    "mfmabf16flops": ("matrix", "bf16"),
    "mfmaf8flops": ("matrix", "fp8"),
    "mfmaf6flops": ("matrix", "fp6"),
    "mfmaf4flops": ("matrix", "fp4"),
    "mfmai8ops": ("matrix", "int8"),
}


@dataclass(frozen=True)
class _Ceiling:
    resource: str
    dtype: str | None
    value: float
    unit: str
    reference: str


def spec_ceilings(devices: pl.DataFrame, extensions: Mapping[int, frozenset[str]] | None = None) -> pl.DataFrame:
    """Compute the rows of the table `ceilings` from published figures.

    Args:
        devices: rows of the table `devices`.
        extensions: instruction-set flags of each CPU by device_id, as Linux names them (`avx2`, `avx512f`,
            `avx512_vnni`); without them a CPU has no ceilings of arithmetic.

    Returns:
        `SCHEMA`, source `spec`. Devices of unknown architecture and resources with unknown figures have no rows;
        `missing_ceilings` says why.
    """
    rows = [
        (device, one.resource, one.dtype, one.value, one.unit, "spec", one.reference)
        for device, known, facts, flags in _described(devices, extensions)
        for one in (_of_cpu(facts, known, flags) if known.extensions else _of_gpu(facts, known))
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def missing_ceilings(
    devices: pl.DataFrame, extensions: Mapping[int, frozenset[str]] | None = None
) -> dict[int, tuple[str, ...]]:
    """Return, by device_id, why `spec_ceilings` lacks rows for a device; devices with all rows are omitted."""
    named = devices.select("device_id", "arch").iter_rows()
    reasons: dict[int, tuple[str, ...]]
    reasons = {device: (why_unknown(arch),) if architecture(arch) is None else () for device, arch in named}
    for device, known, facts, flags in _described(devices, extensions):
        reasons[device] = tuple(_why_missing(facts, known, flags))
    return {device: said for device, said in reasons.items() if said}


def _described(
    devices: pl.DataFrame, extensions: Mapping[int, frozenset[str]] | None
) -> Iterator[tuple[int, Architecture, DeviceFacts, frozenset[str]]]:
    """Yield each device of known architecture with that, its facts and, for a CPU, its instruction-set flags."""
    for row in devices.iter_rows(named=True):
        known = architecture(row["arch"])
        if known is not None:
            flags = (extensions or {}).get(row["device_id"], frozenset())
            yield row["device_id"], known, device_facts(row, known), flags


def _why_missing(facts: DeviceFacts, known: Architecture, flags: frozenset[str]) -> Iterator[str]:
    if facts.compute_units is None:
        unknown = _not_of(facts, known, "compute_units")
        yield f"no {known.compute_unit}s: the capture does not state how many, and {unknown}"
    if facts.clock_mhz is None:
        unknown = _not_of(facts, known, "max_clock_mhz")
        yield f"no clock: the capture does not state the highest engine clock, and {unknown}"
    if known.extensions:
        if not flags & set(known.extensions):
            yield "no arithmetic: the extensions of the CPU's instruction set are not stated"
        yield "no l3 and no dram: neither the cache's width nor the memory's channels are stated"
    elif facts.memory_bandwidth is None:
        unknown = known.why_null("memory_transfers_per_clock") or _not_of(facts, known, "memory_bandwidth")
        yield f"no dram: the capture does not state the memory's clock and width, and {unknown}"
    if facts.product is not None and facts.infinity_cache is None:
        place = f"products.{facts.product.name}.infinity_cache_bytes"
        if facts.product.infinity_cache_bytes is not None or known.why_null(place) is not None:
            yield f"no infinity_cache and no fabric: {_not_of(facts, known, 'infinity_cache_bandwidth')}"
    if not known.extensions and "l2" not in known.memory_levels and facts.l2 is None:
        yield f"no l2: the width of the L2 cache of {known.name} is not known"
    yield from _why_null(facts, known, flags)
    if not known.extensions and facts.wavefront_size is None:
        yield "no vector_issue: the capture does not state the size of a wavefront"


def _not_of(facts: DeviceFacts, known: Architecture, figure: str) -> str:
    """Explain why the product lacks a figure: it is unknown or cannot be sourced."""
    if facts.product is None:
        return "the product is not known"
    why = known.why_null(f"products.{facts.product.name}.{figure}")
    return f"of {facts.product.name} it is not known: {why or 'its file does not have it'}"


def _why_null(facts: DeviceFacts, known: Architecture, flags: frozenset[str]) -> Iterator[str]:
    """Map each reason for a null figure in the data to the ceilings that the device lacks because of it."""
    lost: dict[str, str] = {}
    for one in known.figures:
        ceiling = _ceiling_of(one.name, facts, flags) if one.value is None else None
        if ceiling is not None:
            lost.setdefault(ceiling, one.note or "")
    for reason in dict.fromkeys(lost.values()):
        ceilings = (ceiling for ceiling, said in lost.items() if said == reason)
        yield f"no {' and no '.join(ceilings)}: {reason}"


def _ceiling_of(figure: str, facts: DeviceFacts, flags: frozenset[str]) -> str | None:
    """Name the ceiling that is computed from an architecture figure, given the figure's path in the file."""
    path = figure.split(".")
    if path[0] == "extensions":
        if path[1] not in flags:
            return None
        path = path[2:]
    if path[0] == "operations_per_clock_per_cu":
        return f"{path[1]} {path[2]}"
    if path[0] == "memory_levels" and path[2] in ("bytes_per_clock", "channels_per_xcd"):
        is_measured = path[1] == "l2" and facts.l2 is not None
        return None if is_measured else path[1]
    issues = ("simds_per_cu", f"instructions_per_clock_per_simd.wave{facts.wavefront_size}")
    return "vector_issue" if figure in issues else None


def measured_ceilings(roofline: pl.DataFrame, device_ids: Mapping[int, int]) -> pl.DataFrame:
    """Convert the ceilings measured by rocprof-compute's benchmark to rows of the table `ceilings`.

    Args:
        roofline: The unmodified `roofline.csv`: `device` and, per resource, the mean and its bounds (`HBMBw`,
            `HBMBwLow`, `HBMBwHigh`) in GB/s or Gop/s. Column names are case-insensitive, because one is written
            `hbmBwHigh`; only means are used, so the typo `MFMAFI8OpsLow` is harmless.
        device_ids: device_id by number in `device`; other rows are omitted.

    Returns:
        `SCHEMA`, source `measured`. Values of 0 and below mean not measured and have no row.
    """
    columns = {name.lower(): name for name in roofline.columns}
    if "device" not in columns:
        raise ValueError("the frame has no column device")
    number = pl.col(columns["device"]).cast(pl.Int64)
    numbers = pl.DataFrame(
        {"number": list(device_ids), "device_id": list(device_ids.values())},
        schema={"number": pl.Int64, "device_id": pl.Int32},
    )
    devices = roofline.with_columns(number=number).join(numbers, on="number", maintain_order="left")
    rows = [
        devices.select(
            "device_id",
            resource=pl.lit(resource),
            dtype=pl.lit(dtype, pl.String),
            value=pl.col(columns[key]).cast(pl.Float64) * _GIGA,
            unit=pl.lit(_unit(resource, dtype)),
            source=pl.lit("measured"),
            reference=pl.lit(f"roofline.csv of rocprof-compute, column {columns[key]}"),
        )
        for key, (resource, dtype) in _MEASURED.items()
        if key in columns
    ]
    measured = pl.concat(rows) if rows else pl.DataFrame(schema=SCHEMA)
    return measured.filter(pl.col("value").is_finite() & (pl.col("value") > 0)).sort(
        "device_id", "resource", "dtype", nulls_last=True
    )


def _of_gpu(facts: DeviceFacts, known: Architecture) -> Iterator[_Ceiling]:
    if facts.compute_units is not None and facts.clock_mhz is not None:
        yield from _arithmetic(facts.compute_units, facts.clock_mhz, known.operations, facts)
        yield from _issue(facts, known, facts.compute_units, facts.clock_mhz)
        yield from _levels(facts, known.memory_levels)
    if facts.memory_bandwidth is not None:
        yield _Ceiling("dram", None, facts.memory_bandwidth.value, "byte/s", facts.memory_bandwidth.origin)
    if facts.l2 is not None:
        yield _Ceiling("l2", None, facts.l2.value, "byte/s", facts.l2.origin)
    if facts.infinity_cache is not None:
        for resource in ("infinity_cache", "fabric"):
            yield _Ceiling(resource, None, facts.infinity_cache.value, "byte/s", facts.infinity_cache.origin)
    elif facts.memory_bandwidth is not None and _is_without_infinity_cache(known):
        origin = f"no cache between L2 and memory, so that of dram: {facts.memory_bandwidth.origin}"
        yield _Ceiling("fabric", None, facts.memory_bandwidth.value, "byte/s", origin)


def _of_cpu(facts: DeviceFacts, known: Architecture, flags: frozenset[str]) -> Iterator[_Ceiling]:
    """Yield, for each resource and format, the highest rate of any extension that the CPU supports."""
    if facts.compute_units is None or facts.clock_mhz is None:
        return
    most: dict[tuple[str, str | None], _Ceiling] = {}
    for name in sorted(flags & set(known.extensions)):
        extension = known.extensions[name]
        found = [
            *_arithmetic(facts.compute_units, facts.clock_mhz, extension.operations, facts),
            *_levels(facts, extension.memory_levels),
        ]
        for one in found:
            key = (one.resource, one.dtype)
            if key not in most or most[key].value < one.value:
                most[key] = _Ceiling(one.resource, one.dtype, one.value, one.unit, f"{name}: {one.reference}")
    yield from most.values()
    yield from _levels(facts, known.memory_levels)


def _arithmetic(
    units: Fact, clock: Fact, operations: Mapping[str, Mapping[str, Any]], facts: DeviceFacts
) -> Iterator[_Ceiling]:
    for resource, formats in operations.items():
        for dtype, figure in formats.items():
            of_matrix = resource == "matrix" and dtype not in _AT_ENGINE_CLOCK
            used = facts.matrix_clock_mhz if of_matrix and facts.matrix_clock_mhz is not None else clock
            value = figure.value * units.value * used.value * _MEGA
            reference = f"{units} × {used} × {figure.value:g} per clock ({figure.source})"
            yield _Ceiling(resource, dtype, value, _unit(resource, dtype), reference)


def _issue(facts: DeviceFacts, known: Architecture, units: Fact, clock: Fact) -> Iterator[_Ceiling]:
    rate = None if facts.wavefront_size is None else known.instructions_per_clock_per_simd.get(facts.wavefront_size)
    if rate is None or facts.simds_per_cu is None:
        return
    value = rate.value * facts.simds_per_cu.value * units.value * clock.value * _MEGA
    reference = f"{units} × {facts.simds_per_cu} × {clock} × {rate.value:g} per clock ({rate.source})"
    yield _Ceiling("vector_issue", None, value, "instruction/s", reference)


def _levels(facts: DeviceFacts, levels: Mapping[str, MemoryLevel]) -> Iterator[_Ceiling]:
    for name, level in levels.items():
        count = facts.l2_channels if level.per == "channel" else facts.compute_units
        width = level.bytes_per_clock
        if count is None or facts.clock_mhz is None or width is None:
            continue
        value = width.value * count.value * facts.clock_mhz.value * _MEGA
        reference = f"{count} × {facts.clock_mhz} × {width.value:g} byte per clock ({width.source})"
        yield _Ceiling(name, None, value, "byte/s", reference)


def _is_without_infinity_cache(known: Architecture) -> bool:
    """Return whether its products are known to have none; False if the architecture has no products."""
    sizes = [f"products.{product.name}.infinity_cache_bytes" for product in known.products]
    stated = {one.name for one in known.figures}
    return bool(sizes) and stated.isdisjoint(sizes)


def _unit(resource: str, dtype: str | None) -> str:
    if dtype is None:
        return "byte/s"
    return "op/s" if dtype.startswith(_WHOLE_NUMBERS) else "flop/s"


_MATRIX: Final = ("fp16", "bf16", "fp8")
_Share = tuple[float, str]


def reported_ceilings(devices: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Compute sustained benchmark ceilings: rows of the table `ceilings` with the source `reported`.

    A benchmark figure is stored as a fraction of the product's published ceiling; a device, partitioned or not, gets
    that fraction of its own ceiling. A device of an unrecognized product gets the largest fraction of any product of
    its architecture, so that its ceiling is never too low.

    Args:
        devices: rows of the table `devices`.
        published: their rows from `spec_ceilings`.

    Returns:
        `SCHEMA`. Resources without a known benchmark have no row.
    """
    rows = [
        (row["device_id"], resource, dtype, share, reference)
        for row in devices.iter_rows(named=True)
        if (known := architecture(row["arch"])) is not None
        for (resource, dtype), (share, reference) in _shares(device_facts(row, known).product, known).items()
    ]
    keys = ["device_id", "resource", "dtype"]
    schema = pl.Schema({**{name: SCHEMA[name] for name in keys}, "share": pl.Float64(), "reported": pl.String()})
    shares = pl.DataFrame(rows, schema=schema, orient="row")
    reached = published.join(shares, on=keys, nulls_equal=True, maintain_order="left")
    value, source = pl.col("value") * pl.col("share"), pl.lit("reported")
    return reached.select(*keys, value, "unit", source=source, reference="reported").cast(SCHEMA)


def _shares(product: Product | None, known: Architecture) -> Mapping[tuple[str, str | None], _Share]:
    """Fractions of the published ceiling by resource and number format, each with its source."""
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
