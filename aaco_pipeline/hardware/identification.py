"""Which architecture a device is, and what says so, where the capture does not name it.

The capture's own word comes first, then the product's name, then what a person states, then what kernels' names say of
the target that they were compiled for, which is a hint: `arch_source` keeps them apart.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.hardware.architecture_files import architecture, architectures, why_unknown
from aaco_pipeline.hardware.device_facts import named_length
from aaco_pipeline.lake.evidence import Evidence, Status

#: How Tensile, aiter and others write the target into the names of kernels: `_ISA942`, `gfx950`.
_TARGET: Final = r"(?:ISA|gfx)(9[0-9][0-9a-f]|1[0-2][0-9]{2})(?:[^0-9a-zA-Z]|$)"
STATED, BY_PRODUCT, BY_USER, BY_KERNELS = "capture", "product", "user", "kernel names"
#: What a person can state of a session's devices.
ARCH, PRODUCT = "arch", "product"


def statement(arch: str | None, product: str | None) -> dict[str, str]:
    """What a person states of devices, by name. UsageError for what is not known, or does not go together."""
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
    """UsageError when the capture itself says what every one of its devices is, and there is nothing left to state."""
    if not devices.height:
        raise UsageError("the capture holds no device of which anything could be stated")
    said = devices.filter(pl.col("arch_source").is_in([STATED, BY_PRODUCT]))
    if said.height == devices.height and (PRODUCT not in facts or not devices.get_column("product").null_count()):
        names = ", ".join(f"{arch} ({product or 'no product'})" for arch, product in _named(said))
        raise UsageError(f"the capture itself says what its devices are: {names}")


def _named(devices: pl.DataFrame) -> list[tuple[str, str | None]]:
    return devices.select("arch", "product").unique(maintain_order=True).rows()


def how_identified(devices: pl.DataFrame) -> tuple[Evidence, ...]:
    """What to know of architectures that the capture does not name itself."""
    told: dict[str, tuple[Status, str]] = {
        BY_USER: ("present", "stated by a person; the capture does not name it"),
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
    """`devices` with `arch` where anything tells it, and what did in `arch_source`.

    `dispatches` and `kernels` are the tables of the same capture; only kernels that ran on a device speak of it, and
    only where all that name a target name the same one. `stated` is a `statement`, of every device without such a word.
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
    """The architecture that a product's name, as tools and drivers write it, belongs to; None when none or several."""
    lengths = {
        known.name: max((named_length(name, product) for product in known.products), default=0)
        for known in architectures()
    }
    longest = max(lengths.values(), default=0)
    found = [known for known, length in lengths.items() if length == longest]
    return found[0] if longest and len(found) == 1 else None


def _targets(dispatches: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Columns device_id and target: the one target that the names of a device's kernels hold."""
    ran = dispatches.select("device_id", "kernel_id").drop_nulls().unique()
    told = kernels.select("kernel_id", target=pl.col("name").str.extract(_TARGET)).drop_nulls()
    of_device = ran.join(told, on="kernel_id").group_by("device_id").agg(pl.col("target").unique())
    alone = of_device.filter(pl.col("target").list.len() == 1)
    named = alone.select("device_id", target="gfx" + pl.col("target").list.first())
    known = [target for target in named.get_column("target").unique().to_list() if architecture(target) is not None]
    return named.filter(pl.col("target").is_in(known))
