"""Remove kernels at random from real captures and check that the loss is found.

1, 5 and 20 % anywhere, a stream, a graph launch, an end. A loss of five records or more must be found in 95 % of the
trials, and a whole capture must show nothing new.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.completeness.examination import EXAMINED, examined
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, everything
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import read_run
from aaco_pipeline.lake.validation import empty_table
from benchmarks.common import SHARED

#: Captures that hold launches and are whole by the judgement of an expert who read them.
CAPTURES: Final = (
    *("kineto/mi300x_qwen1.5_0.5b.json.gz", "kineto/h100_qwen1.5_0.5b.json.gz"),
    *("kineto/mi300x_resnet_train_ddp.json.gz", "kineto/mi300x_sglang_qwen3_8b.json.gz"),
    *("kineto/a100_alexnet_cudasync.json.gz", "captures/mi210_kineto_gpu_only", "captures/mi300x_att_ck_batched_gemm"),
    *("gpu_sessions/traces/tiny_kernels_500.json.gz", "gpu_sessions/traces/transformer_b1.json.gz"),
    *("gpu_sessions/traces/two_streams_overlap.json.gz", "gpu_sessions/traces/graph_replay.json.gz"),
    *("gpu_sessions/traces/item_each_kernel.json.gz", "gpu_sessions/sessions/b00_baseline.json.trace.json.gz"),
)
#: Findings that say that kernels are missing.
TELLING: Final = frozenset(
    {
        *("launches_unrecorded", "first_kernels_dropped", "false_idle_at_edges", "stream_missing"),
        *("graph_kernels_missing", "no_device_events"),
    }
)
LEAST: Final = 5
WANTED: Final = 0.95
Tables = Mapping[str, pl.DataFrame]
Random = np.random.Generator


def tables_of(capture: Path) -> dict[str, pl.DataFrame]:
    """The tables of the one run at a path that are examined."""
    (run,) = discover_runs(capture).runs
    read = read_run(run)
    names = dict.fromkeys((*EXAMINED, *RECORDED_FROM, "att_instructions"))
    return {name: read.tables.get(name, empty_table(name)) for name in names}


def telling(tables: Tables) -> frozenset[str]:
    """The findings of a recording that say that kernels are missing."""
    found = examined(tables, everything(tables), ()).findings
    return TELLING & frozenset(found.get_column("finding"))


def linked(tables: Tables) -> pl.DataFrame:
    """The dispatches that a call was recorded for: those whose loss can be seen."""
    key = ["process_id", "correlation_id"]
    return tables["dispatches"].join(tables["api_calls"].select(key).drop_nulls(), on=key, how="semi")


def share(ratio: float) -> Callable[[pl.DataFrame, Random], pl.DataFrame]:
    def removed(dispatches: pl.DataFrame, random: Random) -> pl.DataFrame:
        count = round(ratio * dispatches.height)
        return dispatches[np.sort(random.choice(dispatches.height, count, replace=False))]

    return removed


def of_stream(dispatches: pl.DataFrame, random: Random) -> pl.DataFrame:
    return _one(dispatches, "stream_id", random)


def of_graph(dispatches: pl.DataFrame, random: Random) -> pl.DataFrame:
    """All of one launch that several kernels share; none where no launch is a graph's."""
    several = dispatches.filter(pl.len().over("process_id", "correlation_id") > 1)
    return _one(several, "correlation_id", random)


def at_an_end(dispatches: pl.DataFrame, random: Random) -> pl.DataFrame:
    ordered = dispatches.sort("start_ns")
    count = int(random.integers(LEAST, max(LEAST + 1, ordered.height // 5)))
    return ordered.head(count) if random.random() < 0.5 else ordered.tail(count)


def _one(dispatches: pl.DataFrame, column: str, random: Random) -> pl.DataFrame:
    values = dispatches.get_column(column).drop_nulls().unique().sort()
    if not len(values):
        return dispatches.clear()
    return dispatches.filter(pl.col(column) == values[int(random.integers(len(values)))])


WAYS: Final = {
    "1 %": share(0.01),
    "5 %": share(0.05),
    "20 %": share(0.2),
    "a stream": of_stream,
    "a graph": of_graph,
    "an end": at_an_end,
}


def trials(tables: Tables, each: int, random: Random) -> Iterator[tuple[str, int, frozenset[str]]]:
    """Each way, how many kernels were removed, and what says so; those of fewer than `LEAST` are left out."""
    there = linked(tables)
    for way, removed in WAYS.items():
        for _ in range(each):
            gone = removed(there, random)
            if gone.height < LEAST:
                continue
            kept = tables["dispatches"].join(gone.select("dispatch_id"), on="dispatch_id", how="anti")
            yield way, gone.height, telling({**tables, "dispatches": kept})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    random = np.random.default_rng(asked.seed)
    counts: dict[str, list[int]] = {way: [0, 0] for way in WAYS}
    sound = True
    for name in CAPTURES:
        if not (SHARED / name).exists():
            print(f"{name}: not there; set AACO_SHARED")
            return 2
        tables = tables_of(SHARED / name)
        if untouched := telling(tables):
            print(f"{name}: the whole capture has {', '.join(sorted(untouched))}")
            sound = False
        own: dict[str, list[int]] = {way: [0, 0] for way in WAYS}
        for way, _, said in trials(tables, asked.each, random):
            for tally in (own, counts):
                tally[way][0] += bool(said)
                tally[way][1] += 1
        print(name, {way: f"{hit} of {all_}" for way, (hit, all_) in own.items() if all_}, flush=True)
    hits, total = (sum(tally[i] for tally in counts.values()) for i in (0, 1))
    for way, (hit, all_) in counts.items():
        print(f"{way:10} {hit} of {all_} found")
        sound &= all_ == 0 or hit >= WANTED * all_
    print(f"{'in all':10} {hits} of {total} found ({hits / max(total, 1):.1%})")
    return 0 if sound and hits >= WANTED * total else 1


if __name__ == "__main__":
    sys.exit(main())
