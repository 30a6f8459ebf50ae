"""What every reader gives and obeys: canonical tables with evidence, within limits on size.

A reader is a module of `aaco_pipeline.formats` with `probe(path)` and `read(path, …)`; nothing of one format is here.
What several files of one capture become together is `aaco_pipeline.capture.merging`.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract


@dataclass(frozen=True)
class DetectedFormat:
    """What a path was recognized as."""

    format: str
    detail: str


@dataclass(frozen=True)
class Limits:
    """Bounds on what a reader takes from an untrusted capture; beyond them it refuses with CaptureError.

    `file_bytes` counts after unpacking; `depth` is how deep JSON may nest.
    """

    file_bytes: int = 8 << 30
    line_bytes: int = 64 << 20
    events: int = 100_000_000
    depth: int = 64


@dataclass(frozen=True)
class CaptureTables:
    """Canonical tables without their session key, and what the reader found or missed.

    `details` are frames that a later analysis needs and no table of the lake holds; the reader documents each.
    """

    tables: Mapping[str, pl.DataFrame]
    evidence: tuple[Evidence, ...] = field(default=())
    details: Mapping[str, pl.DataFrame] = field(default_factory=dict)


def described_kernels(frame: pl.DataFrame) -> pl.DataFrame:
    """The canonical table `kernels` from `kernel_id`, `name` and whatever resource columns the capture states.

    The fingerprint hashes the name with those resources: what the compiler fixed. What the name says about family,
    tile and data type is `aaco_pipeline.analysis`'s to conclude; until then the family's source is `none`.
    """
    resources = [name for name in _KERNEL_RESOURCES if name in frame.columns]
    facts = frame.select("name", *resources).rows()
    fingerprints = [hashlib.sha256("\0".join(map(str, fact)).encode()).hexdigest()[:16] for fact in facts]
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


def unpacked(path: Path, limits: Limits) -> bytes:
    """The whole file, unpacked when it is gzip; CaptureError beyond `limits.file_bytes` or when it is damaged."""
    with open_unpacked(path) as stream:
        try:
            content = stream.read(limits.file_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    if len(content) > limits.file_bytes:
        raise CaptureError(f"{path}: more than {limits.file_bytes} bytes when unpacked; not read")
    return content


def open_unpacked(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The file opened for reading, through gzip when it begins as gzip does. CaptureError when it cannot be opened."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        return gzip.GzipFile(path) if packed else path.open("rb")
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error


_KERNEL_RESOURCES: Final = ("arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
