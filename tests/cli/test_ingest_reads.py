"""How often `aaco ingest` reads: every raw file is parsed once a process, every table at most once for each stage."""

import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage
from aaco_pipeline.resources.confinement import doors, results, server
from aaco_pipeline.resources.project import Project
from tests.places import SHARED

PASSES: Final = SHARED / "captures" / "mi300x_rocpd_pmc_passes"
pytestmark = pytest.mark.skipif(not PASSES.is_dir(), reason=f"{PASSES} is not here: AACO_SHARED names the folder")

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a confined child is asked for each kind of work from now on; no capture is open yet."""
    real, found = server.answered, Counter[str]()

    def answered(request: Mapping[str, Any], *arguments: Any) -> Any:
        found[request["work"]] += 1
        return real(request, *arguments)

    monkeypatch.setattr(doors, "answered", answered)
    monkeypatch.setattr(results, "answered", answered)
    monkeypatch.setattr(doors, "_OPENED", {})
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """How often each published file is read whole, by the stage that runs."""
    found: dict[str, Counter[str]] = {}
    doing = [""]
    real_call, real_read = Stage.__call__, pl.read_parquet

    def call(one: Stage, session: Session) -> Outcome:
        doing[0] = one.name
        return real_call(one, session)

    def read(path: Path, **settings: Any) -> pl.DataFrame:
        found.setdefault(doing[0], Counter())[str(path)] += 1
        return real_read(path, **settings)

    monkeypatch.setattr(Stage, "__call__", call)
    monkeypatch.setattr(pl, "read_parquet", read)
    return found


def test_every_file_is_parsed_once_and_every_table_read_once_a_stage(
    aaco: Aaco, copied: Project, parsed: Counter[str], reads: dict[str, Counter[str]]
) -> None:
    answer = aaco("ingest", str(PASSES), project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert parsed == dict.fromkeys(("discover", "copy"), 1)  # what copies also reads
    again = [(stage, Path(file).parts[-3]) for stage in reads for file, count in reads[stage].items() if count > 1]
    assert again == [("completeness", "dispatches")]  # other columns than those that stages share
    assert "timeline" in reads, "no read was counted"
