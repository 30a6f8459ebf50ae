"""Capture made elsewhere: the original files with secrets removed, and a list of them.

`aaco_pipeline.resources.ingestion` copies the files in, `discovery` recognizes formats, and `merging` combines the
parts of a run.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.sessions.environment import fingerprint
from aaco_pipeline.capture import workload
from aaco_pipeline.capture.discovery import Run, the_run
from aaco_pipeline.capture.face import Facts, Subject
from aaco_pipeline.capture.merging import read_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, table_of
from aaco_pipeline.formats.parsing.json_document import json_document
from aaco_pipeline.formats.parsing.regular_files import is_regular, settled
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table

FORMAT: Final = "aaco-ingest"
FORMAT_VERSION: Final = 1
#: The list of ingested files, and the folder that holds them.
LIST_FILE: Final = "ingest.json"
FILES_FOLDER: Final = "files"
#: Folder of untouched originals, kept on request; nothing reads them.
ORIGINALS_FOLDER: Final = "originals"
_KEYS: Final = ("workload", "capture_digest", "files", "unread")
#: Tables that only this project's runner, recorder and sampler can fill.
_NEVER: Final = (
    *("iteration_blocks", "program_runs", "program_marks", "system_samples", "scheduler_events"),
    *("kernel_events", "kernel_threads", "kernel_losses"),
)


def probe(raw: Path) -> bool:
    """Return whether a session's raw folder contains an ingested capture."""
    try:
        return is_regular(settled(raw) / LIST_FILE)
    except CaptureError:
        return False


def read(raw: Path) -> "IngestedCapture":
    """Read the capture in a raw folder. CaptureError if its list is damaged or has a newer version."""
    raw = settled(raw)
    path = raw / LIST_FILE
    listed = json_document(path)
    if not isinstance(listed, dict) or listed.get("format") != FORMAT or any(key not in listed for key in _KEYS):
        raise CaptureError(f"{path}: not a list of ingested files; ingest the capture again")
    if listed.get("format_version") != FORMAT_VERSION:
        raise CaptureError(f"{path}: version {listed.get('format_version')}; upgrade aaco_pipeline to read it")
    return IngestedCapture(raw, listed)


def state_version(raw: Path, version: int, follows: str, earlier: Path) -> None:
    """Record in `raw`'s list that the capture is a later version of the one in raw folder `earlier`."""
    listed = dict(read(raw).listed)
    listed["version"] = {"number": version, "follows": follows, "change": _change(listed["files"], earlier)}
    (raw / LIST_FILE).write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")


class IngestedCapture:
    """A session's foreign files and the list of them, parsed on first use."""

    def __init__(self, folder: Path, listed: Mapping[str, Any]) -> None:
        self.folder = folder
        self.listed = listed

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the files as received, regardless of their names."""
        return str(self.listed["capture_digest"])

    @cached_property
    def contents(self) -> CaptureTables:
        """Combine all parts of the run into one set of tables. CaptureError if none is readable."""
        return read_run(self._run)

    def tables(self) -> Mapping[str, pl.DataFrame]:
        return {
            **self.contents.details,
            **self.contents.tables,
            **{name: empty_table(name) for name in _NEVER},
            "sessions": self._sessions,
        }

    def facts(self) -> Facts:
        summary = {
            "format": self._formats,
            "workload": self._named[0],
            "files": len(self.listed["files"]),
            "raw_bytes": sum(one["bytes"] for one in self.listed["files"]),
        }
        return Facts("ingested", "compiler", ran_here=False, summary=summary)

    def model(self) -> None:
        """Return None: profiler files never contain the model."""

    def evidence(self, subject: Subject) -> tuple[Evidence, ...]:
        tables = self.contents.tables
        if subject == "files":
            listed = self.listed
            rules = listed.get("redaction_rules", 1)
            return (
                *_version(listed.get("version")),
                Evidence("redaction", "present", f"every file was copied by the rules of version {rules}"),
                *(_kept(one, rules) for one in listed["files"]),
                *map(_original, listed.get("originals", [])),
                *map(_unread, listed["unread"]),
                self._named[1],
            )
        if subject == "host":
            known = tables["environment"].height
            if known:
                return (Evidence("host facts", "partial", "only what the capture states", None, known),)
            return (Evidence("host facts", "absent", "the capture does not describe host and software", None, 0),)
        if subject == "iterations":
            return _iterations(tables["iterations"].height)
        if subject in ("telemetry", "kernel"):
            elsewhere = (Evidence("kernel plane", "absent", "the capture was made elsewhere"),)
            return elsewhere if subject == "kernel" else _telemetry(tables["gpu_samples"].height)
        return self.contents.evidence

    @cached_property
    def _run(self) -> Run:
        return the_run(self.folder / FILES_FOLDER, "ingest the capture again")

    @cached_property
    def _formats(self) -> str:
        """List the distinct formats of the capture's parts."""
        return "+".join(dict.fromkeys(part.format for part in self._run.parts))

    @cached_property
    def _named(self) -> tuple[str | None, Evidence]:
        """Return the workload's name and the source of that name."""
        return workload.named(self.contents.tables, self.listed["workload"], self.listed.get("found_as"))

    @cached_property
    def _sessions(self) -> pl.DataFrame:
        tables = self.contents.tables
        rows = tables["environment"]
        hosts = tables["processes"].get_column("host").drop_nulls()
        row = {
            "source_kind": "capture",
            "source_format": self._formats,
            "workload": self._named[0],
            "started_at": started(tables["clock_domains"]),
            "host": hosts.first() if len(hosts) else None,
            "fingerprint": fingerprint(rows) if rows.height else None,
            "capture_digest": self.digest,
        }
        return table_of("sessions", [row])


def _version(stated: Mapping[str, Any] | None) -> tuple[Evidence, ...]:
    """Report that the capture continues one from an earlier session."""
    if stated is None:
        return ()
    reason = f"version {stated['number']} of session {stated['follows']}: {stated['change']}"
    return (Evidence("capture version", "partial", reason),)


def _change(files: Sequence[Mapping[str, Any]], earlier: Path) -> str:
    """Describe how the files differ from those of an earlier version."""
    try:
        before = {one["name"]: one["sha256"] for one in read(earlier).listed["files"]}
    except CaptureError:
        return "it is no longer in the lake to compare with"
    now = {one["name"]: one["sha256"] for one in files}
    counts = {
        "arrived later": len(now.keys() - before.keys()),
        "changed": sum(now[name] != before[name] for name in now.keys() & before.keys()),
        "not there any more": len(before.keys() - now.keys()),
    }
    said = [f"{count} {'file' if count == 1 else 'files'} {what}" for what, count in counts.items() if count]
    return ", ".join(said) or "the same files under other names"


def _kept(one: Mapping[str, Any], rules: int) -> Evidence:
    """Report a file with its original digest, and how much of it was redacted."""
    hidden = one["redactions"]
    reason = f"{hidden} places that looked like secrets were hidden (redaction rules {rules})" if hidden else None
    item, source = f"raw file {one['name']}", f"raw/{FILES_FOLDER}/{one['name']}"
    return Evidence(item, "partial" if hidden else "present", reason, source, None, one["sha256"])


def _original(one: Mapping[str, Any]) -> Evidence:
    """Report an untouched original next to its copy."""
    source = f"raw/{ORIGINALS_FOLDER}/{one['name']}"
    return Evidence(f"original {one['name']}", "present", "untouched, for its owner alone", source, None, one["sha256"])


def _unread(one: Mapping[str, Any]) -> Evidence:
    return Evidence(f"file {one['name']}", "absent", one["reason"])


def _iterations(count: int) -> tuple[Evidence, ...]:
    """Report iterations; a foreign capture was profiled throughout, so its unprofiled speed is unknown."""
    traced = (
        Evidence("iterations", "present", None, "markers", count)
        if count
        else Evidence("iterations", "absent", "no marker delimits iterations (step#0, iteration 0, ProfilerStep#0)")
    )
    return traced, Evidence("unprofiled pass", "absent", "the capture was made elsewhere, under a profiler")


def _telemetry(samples: int) -> tuple[Evidence, ...]:
    """Report GPU samples in the capture; its host was not sampled."""
    gpus = (
        Evidence("gpu samples", "present", None, None, samples)
        if samples
        else Evidence("gpu samples", "absent", "the capture holds no samples of GPUs on its axis")
    )
    return (
        gpus,
        Evidence("system samples", "absent", "the capture was made elsewhere; its host was not sampled"),
        Evidence("scheduler events", "absent", "the capture was made elsewhere"),
    )


def started(clocks: pl.DataFrame) -> datetime | None:
    """Return the wall-clock time at the axis origin, if the capture ties its clock to it."""
    offsets = clocks.filter(pl.col("domain") == "realtime").get_column("offset_ns").drop_nulls()
    if not len(offsets):
        return None
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=-int(offsets[0]) // 1_000)
