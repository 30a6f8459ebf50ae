"""What a kernel's gain would do to the whole application, predicted from the critical path of a session.

Nothing is predicted across architectures: a gain on a processor or on another GPU says nothing of the session's device.
"""

import re
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.timeline.recorded import RECORDED_FROM, recorded
from aaco_pipeline.analysis.timeline.savings import effect_of_kernel
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.optimization.loop.whole import Gain

_ARCHITECTURE: Final = re.compile(r"\(([^()\s]+)\)$")
_NOTHING: Final = dict.fromkeys(
    ("effect_scope", "critical_share_ratio", "shorter_ratio", "shorter_low_ratio", "shorter_high_ratio")
)


def predicted_effect(lake: TraceLake, session: str, kernel: str, gain: Gain | None, applies_to: str) -> dict[str, Any]:
    """The columns of `optimizations` from `effect_scope` on, for a gain that `applies_to` a device.

    What is not predicted is null, and `effect_reason` says why.
    """
    kernels = lake.read("kernels", session).filter(
        pl.col("name").cast(pl.String).map_elements(lambda name: same_kernel(name, kernel), return_dtype=pl.Boolean)
    )
    if kernels.height != 1:
        many = f"has {kernels.height} kernels called {kernel}, and the gain is of one" if kernels.height else None
        return {**_NOTHING, "effect_reason": f"the session {many or f'has no kernel {kernel}'}"}
    number = kernels.item(0, "kernel_id")
    reason = _why_not(lake, session, number, gain, applies_to)
    speedups = () if gain is None or reason is not None else (gain.speedup_ratio, gain.ci_low, gain.ci_high)
    tables = {name: lake.read(name, session).drop("session_id") for name in RECORDED_FROM}
    effect = effect_of_kernel(recorded(tables), tables["iterations"], number, speedups)
    if effect is None:
        return {**_NOTHING, "effect_reason": "the session has no times of device work"}
    shorter = effect.shorter_ratios or (None, None, None)
    return {
        "effect_scope": effect.scope,
        "critical_share_ratio": effect.share_ratio,
        **dict(zip(("shorter_ratio", "shorter_low_ratio", "shorter_high_ratio"), shorter, strict=True)),
        "effect_reason": reason,
    }


# ---- inside ----------------------------------------------------------------------------------------------------------


def _why_not(lake: TraceLake, session: str, kernel: int, gain: Gain | None, applies_to: str) -> str | None:
    """Why the gain predicts nothing of the device that ran the kernel in the session."""
    if gain is None:
        return "no gain was found"
    ran = lake.read("dispatches", session).filter(pl.col("kernel_id") == kernel).select("device_id").unique()
    devices = lake.read("devices", session).join(ran, on="device_id", how="semi")
    names = sorted({str(one) for one in devices.get_column("arch").drop_nulls()})
    there = " and ".join(names) or "a device that names no architecture"
    found = _ARCHITECTURE.search(applies_to)
    if found is None:
        here = "cpu-emulation" if applies_to == "cpu" else applies_to
        return f"the gain was measured on {here}, which says nothing of the session's {there}"
    if not names or devices.get_column("arch").null_count() or {_plain(one) for one in names} != {_plain(found[1])}:
        return f"the gain was measured on {found[1]}, and the session ran on {there}"
    return None


def _plain(name: str) -> str:
    """An architecture by one name: without its features, and as the architecture files call it."""
    known = architecture(name)
    return name.partition(":")[0].lower() if known is None else known.name
