"""CUPTI streams on their way into the lake: texts lose their secrets, numbers stay what they are."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.nvidia import cupti
from aaco_pipeline.formats.nvidia.cupti import layout
from aaco_pipeline.formats.nvidia.cupti.secrets import without_secrets
from aaco_pipeline.resources.ingestion import copy_capture
from tests.formats.nvidia.cupti import streams

WHOLE = b"".join(streams.whole())
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"


def clean(content: bytes, piece: int = 1 << 20) -> tuple[bytes, int]:
    pieces = (content[at : at + piece] for at in range(0, len(content), piece))
    found = list(without_secrets(pieces, Limits(), "a.cupti"))
    return b"".join(one for one, _ in found), sum(hits for _, hits in found)


@given(piece=st.integers(1, 300), cut=st.integers(0, 3))
def test_a_stream_without_secrets_is_copied_as_it_is_whatever_its_pieces(piece: int, cut: int) -> None:
    content = WHOLE[: len(WHOLE) - cut]
    copied, hits = clean(content, piece)
    assert copied == content
    assert hits == 0


def test_records_that_read_like_a_secret_are_numbers_and_stay() -> None:
    disguised = np.frombuffer(f" token={TOKEN} ".encode().ljust(64), "<i8")
    rows = [{"start": one, "end": one} for one in disguised.tolist()]
    content = WHOLE + streams.records(layout.OVERHEADS, rows) + streams.packed_records(layout.OVERHEADS, rows)
    assert clean(content) == (content, 0)


def test_texts_lose_their_secrets_and_the_stream_is_read_as_before(tmp_path: Path) -> None:
    again = streams.texts(layout.NAMES, {2: f"step with token={TOKEN}", 3: "later"})
    told = streams.notes("host node01", f"call {TOKEN}")
    path = tmp_path / "41-7.cupti.gz"
    path.write_bytes(gzip.compress(WHOLE + again + told))
    (run,) = discover_runs(path).runs
    (tmp_path / "copy").mkdir()
    copy_capture(run, tmp_path / "copy", "test")
    (copied,) = (tmp_path / "copy" / "files").iterdir()
    assert TOKEN.encode() not in gzip.decompress(copied.read_bytes())
    names = cupti.read(copied).tables["markers"].get_column("name").to_list()
    assert names == ["step with token=redacted", "later"]
    before, after = (cupti.read(one).tables["dispatches"] for one in (path, copied))
    assert after.equals(before)


def test_what_no_reader_knows_and_what_was_not_written_whole_is_zeros() -> None:
    unknown = streams.chunk(99, f"token={TOKEN}".encode(), record_bytes=1)
    torn = streams.notes(f"token={TOKEN} and more")[:-4]
    copied, _ = clean(WHOLE + unknown + torn)
    assert copied[: len(WHOLE)] == WHOLE
    assert TOKEN.encode() not in copied
    assert len(copied) == len(WHOLE + unknown + torn)


def test_texts_that_contradict_themselves_are_refused() -> None:
    piece = streams.chunk(layout.NAMES, np.array([1, 500], "<u4").tobytes())
    with pytest.raises(CaptureError, match=r"a\.cupti: damaged: .*; copy the file again"):
        clean(WHOLE + piece)
