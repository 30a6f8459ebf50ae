"""Class and resource that `classification` gives H200 traces with a known cause; exits with 1 when one is wrong."""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture
from benchmarks.common import CONFIGS, SHARED

#: What the index calls a single cause, its class, and the resource that limits a busy device. Others have no one cause.
CAUSES: Final[Mapping[str, tuple[str, tuple[str | None, ...]]]] = {
    "compute_bound": ("device", ("compute_matrix", "compute_vector")),
    "memory_bound": ("device", ("memory_dram",)),
    "launch_bound": ("launch", (None,)),
    "sync_bound": ("sync", (None,)),
    "copy_bound": ("copy", (None,)),
    "host_bound": ("host", (None,)),
}
#: Shares below this are not shown.
_SHOWN: Final = 0.005
_STAGES: Final = (
    *("capture", "session_environment", "inference_run", "kernel_trace", "telemetry", "timeline", "critical_path"),
    *("model_graph", "roofline", "classification"),
)


def traces() -> Path:
    """The folder of traces with a known cause; it need not exist."""
    return SHARED / "gpu_sessions" / "traces"


def classified(lake: TraceLake, trace: Path) -> dict[str, Any]:
    """Take one trace into the lake and classify it: the session's row of `answers`, with its `shares`."""
    (run,) = discover_runs(trace).runs
    session = new_session_id()
    with lake.receive_raw(session) as folder:
        copy_capture(run, folder, trace.name)
    materialize(Session(lake, session, CONFIGS), _STAGES)
    shares = lake.read("time_shares", session).filter(pl.col("reason").is_null() & (pl.col("share_ratio") >= _SHOWN))
    told = shares.sort("share_ratio", descending=True).select(pl.col("share").cast(pl.String), "share_ratio").rows()
    return {**lake.read("answers", session).row(0, named=True), "shares": told}


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    folder = traces()
    if not (folder / "index.json").is_file():
        print(f"{folder}: no traces there; set AACO_SHARED")
        return 2
    index = json.loads((folder / "index.json").read_text())["traces"]
    rows, right, single = [], 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        lake = TraceLake(Path(scratch) / "lake")
        for name, entry in index.items():
            row = classified(lake, folder / f"{name}.json.gz")
            cause = entry["cause_by_construction"]
            expected = CAUSES.get(cause)
            hit = None if expected is None else row["class"] == expected[0] and row["resource"] in expected[1]
            single, right = single + (expected is not None), right + bool(hit)
            shares = ", ".join(f"{share} {ratio:.2f}" for share, ratio in row["shares"])
            verdict = "" if hit is None else "right" if hit else "WRONG"
            rows.append((name, cause, row["class"], row["resource"], row["second_class"], shares, verdict))
    columns = ("trace", "built as", "class", "resource", "second", "shares", "verdict")
    with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_width_chars=170):
        print(pl.DataFrame(rows, schema=columns, orient="row"))
    print(f"{right} of {single} traces with a single cause right")
    return 0 if right == single else 1


if __name__ == "__main__":
    sys.exit(main())
