"""The least time of a timed call: the harness' least work at the best rates that this machine was measured to reach."""

from pathlib import Path
from typing import Any, Final

from aaco_pipeline.lake.calibrations import machine_of, read_calibration
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.targets import TargetName

_THREADS: Final = 1
_NS: Final = 1e9


def floor_ns(
    lake: Path, harness: Harness, target: TargetName, facts: list[dict[str, Any]]
) -> tuple[float | None, str | None]:
    """The floor of one call at the timed size, or why there is none; `facts` are the host's.

    The rates are the highest of any format and any level of cache: what is faster than that did not do its work.
    """
    if target != "cpu":
        return None, f"no measured ceilings of the {target} device: `aaco calibrate` measures this host's processor"
    machine = machine_of({(one["category"], one["key"]): one["value"] for one in facts})
    calibration = read_calibration(lake, machine, _THREADS)
    if calibration is None:
        return None, "this machine is not calibrated for one thread: run `aaco calibrate --threads 1`"
    rates = {
        unit: max((one.value for one in calibration.ceilings if one.unit == unit), default=None)
        for unit in ("flop/s", "byte/s")
    }
    flops, moved = harness.floor(harness.timed_size(target))
    times = [
        _NS * work / rate for work, rate in ((flops, rates["flop/s"]), (moved, rates["byte/s"])) if rate is not None
    ]
    return (max(times), None) if times else (None, "the calibration of this machine holds no rates")
