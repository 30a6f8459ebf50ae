"""Busy and idle time of real traces: exact, ours, and what two other tools report, with what explains the difference.

The values of Holistic Trace Analysis and TraceLens were recorded by running them on the same files. What explains a
difference is recomputed here and not guessed: the same union over starts rounded up and ends rounded down to whole
microseconds, and without the activities whose launch the trace does not hold.

    PYTHONPATH=. python benchmarks/peers_timeline.py
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST, timeline
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.contracts import contract, polars_schema

SHARED: Final = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[2] / "shared") / "kineto"
#: A recomputed figure this close to a tool's own explains it.
CLOSE: Final = 0.02


def busy_and_idle(activities: pl.DataFrame) -> tuple[float, float]:
    """Union and rest of the first-to-last window, in ms, by the project's own timeline."""
    empty = {
        name: pl.DataFrame(schema=polars_schema(contract(name))).drop("session_id")
        for name in ("api_calls", "iterations")
    }
    rows = timeline(activities, host_calls(empty["api_calls"]), empty["iterations"])
    row = rows.filter(pl.col("window_rule") == FIRST_TO_LAST).row(0, named=True)
    return row["busy_ns"] / 1e6, (row["window_end_ns"] - row["window_start_ns"] - row["busy_ns"]) / 1e6


def recomputed(activities: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """The timeline as the faults described above would give it."""
    up, down = -(-pl.col("start_ns") // 1000) * 1000, pl.col("end_ns") // 1000 * 1000
    floored = activities.with_columns(start_ns=up, end_ns=pl.max_horizontal(up, down))
    linked = activities.drop_nulls("call_id")
    found = {"starts rounded up and ends down to whole us": busy_and_idle(floored)}
    if 0 < linked.height < activities.height:
        lost = activities.height - linked.height
        found[f"{lost} of {activities.height} activities without a launch dropped"] = busy_and_idle(linked)
        found["both"] = busy_and_idle(floored.drop_nulls("call_id"))
    return found


def reason(value: tuple[float, float] | None, ours: tuple[float, float], causes: dict[str, tuple[float, float]]) -> str:
    if value is None:
        return "the tool failed"
    if all(abs(a - b) <= max(0.001, CLOSE * b / 100) for a, b in zip(value, ours, strict=True)):
        return "agrees"

    def close(found: tuple[float, float]) -> bool:
        return all(abs(a - b) <= max(0.002, CLOSE * b) for a, b in zip(value, found, strict=True))

    near = "; ".join(f"{cause} would give {shown(found)}" for cause, found in causes.items())
    return next((cause for cause, found in causes.items() if close(found)), f"not explained ({near})")


def peers(name: str) -> dict[str, tuple[float, float] | None]:
    hta = json.loads((SHARED / "oracle" / f"hta_{name}.json").read_text()).get("temporal_breakdown")
    lens = json.loads((SHARED / "oracle" / f"tracelens_{name}.json").read_text()).get("gpu_timeline")
    row: dict[str, Any] | None = hta[0] if hta else None
    told = {one["type"]: one["time ms"] for one in lens or []}
    return {
        "HTA": None
        if row is None
        else ((row["kernel_time(us)"] - row["idle_time(us)"]) / 1e3, row["idle_time(us)"] / 1e3),
        "TraceLens": (told["busy_time"], told["idle_time"]) if told else None,
    }


def shown(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f} / {value[1]:.3f}"


def main() -> None:
    exact = json.loads((SHARED / "exact_timeline.json").read_text())
    print("busy / idle, ms")
    for name, devices in exact.items():
        tables = kineto.read(SHARED / f"{name}.json.gz").tables
        activities = device_activities(
            tables["dispatches"], tables["memory_copies"], tables["kernels"], host_calls(tables["api_calls"])
        )
        ours = busy_and_idle(activities)
        (truth,) = devices.values()
        expected = truth["busy_ns"] / 1e6, truth["idle_ns"] / 1e6
        print(f"\n{name}: exact {shown(expected)}, ours {shown(ours)} ({'equal' if ours == expected else 'NOT EQUAL'})")
        causes = recomputed(activities)
        for tool, value in peers(name).items():
            print(f"  {tool:<10} {shown(value):<24} {reason(value, ours, causes)}")


if __name__ == "__main__":
    main()
