"""The raw capture of a session that was taken in: foreign files as they came, minus secrets, and a list of them.

Taking files in is `aaco_pipeline.resources.ingestion`; which format a file is says `aaco_pipeline.capture.discovery`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract

if TYPE_CHECKING:
    from aaco_pipeline.capture.discovery import Run

FORMAT: Final = "aaco-ingest"
FORMAT_VERSION: Final = 1
#: The list of what was taken in, and the folder with the files themselves.
LIST_FILE: Final = "ingest.json"
FILES_FOLDER: Final = "files"
_KEYS: Final = ("workload", "capture_digest", "files", "unread")


@dataclass(frozen=True)
class IngestedCapture:
    """A session's foreign files with the list of them."""

    folder: Path
    listed: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over the files as they were handed over, whatever they were called."""
        return str(self.listed["capture_digest"])

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the capture's parts, each once."""
        return tuple(dict.fromkeys(part.format for part in _run(self.folder).parts))

    def reading(self) -> CaptureTables:
        """All tables of the capture, read once for all stages that run in one process. CaptureError if none can be."""
        return _reading(self.folder, self.digest)

    def sessions(self, fingerprint: str | None) -> pl.DataFrame:
        """The one row of `sessions`."""
        tables = self.reading().tables
        hosts = tables["processes"].get_column("host").drop_nulls()
        return to_contract(
            "sessions",
            pl.DataFrame(
                {
                    "source_kind": ["capture"],
                    "source_format": ["+".join(self.formats)],
                    "workload": [self.listed["workload"]],
                    "started_at": [_started(tables["clock_domains"])],
                    "host": [hosts.first() if len(hosts) else None],
                    "fingerprint": [fingerprint],
                    "capture_digest": [self.digest],
                }
            ),
        )

    def file_evidence(self) -> list[Evidence]:
        """Every file that was kept, with its digest as it was handed over, and every file that is not read."""
        kept = [
            Evidence(
                f"raw file {one['name']}",
                "partial" if one["redactions"] else "present",
                f"{one['redactions']} places that looked like secrets were blotted out" if one["redactions"] else None,
                f"raw/{FILES_FOLDER}/{one['name']}",
                None,
                one["sha256"],
            )
            for one in self.listed["files"]
        ]
        unread = [Evidence(f"file {one['name']}", "absent", one["reason"]) for one in self.listed["unread"]]
        return [*kept, *unread]


def probe(raw: Path) -> bool:
    """Whether a session's raw folder holds a capture that was taken in."""
    return (raw / LIST_FILE).is_file()


def read(raw: Path) -> IngestedCapture:
    """The capture in a raw folder. CaptureError when its list is damaged or of a newer version."""
    path = raw / LIST_FILE
    try:
        listed = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(listed, dict) or listed.get("format") != FORMAT or any(key not in listed for key in _KEYS):
        raise CaptureError(f"{path}: not a list of ingested files; ingest the capture again")
    if listed.get("format_version") != FORMAT_VERSION:
        raise CaptureError(f"{path}: version {listed.get('format_version')}; upgrade aaco_pipeline to read it")
    return IngestedCapture(raw, listed)


def read_parts(run: "Run", limits: Limits) -> tuple[CaptureTables, list[Evidence]]:
    """The assembled reading of a run, and the parts that cannot be read. CaptureError when none can be."""
    from aaco_pipeline.capture.merging import NamedReading, merge_parts

    named: list[NamedReading] = []
    failed: list[Evidence] = []
    holders: dict[str, str] = {}
    for part in run.parts:
        try:
            one = NamedReading(part.name, part.read(limits))
        except CaptureError as error:
            failed.append(Evidence(f"part {part.name}", "invalid", str(error), part.name))
            continue
        guids = one.table("processes").get_column("guid").drop_nulls().to_list()
        if guids and all(guid in holders for guid in guids):
            reason = f"repeats the process of {holders[guids[0]]}, and is not read a second time"
            failed.append(Evidence(f"part {part.name}", "partial", reason, part.name))
            continue
        holders |= dict.fromkeys(guids, part.name)
        named.append(one)
    if not named:
        reasons = "; ".join(item.reason or "" for item in failed) or f"{run.folder}: nothing in it can be read"
        raise CaptureError(reasons)
    return merge_parts(named), failed


def _run(folder: Path) -> "Run":
    from aaco_pipeline.capture.discovery import discover_runs  # every reader: only where a capture was taken in

    found = discover_runs(folder / FILES_FOLDER).runs
    if len(found) != 1:
        raise CaptureError(f"{folder / FILES_FOLDER}: holds {len(found)} runs, expected one; ingest the capture again")
    return found[0]


@lru_cache(maxsize=1)
def _reading(folder: Path, digest: str) -> CaptureTables:
    """Keyed by the digest too: a folder of the same name may come to hold something else."""
    reading, failed = read_parts(_run(folder), Limits())
    return CaptureTables(reading.tables, (*reading.evidence, *failed), reading.details)


def _started(clocks: pl.DataFrame) -> datetime | None:
    """Wall-clock time at the axis' zero, where the capture ties its clock to it."""
    offsets = clocks.filter(pl.col("domain") == "realtime").get_column("offset_ns").drop_nulls()
    if not len(offsets):
        return None
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=-int(offsets[0]) // 1_000)
