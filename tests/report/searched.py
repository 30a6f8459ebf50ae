"""A search for a faster kernel in a lake, with stand-ins for compilers and processes, for the tests of its reports."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.optimizing import search
from aaco_pipeline.pipeline.optimizing.asking import Order
from tests.pipeline.optimizing.stand_in import BROKEN, InProcess, Offers, costing, written

FASTER: Final = costing(8000)
SLOWER: Final = costing(11000)


class States:
    """A static verdict that states what the source costs as registers, and lets everything pass."""

    def figures(self, source: bytes, kernel: str) -> dict[str, dict[str, Any]]:
        vgprs = 40 if source == FASTER else 28
        one = {"vgprs": vgprs, "sgprs": 16, "lds_bytes": 0, "scratch_bytes": 0, "waves_per_simd": 8}
        built = {"compiler": "clang 19", "flags": ["-O3"], "code_sha256": f"{vgprs}"}
        return {name: {"architecture": name, **one, **built} for name in ("gfx90a", "gfx942")}

    def check(self, before: object, after: object, block: object = None, parameters: object = None) -> None:
        """Nothing is refused."""


def searched(
    folder: Path, patched: pytest.MonkeyPatch, *offers: bytes, static: bool = True, **order: Any
) -> tuple[TraceLake, str]:
    """A lake with a search that was offered these sources; without any, one that fails and one that is faster."""
    patched.setenv("AACO_CACHE", str(folder / "cache"))
    patched.setattr(search, "measurement_slot", lambda on_wait: nullcontext())
    patched.setattr(search, "choose_target", lambda choice: InProcess())
    patched.setattr(
        search, "static_of", lambda folder, launch: (States(), None) if static else (None, "no compiler for AMD GPUs")
    )
    patched.setattr(search, "proposers_of", lambda configs, kept: (Offers(*(offers or (BROKEN, SLOWER, FASTER))),))
    (mine := folder / "mine").mkdir()
    lake = TraceLake(folder / "lake")
    ended = search.run(folder / "configs", lake, Order(written(mine), **order), lambda line: None)
    return lake, ended.name


def changed(document: Mapping[str, Any], **evidence: Any) -> dict[str, Any]:
    """The document with other evidence."""
    return {**document, "evidence": {**document["evidence"], **evidence}}
