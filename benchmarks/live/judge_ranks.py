"""What the pipeline says of a job with one late rank that `late_rank.py` recorded on two GPUs, beside what ranks said.

Claims, of each way it was recorded: (1) one session holds both ranks, each on the GPU whose UUID it stated; (2) each
step's all-reduce is one collective of both; (3) the late rank is named with its cause, and by how much it is late is
what the events on both GPUs say (the exchange of the one that waits, less that of the other) within 5 % or 20 us: who
comes last to 32 MB also leaves some 14 us later. In the job without a cause whoever is said to be late is so by the
events, too, for GPUs differ. (4) The class is `imbalance` where one rank is late, and not where none is; (5)
`saves_at_most` bounds what removing the cause gained in the unprofiled runs, and is at most 25 % above it; (6)
PyTorch's own traces of the same program give the same rank and cause. Run as
`python -m benchmarks.live.judge_ranks RESULTS`, the folder that came back; it exits with 1 when a claim fails.
`--lake PATH` keeps the sessions.
"""

import argparse
import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.answer.reasons import late_rank
from aaco_pipeline.lake.store import TraceLake
from benchmarks.live.judge import idle_shares, taken_in, told
from benchmarks.live.programs.two_ranks import LATE

Said = Mapping[str, Any]
#: Causes by the way that was recorded; None where none was built in.
_CAUSES: Final = {"late": "work", "fixed": None, "slow_host": "host", "own_device": "work", "profiled": "work"}
_OF_LATE: Final = ("collectives", "dispatches", "kernels", "processes")
_APART: Final = 0.05
_APART_NS: Final = 20_000
_ABOVE: Final = 1.25


def lateness(ranks: Sequence[Said]) -> int:
    """By how much the late rank was late by the GPUs' events, in ns: the median over the steps."""
    late, other = ranks[LATE]["exchange_ns"], ranks[1 - LATE]["exchange_ns"]
    return int(statistics.median(waits - own for waits, own in zip(other, late, strict=True)))


def step(ranks: Sequence[Said]) -> int:
    """From one step's beginning to the next one's, in ns: the median of the first rank."""
    begun = ranks[0]["begin_ns"]
    return int(statistics.median(after - before for before, after in pairwise(begun)))


def devices_of(lake: TraceLake, session: str) -> dict[int, set[str]]:
    """The handles of the devices that each rank's kernels ran on."""
    ran = lake.read("dispatches", session).select("process_id", "device_id").unique()
    ran = ran.join(lake.read("processes", session).select("process_id", "rank"), on="process_id")
    ran = ran.join(lake.read("devices", session).select("device_id", "handle"), on="device_id")
    found: dict[int, set[str]] = {}
    for rank, handle in ran.drop_nulls().select("rank", "handle").iter_rows():
        found.setdefault(rank, set()).add(handle.removeprefix("GPU-"))
    return found


def whole(lake: TraceLake, session: str) -> int:
    """Collectives called all_reduce of which both ranks' parts were found."""
    found = lake.read("collectives", session).filter(pl.col("name").cast(pl.String) == "all_reduce")
    both = found.group_by("collective_id").agg(processes=pl.col("process_id").n_unique())
    return both.filter(pl.col("processes") == 2).height


def close(one: float, other: float) -> bool:
    return abs(one - other) <= max(_APART_NS, _APART * abs(other))


def judge(lake: TraceLake, folder: Path, runs: Mapping[str, Said]) -> bool:
    """Print what is said of each way beside the truth; whether every claim holds."""
    verdicts: list[tuple[str, bool]] = []
    rows = []
    answers: dict[str, Mapping[str, Any]] = {}
    for way, cause in _CAUSES.items():
        if not (folder / way).is_dir():
            continue
        sessions = taken_in(lake, folder / way)
        ranks = sorted(runs[way]["said"]["profiled" if way == "profiled" else "trace"], key=lambda one: one["rank"])
        truth = lateness(ranks)
        session = sessions[0]
        found = late_rank({name: lake.read(name, session) for name in _OF_LATE})
        answer = answers[way] = lake.read("answers", session).row(0, named=True)
        verdicts.append((f"{way}: one session", len(sessions) == 1))
        if way != "profiled":  # PyTorch's traces state no UUID
            stated = {one["rank"]: {one["device"]} for one in ranks}
            verdicts.append((f"{way}: each rank on its GPU", devices_of(lake, session) == stated))
        matched, steps = whole(lake, session), len(ranks[0]["begin_ns"])
        verdicts.append((f"{way}: every step's all-reduce", matched >= steps))
        if cause is None:
            honest = found is None or close(found.late_ns, truth if found.rank == LATE else -truth)
            verdicts += [(f"{way}: nobody else late", honest), (f"{way}: class", answer["class"] != "imbalance")]
        else:
            named = found is not None and (found.rank, found.cause) == (LATE, cause)
            verdicts += [(f"{way}: rank and cause", named), (f"{way}: class", answer["class"] == "imbalance")]
            verdicts.append((f"{way}: by how much", found is not None and close(found.late_ns, truth)))
        apart = [statistics.median(one["products_ns"]) / 1e6 for one in ranks]
        told_of = "nobody" if found is None else f"rank {found.rank} by {found.late_ns / 1e6:.3f} ms, {found.cause}"
        by_events = f"{truth / 1e6:.3f} ms (products {apart[0]:.3f}, {apart[1]:.3f})"
        of_class = f"{answer['class']}: {idle_shares(lake, session)}"
        rows.append((way, f"{step(ranks) / 1e6:.3f} ms", by_events, told_of, f"{matched} of {steps}", of_class))
        print(f"{way}: {answer['reason']}")
    told("Late ranks", ("way", "step", "by the GPUs' events", "told", "all-reduces", "class and shares"), rows)
    verdicts += gains(answers, runs)
    for what, holds in verdicts:
        if not holds:
            print("does not hold:", what)
    print(f"\n{sum(holds for _, holds in verdicts)} of {len(verdicts)} claims hold")
    return bool(verdicts) and all(holds for _, holds in verdicts)


def gains(answers: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Said]) -> list[tuple[str, bool]]:
    """Claim 5, of the ways from which only the cause was removed."""
    verdicts = []
    fixed = unprofiled(runs.get("fixed"))
    for way in ("late", "slow_host", "own_device"):
        plain = unprofiled(runs.get(way))
        if way not in answers or fixed is None or plain is None:
            continue
        saves, window = answers[way]["saves_at_most_ns"], answers[way]["window_ns"]
        bound, gained = (saves or 0) / window, 1 - fixed / plain
        print(f"{way}: saves at most {100 * bound:.1f} %; without the cause {100 * gained:.1f} % less, unprofiled")
        verdicts.append((f"{way}: saves at most", saves is not None and gained <= bound <= _ABOVE * gained))
    return verdicts


def unprofiled(run: Said | None) -> float | None:
    """The median step of a way's runs without a profiler, in ns; None without any."""
    told_by = [] if run is None else [ranks for name, ranks in run["said"].items() if name.startswith("run") and ranks]
    steps = [step(sorted(ranks, key=lambda one: one["rank"])) for ranks in told_by]
    return statistics.median(steps) if steps else None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--lake", type=Path)
    asked = parser.parse_args()
    lines = [json.loads(line) for line in (asked.results / "runs.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(asked.results / "ranks.tar.gz") as packed:
            packed.extractall(Path(scratch) / "recorded", filter="data")
        lake = TraceLake(asked.lake or Path(scratch) / "lake")
        return 0 if judge(lake, Path(scratch) / "recorded", {one["way"]: one for one in lines}) else 1


if __name__ == "__main__":
    sys.exit(main())
