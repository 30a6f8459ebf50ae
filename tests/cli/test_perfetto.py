"""`aaco perfetto`: a trace made when it is asked for, printed by its path, and made again only when it is older."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.cli.perfetto import written
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_trace_is_made_when_it_is_asked_for(aaco: Aaco, copied: Project, tmp_path: Path) -> None:
    lake = TraceLake(copied.lake)
    session = lake.sessions()[-1]
    path = lake.trace(session)
    path.unlink(missing_ok=True)
    answer = aaco("perfetto", project=copied)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{path}\n", "")
    made = path.stat().st_ino
    file = tmp_path / "deep" / "trace.gz"
    answer = aaco("perfetto", session, "--output", str(file), project=copied)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{file}\n", "")
    assert file.read_bytes() == path.read_bytes()
    assert path.stat().st_ino == made
    assert aaco("doctor", project=copied).returncode == 0


def test_no_path_is_printed_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"trace.gz: the lake cannot be written; name another file with --output"):
        written(b"a trace", tmp_path / "trace.gz", None)
