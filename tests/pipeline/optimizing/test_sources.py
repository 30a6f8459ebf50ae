"""A patch makes of the one source the other, whatever their bytes; a source is replaced whole or not at all."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.pipeline.optimizing.sources import read_source, replace_source, unified_diff


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nb"),
        (b"a\r\nb\r\n", b"a\r\nB\r\n"),
        (b"\xff\xfe\nb\n", b"\xff\xfd\nb\n"),
        (b"a\x0cb\nc\n", b"a\x0cb\nd\n"),
    ],
)
def test_a_patch_makes_the_one_of_the_other(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "k.hip").write_bytes(before)
    patch, command = unified_diff(before, after, "k.hip"), ["patch", "-p1", "--binary"]
    done = subprocess.run(command, cwd=tmp_path, input=patch, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "k.hip").read_bytes() == after


def test_there_is_no_patch_of_the_same() -> None:
    assert unified_diff(b"a\n", b"a\n", "k.hip") == b""


def test_a_source_is_replaced_through_its_link_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (real := tmp_path / "real" / "k.hip").write_bytes(b"before")
    real.chmod(0o600)
    (link := tmp_path / "k.hip").symlink_to(real)
    replace_source(link, hashlib.sha256(b"before").hexdigest(), b"after")
    assert link.is_symlink() and real.read_bytes() == b"after" and real.stat().st_mode & 0o777 == 0o600
    assert list(real.parent.iterdir()) == [real]


def test_a_source_that_has_changed_or_gone_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "k.hip"
    with pytest.raises(UsageError, match="cannot be replaced"):
        replace_source(path, "", b"after")
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="was changed"):
        replace_source(path, hashlib.sha256(b"before").hexdigest(), b"after")
    assert path.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        read_source(tmp_path)
