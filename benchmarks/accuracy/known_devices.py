"""Which device each shared capture was recorded on, as the reader tells it, against what an expert read from the files.

Every run found beneath the shared folder's captures, counters, Kineto traces and GPU sessions is read; a row for each
device: architecture, product, compute units, and what the architecture was told by. Where the expert's answers name an
architecture or a product, it has to be the one of the device that did the work.
Run as `python -m benchmarks.accuracy.known_devices`; it exits with 1 when a device differs from its answer.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml

from aaco_pipeline.capture.discovery import Run, discover_runs
from aaco_pipeline.capture.parts import read_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.hardware.identification import identified

ROOT: Final = Path(__file__).parents[2]
SHARED: Final = Path(os.environ.get("AACO_SHARED", ROOT.parent / "shared"))
_FOLDERS: Final = ("captures", "counters", "kineto", "gpu_sessions/traces")
#: Nothing in these files names the device: they are for `aaco ingest --arch`.
_UNSTATED: Final = ("captures/gfx1151_rocprofv3_csv",)


def devices_of(run: Run) -> pl.DataFrame:
    """The devices on which the run's kernels ran, all that it lists where none ran a kernel."""
    tables = read_run(run).tables
    devices = identified(tables["devices"], tables["dispatches"], tables["kernels"])
    used = devices.join(tables["dispatches"].select("device_id").unique(), on="device_id", how="semi")
    return used if used.height else devices


def rows() -> Iterator[dict[str, Any]]:
    """A row for each device of each run, or one with `refused`."""
    for folder in _FOLDERS:
        for run in discover_runs(SHARED / folder).runs:
            place = run.folder.relative_to(SHARED).as_posix()
            name = f"{place} ({run.parts[0].name})" if run.folder.is_dir() else place
            try:
                found = devices_of(run)
            except CaptureError as error:
                yield {"capture": name, "refused": str(error)}
                continue
            columns = ("vendor", "arch", "arch_source", "product", "compute_units")
            for row in found.select(columns).unique(maintain_order=True).iter_rows(named=True):
                yield {"capture": name, **row}
            if not found.height:
                yield {"capture": name, "refused": "no device in it"}


def differences(found: list[dict[str, Any]]) -> list[str]:
    """Where an answer names an architecture or a product, and the capture's device is another."""
    told = []
    for answer in yaml.safe_load((SHARED / "answers" / "answers.yaml").read_text()):
        own = [row for row in found if row["capture"].startswith(answer["capture"])]
        if not own:
            told.append(f"{answer['capture']}: was not read")
        for key in ("arch", "product"):
            wanted = "None" if answer["capture"] in _UNSTATED else answer.get(key)
            wrong = [row.get(key) for row in own if wanted is not None and wanted not in str(row.get(key))]
            told += [f"{answer['capture']}: {key} is {one}, expected {wanted}" for one in wrong]
    return told


def main() -> int:
    found = []
    for row in rows():
        found.append(row)
        told = row.get("refused") or " | ".join(str(row[key]) for key in row if key != "capture")
        print(f"{row['capture']} | {told}", flush=True)
    wrong = differences(found)
    for line in wrong:
        print(line)
    print(f"{len(found)} devices of captures, {len(wrong)} other than the answer")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
