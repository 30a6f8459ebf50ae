"""Sessions that mix two causes in known proportion: both must be named, the larger first, within 5 points.

GPU steps of two real traces run one after another on one axis; CPU iterations are synthetic. The truth follows from the
construction and shares no arithmetic with the product.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.answer.answer import INPUTS, answer_of
from aaco_pipeline.analysis.steady.parts import steady_part
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, recorded
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.validation import empty_table, in_contract, to_contract
from aaco_pipeline.providers import CPU_PROVIDER
from benchmarks.common import SHARED

Tables = dict[str, pl.DataFrame]
NEEDED: Final = 0.9
NEAR: Final = 0.05
#: The traces by what the device's idle time is for by construction; None where the device was built to be busy.
TRACES: Final[Mapping[str, str | None]] = {
    "gemm_bf16_4096": None,
    "elementwise_256mib": None,
    "graph_replay": None,
    "tiny_kernels_500": "launch",
    "host_work_between": "host",
    "item_each_kernel": "sync",
    "pageable_copies": "sync",
}
#: What each trace is about: its first cause.
CAUSES: Final = {**{name: cause or "device" for name, cause in TRACES.items()}, "pageable_copies": "copy"}
FRACTIONS: Final = (0.2, 0.35, 0.5, 0.65, 0.8)
#: Iterations of a mixture, each of whole steps of both traces.
_ITERATIONS: Final = 3
#: No more steps of one trace in an iteration: what a longer one needs to be outweighed.
_MOST_STEPS: Final = 400
#: Between two steps on the host.
_PAUSE_NS: Final = 10_000
#: The first step of a trace pays for what is done once.
_WARM: Final = 1
_ON_CPU: Final = ("device", "launch", "host", "contention")


@dataclass(frozen=True)
class Step:
    """A step of a trace, on an axis of its own from 0 to length_ns."""

    trace: str
    length_ns: int
    tables: Tables


@dataclass(frozen=True)
class Mixture:
    """Tables, and per cause the least and the most that is true of it, as shares."""

    told: str
    tables: Tables
    truth: Mapping[str, tuple[float, float]]


def steps(name: str) -> list[Step]:
    """The warm steps of a trace. A step's device work lies within its mark on the host: it ends with a wait."""
    tables = dict(kineto.read(SHARED / "gpu_sessions" / "traces" / f"{name}.json.gz").tables)
    marks = tables["markers"].filter(
        pl.col("thread_id").is_not_null() & pl.col("name").cast(pl.String).str.contains(r"^step#")
    )
    found = []
    for start, end in marks.sort("start_ns").select("start_ns", "end_ns").rows()[_WARM:]:
        own = {}
        for table in ("dispatches", "memory_copies", "api_calls"):
            within = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
            own[table] = tables[table].filter(within).with_columns(pl.col("start_ns", "end_ns") - start)
        found.append(Step(name, end - start, {**own, "kernels": tables["kernels"], "devices": tables["devices"]}))
    return found


def mixed(first: list[Step], second: list[Step], fraction: float, draw: random.Random) -> Mixture:
    """Steps of both traces one after another, so that the first take about `fraction` of the time."""
    lengths = [sum(step.length_ns for step in one) / len(one) for one in (first, second)]
    wanted = fraction / (1 - fraction) * lengths[1] / lengths[0]
    counts = (max(1, round(wanted)), 1) if wanted >= 1 else (1, max(1, round(1 / wanted)))
    counts = (min(_MOST_STEPS, counts[0]), min(_MOST_STEPS, counts[1]))
    parts: list[Tables] = []
    iterations, at, calls, correlation, true = [], 0, 0, 0, Truth()
    for number in range(_ITERATIONS):
        began = at
        for steps_of, count, free in ((first, counts[0], 0), (second, counts[1], 1_000)):
            for _ in range(count):
                step = draw.choice(steps_of)
                parts.append(_placed(step, _Place(at, number, calls, correlation, free)))
                true.add(step, at)
                calls += step.tables["api_calls"].height
                correlation += 1_000_000
                at += step.length_ns + _PAUSE_NS
        iterations.append({"pass": "trace", "iteration": number, "phase": "measure", "start_ns": began, "end_ns": at})
    joined = {name: pl.concat([part[name] for part in parts]) for name in ("dispatches", "memory_copies", "api_calls")}
    kernels = [
        step.tables["kernels"].with_columns(pl.col("kernel_id") + offset)
        for step, offset in ((first[0], 0), (second[0], 1_000))
    ]
    tables = {
        **joined,
        "dispatches": joined["dispatches"].with_columns(dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32)),
        "memory_copies": joined["memory_copies"].with_columns(copy_id=pl.int_range(pl.len(), dtype=pl.Int32)),
        "kernels": pl.concat(kernels),
        "devices": first[0].tables["devices"],
        "iterations": to_contract("iterations", pl.DataFrame(iterations).with_columns(latency_ns=None)),
    }
    told = f"{counts[0]} x {first[0].trace}, {counts[1]} x {second[0].trace}"
    return Mixture(told, tables, true.shares())


class Truth:
    """Sums of simple intervals, of one step after another."""

    def __init__(self) -> None:
        self._sums: dict[str | None, int] = {}
        self._first: int | None = None
        self._last = 0

    def add(self, step: Step, at: int) -> None:
        """Count a step that begins at `at`: what its kernels cover, what else its copies cover, and the idle rest."""
        kernels = _union(step.tables["dispatches"].select("start_ns", "end_ns").rows())
        everything = _union(
            [
                *step.tables["dispatches"].select("start_ns", "end_ns").rows(),
                *step.tables["memory_copies"].select("start_ns", "end_ns").rows(),
            ]
        )
        device, busy = (sum(end - start for start, end in one) for one in (kernels, everything))
        begin, end = everything[0][0], everything[-1][1]
        idle = end - begin - busy
        for cause, time in (("device", device), ("copy", busy - device), (TRACES[step.trace], idle)):
            self._sums[cause] = self._sums.get(cause, 0) + time
        # Around a step the device is idle for no constructed cause.
        if self._first is None:
            self._first = at + begin
        else:
            self._sums[None] = self._sums.get(None, 0) + at + begin - self._last
        self._last = at + end

    def shares(self) -> dict[str, tuple[float, float]]:
        """Per cause its least and its largest share: idle time of no constructed cause may count for any idle one."""
        assert self._first is not None
        whole = self._last - self._first
        assert sum(self._sums.values()) == whole
        free = self._sums.get(None, 0)
        return {
            cause: (time / whole, (time + (0 if cause in ("device", "copy") else free)) / whole)
            for cause, time in self._sums.items()
            if cause is not None and time
        }


def on_cpu(first: str, second: str, fraction: float, draw: random.Random) -> Mixture:
    """Iterations divided between two causes; of what they leave, half is operators' and half the runtime's."""
    rest = 0.1
    parts = dict.fromkeys(_ON_CPU, 0.0)
    parts[first] += fraction * (1 - rest)
    parts[second] += (1 - fraction) * (1 - rest)
    parts["device"] += rest / 2
    parts["launch"] += rest / 2
    rows: list[dict[str, Any]] = []
    dispatches, sums = [], dict.fromkeys(_ON_CPU, 0)
    for name in ("latency", "trace"):
        for number in range(20):
            length = round(draw.gauss(10_000_000, 500_000))
            own = {cause: round(length * part * draw.gauss(1, 0.02)) for cause, part in parts.items()}
            length = sum(own.values())
            start = sum(row["latency_ns"] for row in rows)
            rows.append(
                {"pass": name, "iteration": number, "phase": "measure", "start_ns": start, "end_ns": start + length}
                | {
                    "latency_ns": length,
                    "cpu_time_ns": own["device"] + own["launch"],
                    "run_delay_ns": own["contention"],
                }
            )
            if name == "latency":
                sums = {cause: sums[cause] + own[cause] for cause in _ON_CPU}
                continue
            # An operator's traced time holds its part of the waits for a processor.
            waited = own["contention"] * own["device"] // (own["device"] + own["launch"])
            took = own["device"] + waited
            dispatches.append(
                {"kernel_id": 0, "start_ns": start, "end_ns": start + took, "self_ns": took, "iteration": number}
            )
    kernels = pl.DataFrame({"kernel_id": [0], "name": ["MatMul"], "family": ["gemm"]})
    tables = {
        "sessions": _filled("sessions", pl.DataFrame({"provider": [CPU_PROVIDER]})),
        "iterations": to_contract("iterations", pl.DataFrame(rows)),
        "dispatches": _filled(
            "dispatches",
            pl.DataFrame(dispatches).with_columns(
                dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32), process_id=0, device_id=0
            ),
        ),
        "kernels": _filled("kernels", kernels),
    }
    whole = sum(sums.values())
    truth = {cause: (time / whole, time / whole) for cause, time in sums.items() if time}
    return Mixture(f"{fraction:.0%} {first}, {second} on the CPU", tables, truth)


def answered(mixture: Mixture) -> tuple[str, dict[str, float]]:
    """The class, and per cause its share: what explains a part of a share counts for itself, as a class does."""
    tables = {name: mixture.tables.get(name, empty_table(name)) for name in {*INPUTS, *RECORDED_FROM}}
    run = recorded(tables)
    if tables["sessions"].is_empty():
        idle = gaps(run.activities, tables["api_calls"], run.waits)
        steady = steady_part(tables)
        tables["gaps"] = in_contract("gaps", idle.with_columns(doubt=pl.lit(None, pl.String)))
        tables["session_parts"] = to_contract(
            "session_parts", steady.parts.with_columns(repetitions=pl.lit(None, pl.Int64))
        )
        tables["first_calls"] = to_contract("first_calls", steady.first_calls)
    labels = pl.DataFrame(schema={"kernel_id": pl.Int32, "label": pl.String})
    answer = answer_of(tables, run, labels)
    found: dict[str, float] = {}
    for share, reason, ratio in answer.time_shares.select(
        pl.col("share", "reason").cast(pl.String), "share_ratio"
    ).iter_rows():
        found[reason or share] = found.get(reason or share, 0.0) + ratio
        if reason is not None:
            found[share] = found.get(share, 0.0) - ratio
    return answer.answers.item(0, "class"), found


def judged(mixture: Mixture) -> dict[str, Any]:
    """Compare the answer: both causes, and the largest distance of a share from the truth."""
    name, ours = answered(mixture)
    true = {cause: (least + most) / 2 for cause, (least, most) in mixture.truth.items()}
    ordered = sorted(true, key=lambda cause: -true[cause])[:2]
    told = sorted(ours, key=lambda cause: -ours[cause])[:2]
    alike = len(ordered) > 1 and true[ordered[0]] - true[ordered[1]] <= NEAR
    right = set(told) == set(ordered) if alike else told == ordered
    far = {
        cause: max(least - ours.get(cause, 0.0), ours.get(cause, 0.0) - most, 0.0)
        for cause, (least, most) in mixture.truth.items()
    }
    worst = max(far, key=lambda cause: far[cause])
    return {
        "mixture": mixture.told,
        "truth": ", ".join(f"{cause} {true[cause]:.2f}" for cause in ordered),
        "ours": ", ".join(f"{cause} {ours[cause]:.2f}" for cause in told),
        "class": name,
        "off": round(far[worst], 3),
        "of": worst,
        "causes": right and name in (ordered if alike else ordered[:1]),
    }


def mixtures(draw: random.Random) -> Iterator[Mixture]:
    """Every pair of causes at every fraction; which trace keeps the device busy is drawn."""
    by_cause: dict[str, list[str]] = {}
    for name, cause in CAUSES.items():
        by_cause.setdefault(cause, []).append(name)
    known = {name: steps(name) for name in TRACES}
    for first, second in combinations(by_cause, 2):
        for fraction in FRACTIONS:
            one, other = (known[draw.choice(by_cause[cause])] for cause in (first, second))
            yield mixed(one, other, fraction, draw)
    for first, second in combinations(_ON_CPU, 2):
        for fraction in FRACTIONS:
            yield on_cpu(first, second, fraction, draw)


# ---- inside ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a step goes: its time, its iteration, and the first of each kind of number that is still free."""

    at: int
    iteration: int
    call: int
    correlation: int
    kernel: int


def _placed(step: Step, place: _Place) -> Tables:
    """The step's rows at a place on the common axis, with numbers of their own, on one thread of one process."""
    base = step.tables["api_calls"].get_column("correlation_id").min()
    moved = {
        name: step.tables[name].with_columns(
            pl.col("start_ns", "end_ns") + place.at,
            process_id=pl.lit(0, pl.Int32),
            correlation_id=pl.col("correlation_id") - base + place.correlation,
        )
        for name in ("dispatches", "memory_copies", "api_calls")
    }
    moved["dispatches"] = moved["dispatches"].with_columns(
        pl.col("kernel_id") + place.kernel, thread_id=pl.lit(1, pl.Int64), iteration=pl.lit(place.iteration, pl.Int32)
    )
    moved["api_calls"] = moved["api_calls"].with_columns(
        call_id=pl.int_range(place.call, place.call + pl.len(), dtype=pl.Int32), thread_id=pl.lit(1, pl.Int64)
    )
    return moved


def _union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _filled(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the other columns of their table null."""
    return pl.concat([empty_table(name), rows], how="diagonal_relaxed").select(empty_table(name).columns)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    index = SHARED / "gpu_sessions" / "traces" / "index.json"
    if not index.is_file():
        print(f"{index}: not there; set AACO_SHARED")
        return 2
    built = {name: one["cause_by_construction"] for name, one in json.loads(index.read_text())["traces"].items()}
    assert all(cause == "device" or built[name] == f"{cause}_bound" for name, cause in CAUSES.items())
    rows = []
    for mixture in mixtures(random.Random(given.seed)):
        rows.append(judged(mixture))
        print({**rows[-1]}, flush=True)
    table = pl.DataFrame(rows)
    with pl.Config(tbl_rows=-1, tbl_width_chars=170, fmt_str_lengths=60, tbl_hide_column_data_types=True):
        print(table)
    right = int(table.get_column("causes").sum())
    furthest = max(row["off"] for row in rows)
    near = int((table.get_column("off") <= NEAR).sum())
    print(f"{right} of {table.height} with both causes right ({right / table.height:.1%}, needed {NEEDED:.0%})")
    print(f"{near} of {table.height} with every share within {NEAR:.2f}; the furthest {furthest:.3f}")
    return 0 if right >= NEEDED * table.height and near == table.height else 1


if __name__ == "__main__":
    sys.exit(main())
