"""The interface of every reader: canonical tables with evidence, within size limits.

`aaco_pipeline.formats.readers` lists the readers; nothing here is specific to one format.
`aaco_pipeline.capture.merging` combines several files of one capture.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import to_contract

#: Copy directions as HSA's and HIP's tracers spell them, with the lake's names.
COPY_DIRECTIONS: Final = {
    "HostToDevice": "host_to_device",
    "DeviceToHost": "device_to_host",
    "DeviceToDevice": "device_to_device",
}


@dataclass(frozen=True)
class DetectedFormat:
    """Result of recognizing a path: its format and a detail for the user."""

    format: str
    detail: str


@dataclass(frozen=True)
class StatedProcess:
    """A process as stated in its file, read without the events; determines which files belong to one job.

    Times are on the host's clock, in ns; `output` is the output path given to the tool. None if not stated.
    """

    host: str | None = None
    pid: int | None = None
    parent_pid: int | None = None
    command: str | None = None
    rank: int | None = None
    guid: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    output: str | None = None


@dataclass(frozen=True)
class FormatRow:
    """A format's row in the table of docs/captures.md: its writer, how it is recognized, and the tables it provides."""

    written_by: str
    recognized_by: str
    gives: str


@dataclass(frozen=True)
class Limits:
    """Limits on what a reader accepts from an untrusted capture; it raises CaptureError beyond them.

    `file_bytes` applies after unpacking; `whole_bytes` limits the part of a table read at once, and `document_bytes` a
    JSON document whose values all become objects. `line_bytes` limits one event or section, `text_bytes` one text (a
    name or value). `depth` limits JSON nesting, `columns` and `tables` their number per file. Compressed or sparse
    files larger than `freely_expanded_bytes` may expand to `expansion_ratio` times their size on disk; the highest
    ratio seen in a real capture is 44 (a trace of replayed graphs).
    """

    file_bytes: int = 8 << 30
    whole_bytes: int = 1 << 30
    document_bytes: int = 256 << 20
    line_bytes: int = 64 << 20
    text_bytes: int = 1 << 20
    events: int = 100_000_000
    depth: int = 64
    columns: int = 20_000
    tables: int = 10_000
    expansion_ratio: int = 128
    freely_expanded_bytes: int = 64 << 20


@dataclass(frozen=True)
class CaptureTables:
    """Canonical tables without their session key, and evidence of the data that was found or missing.

    `details` are frames that later analysis needs but that are not tables of the lake; each reader documents its own.
    """

    tables: Mapping[str, pl.DataFrame]
    evidence: tuple[Evidence, ...] = field(default=())
    details: Mapping[str, pl.DataFrame] = field(default_factory=dict)


#: Columns of the detail `source_rows`: the number of records of each kind in the source, and the number read.
SOURCE_ROWS: Final = pl.Schema({"item": pl.String(), "rows_in": pl.Int64(), "rows_out": pl.Int64()})


class Findings:
    """Evidence and record counts collected while a source is read."""

    def __init__(self, source: str | None = None) -> None:
        self.source = source
        self.evidence: list[Evidence] = []
        self.rows: list[tuple[str, int, int]] = []

    def say(
        self, item: str, status: Status, reason: str | None = None, rows: int | None = None, source: str | None = None
    ) -> None:
        """Add an item of evidence about `source`, by default the entire source."""
        self.evidence.append(Evidence(item, status, reason, source or self.source, rows))

    def note(self, count: int, item: str, status: Status, reason: str, source: str | None = None) -> None:
        """Report how often an oddity occurred, if it did."""
        if count:
            self.say(item, status, reason, count, source)

    def have(self, item: str, rows: int, lacking: str | None, source: str | None = None) -> None:
        """Report the number of rows, or the reason if there are none."""
        self.say(item, presence(rows), None if rows else lacking, rows, source)

    def took(self, item: str, rows_in: int, rows_out: int | None = None) -> None:
        """Count the records of a kind in the source and those that were read (all by default)."""
        self.rows.append((item, rows_in, rows_in if rows_out is None else rows_out))

    def source_rows(self) -> pl.DataFrame:
        """Return the detail `source_rows` of all counted records."""
        return pl.DataFrame(self.rows, schema=SOURCE_ROWS, orient="row")


def presence(rows: int) -> Literal["present", "absent"]:
    """Return the evidence status for this number of rows."""
    return "present" if rows else "absent"


def table_of(table: str, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Build a canonical table from rows given as mappings; contract columns missing from all rows are null."""
    types = polars_types(table)
    return to_contract(table, pl.DataFrame(list(rows), schema_overrides=types, infer_schema_length=None))


def described_kernels(frame: pl.DataFrame) -> pl.DataFrame:
    """Build the canonical table `kernels` from `kernel_id`, `name` and any resource columns in the capture.

    The fingerprint hashes the name and those resources, which are fixed at compile time. `aaco_pipeline.analysis`
    derives family, tile and data type from the name; until then the family's source is `none`.
    """
    resources = [name for name in _KERNEL_RESOURCES if name in frame.columns]
    facts = frame.select("name", *resources).rows()
    fingerprints = [fingerprint("\0".join(map(str, fact))) for fact in facts]
    return to_contract(
        "kernels",
        frame.with_columns(
            short_name=pl.col("name")
            .str.extract(r"^(?:void )?(.*?[^<(\s])(?:[<(]|\.kd|$)", 1)
            .fill_null(pl.col("name")),
            fingerprint=pl.Series(fingerprints, dtype=pl.String),
            role=pl.lit("main"),
            family_source=pl.lit("none"),
        ),
    )


def dispatch_table(rows: pl.DataFrame) -> pl.DataFrame:
    """Build the table `dispatches` from columns with `start_ns` and `end_ns`; adds `self_ns` and `below_resolution`."""
    self_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0)
    return to_contract("dispatches", rows.with_columns(self_ns=self_ns, below_resolution=False))


def fingerprint(text: str) -> str:
    """Hash a text to sixteen hexadecimal digits, stable across sessions."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def overlapping_count(activities: pl.DataFrame, lane: str) -> int:
    """Count activities that begin before an earlier one in the same queue or stream has ended (null is no stream)."""
    ordered = activities.drop_nulls(lane).sort(lane, "start_ns", "end_ns", maintain_order=True)
    before = pl.col("end_ns").cum_max().shift(1).over(lane)
    return ordered.filter(pl.col("start_ns") < before).height


_KERNEL_RESOURCES: Final = ("arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
