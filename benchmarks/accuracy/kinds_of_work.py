"""Share of the device's work by kind, of captures or of sessions in a lake, beside what an expert says of them.

`python benchmarks/accuracy/kinds_of_work.py` reads every capture whose shares the shared answers state (found beside the
checkout, or where AACO_SHARED says), takes it into a lake of its own and prints the shares. Arguments are paths of
captures, or with `--lake` ids of sessions in that lake. A launch's operator decides its kind where one is recorded and
tells one, else the kernel's own; recorded copies and fills count as such. It exits with 1 where a share is further than
0.04 from the answer.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml

from aaco_pipeline.analysis.kernels.names import operator_family
from aaco_pipeline.analysis.model.launching_operators import launching_operators
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY
from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture

SHARED: Final = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[3] / "shared")
TOLERANCE: Final = 0.04
UNKNOWN: Final = "unknown"
COPIES: Final = "copy/memset"
#: The kinds that a word of the answers stands for; a word that is not here is a kind itself.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "communication": (COMMUNICATION_FAMILY,),
    "convolution": ("conv",),
    "elementwise_and_copies": ("elementwise", COPIES),
    "linear_attention": ("linear attention",),
    "normalization": ("norm",),
    "rmsnorm": ("norm",),
}
CONFIGS: Final = Path(__file__).parents[2] / "configs"
STAGES: Final = ("capture", "session_environment", "inference_run", "kernel_trace")


def shares(lake: TraceLake, session: str) -> dict[str, float]:
    """The share by kind of work of the kernels' self time and of the copies' time, the largest first; they sum to 1."""
    dispatches, kernels = lake.read("dispatches", session), lake.read("kernels", session)
    copies = lake.read("memory_copies", session).select(
        kind=pl.lit(COPIES), self_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    launched = launching_operators(dispatches, lake.read("api_calls", session)).select("dispatch_id", "operator")
    operators = launched.get_column("operator").unique()
    kinds = pl.DataFrame({"operator": operators, "by_operator": [operator_family(one) for one in operators]}).cast(
        pl.String
    )
    timed = (
        dispatches.join(launched.join(kinds, on="operator"), on="dispatch_id", how="left")
        .join(kernels.select("kernel_id", pl.col("family").cast(pl.String)), on="kernel_id", how="left")
        .select("self_ns", kind=pl.coalesce("by_operator", "family", pl.lit(UNKNOWN)))
    )
    timed = (
        pl.concat([timed.select("kind", "self_ns"), copies])
        .group_by("kind")
        .agg(pl.col("self_ns").sum())
        .sort("self_ns", "kind", descending=[True, False])
    )
    total = timed.get_column("self_ns").sum()
    return {kind: time / total for kind, time in timed.iter_rows()} if total else {}


def sessions_of(lake: TraceLake, path: Path) -> Iterator[str]:
    """Take every run below the path into the lake."""
    for run in discover_runs(path).runs:
        session = new_session_id()
        with lake.receive_raw(session) as folder:
            copy_capture(run, folder, run.folder.name)
        materialize(Session(lake, session, CONFIGS), STAGES)
        yield session


def compare(found: Mapping[str, float], answer: Mapping[str, Any]) -> bool:
    """Print each share that an answer states beside the one found; whether all are near enough."""
    stated = answer.get("families") or answer.get("families_without_communication") or {}
    without = found.get(COMMUNICATION_FAMILY, 0.0) if "families_without_communication" in answer else 0.0
    near = True
    for word, expected in stated.items():
        share = sum(found.get(kind, 0.0) for kind in WORDS.get(word, (word,))) / (1 - without)
        right = abs(share - expected) <= TOLERANCE
        near &= right
        print(f"  {word:28} answer {expected:6.1%}  found {share:6.1%}  {'near' if right else 'FAR'}")
    return near


def tell(title: str, found: Mapping[str, float]) -> None:
    """Print a title and the shares."""
    print(f"{title}\n  " + ", ".join(f"{kind} {share:.1%}" for kind, share in found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lake", type=Path, help="read sessions of this lake")
    parser.add_argument("what", nargs="*", help="captures, or with --lake sessions; none: the captures of the answers")
    options = parser.parse_args()
    if options.lake:
        lake = TraceLake(options.lake)
        for session in options.what:
            tell(session, shares(lake, session))
        return 0
    answers = {
        one["capture"]: one
        for one in yaml.safe_load((SHARED / "answers" / "answers.yaml").read_text())
        if {"families", "families_without_communication"} & set(one)
    }
    near = True
    with tempfile.TemporaryDirectory() as folder:
        lake = TraceLake(Path(folder) / "lake")
        for path in map(Path, options.what or [SHARED / name for name in answers]):
            for session in sessions_of(lake, path):
                tell(str(path), found := shares(lake, session))
                inside = path.resolve().is_relative_to(SHARED.resolve())
                answer = answers.get(path.resolve().relative_to(SHARED.resolve()).as_posix(), {}) if inside else {}
                near &= compare(found, answer)
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
