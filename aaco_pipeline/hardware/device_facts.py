"""Identify a device and collect its facts (clocks, sizes, counts) from the capture or from product data.

Architectures and products are data files read by `aaco_pipeline.hardware.architecture_files`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.hardware.architecture import Architecture, Product, SourcedValue
from aaco_pipeline.hardware.architecture_files import architecture, architectures, why_unknown
from aaco_pipeline.lake.evidence import Evidence, Status

_STATED: Final = "stated by the capture"
#: Number of partitions in each compute partition mode; CPX has one per die.
_PARTS: Final = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_BY_DIE: Final = "CPX"
#: A virtual machine may see fewer compute units, but never fewer than half of them.
_FEWEST_UNITS: Final = 0.75
#: A clock may be capped or a board overclocked, and a variant may have slower memory.
_CLOCK_RATIOS: Final = (0.3, 1.3)
_BANDWIDTH_RATIOS: Final = (0.5, 1.15)
_MEMORY_RATIOS: Final = (0.9, 1.1)
_CLOCKS_MHZ: Final = (100.0, 10_000.0)
_BITS_PER_BYTE: Final = 8
_MEGA: Final = 1e6
_GIGA: Final = 1e9


@dataclass(frozen=True)
class Fact:
    """One fact about a device, with its unit and source."""

    value: float
    unit: str
    origin: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit} ({self.origin})"


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about one device as partitioned; a fact is None if neither the capture nor a product states it.

    Clocks are in MHz, bandwidths in byte/s.
    """

    product: Product | None
    share: float
    compute_units: Fact | None
    clock_mhz: Fact | None
    matrix_clock_mhz: Fact | None
    simds_per_cu: Fact | None
    wavefront_size: int | None
    xcds: Fact | None
    l2_channels: Fact | None
    memory_bandwidth: Fact | None
    l2: Fact | None
    infinity_cache: Fact | None


def device_facts(row: Mapping[str, Any], known: Architecture) -> DeviceFacts:
    """Collect the facts for one row of the table `devices`, whose architecture is `known`."""
    product = recognized(row, known)
    share = _share(row, product)
    clock = _clock(row, product)
    xcds = _xcds(row, known, product, share)
    return DeviceFacts(
        product=product,
        share=share,
        compute_units=_compute_units(row, known, product, share),
        clock_mhz=clock,
        matrix_clock_mhz=_matrix_clock(product, clock),
        simds_per_cu=_simds(row, known),
        wavefront_size=_wavefront_size(row, known),
        xcds=xcds,
        l2_channels=_l2_channels(known, xcds),
        memory_bandwidth=_memory_bandwidth(row, known, product, share),
        l2=None if product is None else _published(product, product.l2_bandwidth, share),
        infinity_cache=None if product is None else _published(product, product.infinity_cache_bandwidth, share),
    )


def recognized(row: Mapping[str, Any], known: Architecture) -> Product | None:
    """Identify the product for a row of `devices` by name, else by compute units and memory; None if ambiguous.

    Products with identical relevant figures count as one.
    """
    hits = [(named_length(row.get("product"), one), one) for one in known.products]
    longest = max((length for length, _ in hits), default=0)
    candidates = [one for length, one in hits if longest and length == longest]
    candidates = [one for one in candidates or known.products if _has_units(row, one)] or candidates
    candidates = [one for one in candidates if _has_memory(row, one)] or candidates
    alike = {(_value(one.compute_units), _value(one.max_clock_mhz), _value(one.memory_bandwidth)) for one in candidates}
    # Figures that are unknown for both products may still differ.
    certain = len({one.name for one in candidates}) == 1 or all(None not in figures for figures in alike)
    return candidates[0] if len(alike) == 1 and certain else None


def named_length(name: str | None, product: Product) -> int:
    """Count the words of a device's name that match one of the product's names; 0 if no name matches."""
    words = _words(name)
    return max((len(_words(part)) for part in product.recognized_by if _within(part, words)), default=0)


def _words(name: str | None) -> list[str]:
    return re.findall(r"[a-z0-9+]+", (name or "").lower())


def _within(part: str, words: Sequence[str]) -> bool:
    sought = _words(part)
    return any(list(words[at : at + len(sought)]) == sought for at in range(len(words) - len(sought) + 1))


def _has_units(row: Mapping[str, Any], product: Product) -> bool:
    if product.compute_units is None:
        return False
    whole = product.compute_units.value
    return row.get("compute_units") in (whole, whole * _share(row, product))


def _has_memory(row: Mapping[str, Any], product: Product) -> bool:
    stated = row.get("memory_bytes")
    if product.memory_bytes is None or not stated:
        return False
    return any(
        _between(stated, product.memory_bytes.value * part, _MEMORY_RATIOS) for part in (1, _share(row, product))
    )


def _share(row: Mapping[str, Any], product: Product | None) -> float:
    """Return the device's fraction of the product; the partition mode takes precedence over the stated die count."""
    if product is None:
        return 1.0
    dies = product.xcds.whole if product.xcds is not None else 1
    mode = (row.get("partition_mode") or "").partition("/")[0].upper()
    parts = dies if mode == _BY_DIE else _PARTS.get(mode)
    if parts is not None and dies % parts == 0:
        return 1 / parts
    stated = row.get("xcc_count")
    return stated / dies if stated and stated <= dies and dies % stated == 0 else 1.0


def _compute_units(row: Mapping[str, Any], known: Architecture, product: Product | None, share: float) -> Fact | None:
    stated, unit = _positive(row, "compute_units"), f"{known.compute_unit}s"
    if product is None or product.compute_units is None:
        return None if stated is None else Fact(stated, unit, _STATED)
    expected = product.compute_units.value * share
    if stated is not None and _FEWEST_UNITS * expected <= stated <= expected:
        return Fact(stated, unit, _STATED)
    return Fact(expected, unit, _instead(product, product.compute_units, stated, share))


def _clock(row: Mapping[str, Any], product: Product | None) -> Fact | None:
    stated = _positive(row, "max_clock_mhz")
    if product is None or product.max_clock_mhz is None:
        believed = stated is not None and _CLOCKS_MHZ[0] <= stated <= _CLOCKS_MHZ[1]
        return Fact(stated, "MHz", _STATED) if stated is not None and believed else None
    if stated is not None and _between(stated, product.max_clock_mhz.value, _CLOCK_RATIOS):
        return Fact(stated, "MHz", _STATED)
    return Fact(product.max_clock_mhz.value, "MHz", _instead(product, product.max_clock_mhz, stated))


def _matrix_clock(product: Product | None, clock: Fact | None) -> Fact | None:
    figure = None if product is None else product.matrix_clock_mhz
    if product is None or figure is None or clock is None:
        return None
    return clock if clock.value < figure.value else Fact(figure.value, "MHz", _of(product, figure))


def _simds(row: Mapping[str, Any], known: Architecture) -> Fact | None:
    figure = known.simds_per_cu
    if figure is None:
        return None
    stated = _positive(row, "simd_per_cu")
    origin = _STATED if stated == figure.value else f"{known.name}: {figure.source}"
    if stated not in (None, figure.value):
        origin += f"; the capture's {stated:g} cannot be right"
    return Fact(figure.value, f"SIMDs a {known.compute_unit}", origin)


def _wavefront_size(row: Mapping[str, Any], known: Architecture) -> int | None:
    stated = row.get("wavefront_size")
    if stated in known.wavefront_sizes:
        return int(stated)
    return known.wavefront_sizes[0] if len(known.wavefront_sizes) == 1 else None


def _xcds(row: Mapping[str, Any], known: Architecture, product: Product | None, share: float) -> Fact | None:
    stated = _positive(row, "xcc_count")
    if product is None or product.xcds is None:
        one_die = bool(known.products) and all(_value(one.xcds) == 1 for one in known.products)
        alone = Fact(1, "dies", f"as all known products of {known.name}") if one_die else None
        return alone if stated is None else Fact(stated, "dies", _STATED)
    expected = product.xcds.value * share
    if stated == expected:
        return Fact(expected, "die(s)", _STATED)
    return Fact(expected, "dies", _instead(product, product.xcds, stated, share))


def _l2_channels(known: Architecture, xcds: Fact | None) -> Fact | None:
    level = known.memory_levels.get("l2")
    if xcds is None or level is None or level.channels_per_xcd is None:
        return None
    channels = level.channels_per_xcd
    return Fact(xcds.value * channels.value, "L2 channels", f"{channels.value:g} a die, {xcds}")


def _memory_bandwidth(
    row: Mapping[str, Any], known: Architecture, product: Product | None, share: float
) -> Fact | None:
    stated = _stated_bandwidth(row, known, product, share)
    if product is None or product.memory_bandwidth is None:
        return stated
    published = product.memory_bandwidth
    expected = published.value * share
    fallback = Fact(expected, "byte/s", _of(product, published, share))
    if stated is None:
        return fallback
    if _between(stated.value, expected, _BANDWIDTH_RATIOS):
        return stated
    whole = replace(stated, value=stated.value * share, origin=f"{stated.origin}; {_part(share)} of it")
    if share < 1 and _between(whole.value, expected, _BANDWIDTH_RATIOS):
        return whole
    wrong = f"; {stated.value / _GIGA:g} GB/s by the capture's clock and width cannot be right"
    return replace(fallback, origin=fallback.origin + wrong)


def _stated_bandwidth(
    row: Mapping[str, Any], known: Architecture, product: Product | None, share: float
) -> Fact | None:
    """Compute the bandwidth from memory clock and bus width; the width may come from the product."""
    clock, bits = _positive(row, "memory_clock_mhz"), _positive(row, "memory_bus_bits")
    transfers = known.memory_transfers_per_clock
    width = f"{bits:g} bit" if bits is not None else ""
    if bits is None and product is not None and product.memory_bus_bits is not None:
        bits = product.memory_bus_bits.value * share
        width = f"{bits:g} bit ({_of(product, product.memory_bus_bits, share)})"
    if clock is None or bits is None or transfers is None:
        return None
    value = clock * _MEGA * bits / _BITS_PER_BYTE * transfers.value
    return Fact(value, "byte/s", f"memory clock {clock:g} MHz ({_STATED}) × {width} × {transfers.value:g} transfers")


def _published(product: Product, bandwidth: SourcedValue | None, share: float) -> Fact | None:
    return None if bandwidth is None else Fact(bandwidth.value * share, "byte/s", _of(product, bandwidth, share))


def _value(figure: SourcedValue | None) -> float | None:
    return None if figure is None else figure.value


def _positive(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if value is not None and value > 0 else None


def _between(value: float, expected: float, ratios: tuple[float, float]) -> bool:
    return ratios[0] * expected <= value <= ratios[1] * expected


def _instead(product: Product, figure: SourcedValue, stated: float | None, share: float = 1.0) -> str:
    origin = _of(product, figure, share)
    return origin if stated is None else f"{origin}; the capture's {stated:g} cannot be right"


def _of(product: Product, figure: SourcedValue, share: float = 1.0) -> str:
    part = "" if share == 1 else f"{_part(share)} of "
    return f"{part}{product.name}: {figure.source}"


def _part(share: float) -> str:
    return f"1/{1 / share:g}"


def cache_bytes(devices: pl.DataFrame) -> pl.DataFrame:
    """device_id and total bytes of L2 and Infinity Cache, for devices whose product or architecture states them."""
    rows = []
    for row in devices.iter_rows(named=True):
        known = architecture(row["arch"])
        product = recognized(row, known) if known is not None else None
        if known is None or product is None:
            continue
        level = known.memory_levels.get("l2")
        second = product.l2_bytes.value if product.l2_bytes is not None else None
        if second is None and level is not None and level.bytes is not None and product.xcds is not None:
            second = level.bytes.value * product.xcds.value  # the architecture states one die's
        unknown = known.why_null(f"products.{product.name}.infinity_cache_bytes")
        if second is not None and unknown is None:
            last = product.infinity_cache_bytes.value if product.infinity_cache_bytes is not None else 0
            rows.append((row["device_id"], int(second + last)))
    return pl.DataFrame(rows, schema={"device_id": pl.Int32, "bytes": pl.Int64}, orient="row")


def peer_links(devices: pl.DataFrame) -> pl.DataFrame:
    """device_id, peer links and byte/s of one link per direction, for unpartitioned devices with known figures."""
    rows = []
    for row in devices.iter_rows(named=True):
        known = architecture(row["arch"])
        product = recognized(row, known) if known is not None else None
        if product is None or product.peer_links is None or product.peer_link_bandwidth is None:
            continue
        if _share(row, product) == 1:
            rows.append((row["device_id"], int(product.peer_links.value), product.peer_link_bandwidth.value))
    schema = {"device_id": pl.Int32, "links": pl.Int64, "link_bytes_per_s": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


#: Targets in kernel names by Tensile, aiter and others: `_ISA942`, `gfx950`.
_TARGET: Final = r"(?:ISA|gfx)(9[0-9][0-9a-f]|1[0-2][0-9]{2})(?:[^0-9a-zA-Z]|$)"
STATED, BY_PRODUCT, BY_USER, BY_KERNELS = "capture", "product", "user", "kernel names"
#: Device facts that the user can state.
ARCH, PRODUCT = "arch", "product"


def statement(arch: str | None, product: str | None) -> dict[str, str]:
    """Check the device facts stated by the user. UsageError for unknown or contradictory values."""
    known = None if arch is None else architecture(arch)
    if arch is not None and known is None:
        raise UsageError(why_unknown(arch))
    of = None if product is None else of_product(product)
    if product is not None and of is None:
        names = ", ".join(one.name for every in architectures() for one in every.products)
        raise UsageError(f"no product, or several, are called {product}; known are {names}")
    if known is not None and of is not None and of != known.name:
        raise UsageError(f"{product} is {of}, not {arch}; state the one that is right")
    return {name: value for name, value in ((ARCH, arch), (PRODUCT, product)) if value is not None}


def require_unstated(devices: pl.DataFrame, facts: Mapping[str, str]) -> None:
    """Raise UsageError if the capture already identifies all its devices, so that there is nothing to state."""
    if not devices.height:
        raise UsageError("the capture holds no device of which anything could be stated")
    said = devices.filter(pl.col("arch_source").is_in([STATED, BY_PRODUCT]))
    if said.height == devices.height and (PRODUCT not in facts or not devices.get_column("product").null_count()):
        names = ", ".join(f"{arch} ({product or 'no product'})" for arch, product in _named(said))
        raise UsageError(f"the capture itself says what its devices are: {names}")


def _named(devices: pl.DataFrame) -> list[tuple[str, str | None]]:
    return devices.select("arch", "product").unique(maintain_order=True).rows()


def how_identified(devices: pl.DataFrame) -> tuple[Evidence, ...]:
    """Return the source of each architecture that the capture does not name itself."""
    told: dict[str, tuple[Status, str]] = {
        BY_USER: ("present", "stated by the user; the capture does not name it"),
        BY_KERNELS: ("partial", "a hint: the target in the names of its kernels; `aaco amend` states it for certain"),
    }
    return tuple(
        Evidence(f"architecture of device {number}", told[source][0], f"{arch}: {told[source][1]}")
        for number, arch, source in devices.select("device_id", "arch", "arch_source").rows()
        if source in told
    )


def identified(
    devices: pl.DataFrame, dispatches: pl.DataFrame, kernels: pl.DataFrame, stated: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Fill `arch` of `devices` from any source, and record the source in `arch_source`.

    The sources are tried in this order: the capture, the product's name, the user's `stated` values, and targets in
    kernel names. The last is only a hint: it considers the kernels that ran on the device, and all their targets must
    agree.
    """
    said = stated or {}
    product = said.get(PRODUCT)
    by_user = said.get(ARCH) or (None if product is None else of_product(product))
    products = devices.get_column("product").unique().drop_nulls().to_list()
    by_product = {product: of_product(product) for product in products}
    targets = _targets(dispatches, kernels)
    named = pl.col("product").replace_strict(by_product, default=None, return_dtype=pl.String)
    found = devices.join(targets, on="device_id", how="left", maintain_order="left").with_columns(
        named=named, by_user=pl.lit(by_user, pl.String)
    )
    words = {"arch": STATED, "named": BY_PRODUCT, "by_user": BY_USER, "target": BY_KERNELS}
    return (
        found.with_columns(
            arch=pl.coalesce(*words),
            arch_source=pl.coalesce(
                pl.when(pl.col(word).is_not_null()).then(pl.lit(how)) for word, how in words.items()
            ),
        )
        .with_columns(
            product=pl.when(pl.col("arch") == pl.col("by_user"))
            .then(pl.col("product").fill_null(pl.lit(product, pl.String)))
            .otherwise("product"),
        )
        .drop("named", "by_user", "target")
    )


def of_product(name: str) -> str | None:
    """Find the architecture of a product by its name in tools and drivers; None if none or several match."""
    lengths = {
        known.name: max((named_length(name, product) for product in known.products), default=0)
        for known in architectures()
    }
    longest = max(lengths.values(), default=0)
    found = [known for known, length in lengths.items() if length == longest]
    return found[0] if longest and len(found) == 1 else None


def _targets(dispatches: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """device_id and target, for devices whose kernel names agree on one target."""
    ran = dispatches.select("device_id", "kernel_id").drop_nulls().unique()
    told = kernels.select("kernel_id", target=pl.col("name").str.extract(_TARGET)).drop_nulls()
    of_device = ran.join(told, on="kernel_id").group_by("device_id").agg(pl.col("target").unique())
    alone = of_device.filter(pl.col("target").list.len() == 1)
    named = alone.select("device_id", target="gfx" + pl.col("target").list.first())
    known = [target for target in named.get_column("target").unique().to_list() if architecture(target) is not None]
    return named.filter(pl.col("target").is_in(known))
