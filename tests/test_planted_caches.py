"""Code that another user put into a cache is not executed, through each module that executes such code.

Every way to plant it is in `benchmarks.reliability.planted_caches`; `test_cache_folder` tries each on the door itself.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.reliability.planted_caches import (
    FIRED,
    INPUTS,
    KINDS,
    ROOT_USER,
    WAYS,
    WORKS,
    made_once,
    make_inputs,
    planted_in,
    run_victim,
)

#: One of the folder, which an earlier check would have found too, and one of the file.
TRIED: Final = ("everyone may write to the cache, sticky", "the file is another's")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this host"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("planted")
    make_inputs(place / "inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INPUTS, str(place / "inputs"))
        yield place


#: Without a compiler in the way; that no other module goes round the door is for `test_executed_code`.
QUICK: Final = ("AMD device libraries", "compiled templates")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.nightly) for kind in KINDS]
)
def test_planted_code_runs_without_the_checks_and_never_with_them(kind: str, inputs: Path, tmp_path: Path) -> None:
    good = made_once(kind, inputs)
    control = planted_in(tmp_path / "control", good, kind, ROOT_USER)
    assert FIRED in run_victim(kind, control.top, ROOT_USER, is_checked=False), "this test could not fail"
    for number, way in enumerate(TRIED):
        planted = planted_in(tmp_path / str(number), good, kind, ROOT_USER)
        WAYS[way](planted)
        said = run_victim(kind, planted.top, ROOT_USER)
        assert FIRED not in said, f"{kind}: {way}"
        assert WORKS in said, said
