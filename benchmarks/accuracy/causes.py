"""Causes of a change: recorded sessions with a known cause, and real traces with one injected fault or swap.

The split must close to 1 % on every pair, each fault must be the first cause, each swap the first selection change, and
pairs without one must name nothing. The rules were written on other traces and arms.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm
from aaco_pipeline.statistics.causes.decomposition import Decomposition, decompose
from aaco_pipeline.statistics.causes.matching import replaced_kernels
from aaco_pipeline.statistics.causes.selection import selections
from benchmarks.accuracy.answers import judged
from benchmarks.accuracy.trace_faults import FAULTS, Fault, sampled
from benchmarks.accuracy.trace_swaps import (
    Swap,
    fact_swaps,
    fusions,
    graph_swap,
    kernel_swaps,
    known_names,
    placement_swaps,
    without_operators,
)
from benchmarks.common import SHARED

Tables = dict[str, pl.DataFrame]
_READ: Final = tuple(dict.fromkeys((*ACCOUNTED_FROM, *FACTS, *RECORDED_FROM, "markers")))
_ARMS: Final = ("baseline", "baseline_repeat", "extra_launches", "host_delay")
_BLOCKS: Final = range(10)
#: Traces and arms that the rules were not written on; the earlier parts are in the history of this file.
_TRACES: Final = ("h100_qwen1.5_0.5b", "mi300x_qwen1.5_0.5b", "mi300x_resnet_train_ddp", "a100_alexnet_cudasync")
_BEFORE, _AFTER = "baseline_repeat", "extra_launches"
_SIZES: Final[tuple[float, ...]] = (0.05, 0.1, 0.2)
#: Faults among two arms of real sessions have to stand out from what these differ by themselves.
_SIZES_OF_ARMS: Final[tuple[float, ...]] = (0.1, 0.2)
_WARMUP: Final = 30
_TINY: Final = "vectorized_elementwise_kernel"
_CLOSES: Final = 0.01
_LEAST_SWAPS, _LEAST_KINDS, _LEAST_PAIRS = 60, 6, 300


class Sessions:
    """The tables of the shared captures, taken into a lake once."""

    def __init__(self, lake: TraceLake) -> None:
        self._lake = lake
        self._read: dict[str, Tables] = {}

    def of(self, path: Path) -> Tables:
        """The tables of one capture's session."""
        if str(path) not in self._read:
            session = judged(self._lake, path)
            self._read[str(path)] = {name: self._lake.read(name, session).drop("session_id") for name in _READ}
        return self._read[str(path)]

    def recorded(self, block: int, name: str) -> Tables:
        """A session of the interleaved ones: its trace, with its unprofiled iterations."""
        path = SHARED / "gpu_sessions" / "sessions" / f"b{block:02d}_{name}.json"
        tables = self.of(path.with_name(path.name + ".trace.json.gz"))
        latency = json.loads(path.read_text())["latency_ns"][_WARMUP:]
        rows = pl.DataFrame(
            {"pass": "latency", "iteration": range(len(latency)), "phase": "measure", "latency_ns": latency},
            schema_overrides={"iteration": pl.Int32},
        )
        plain = tables["iterations"].with_columns(pl.col(pl.Categorical).cast(pl.String))
        return {
            **tables,
            "iterations": pl.concat([plain, rows], how="diagonal_relaxed"),
            "sessions": tables["sessions"].with_columns(block=pl.lit(block, pl.Int32)),
        }

    def trace(self, name: str) -> Tables:
        places = [SHARED / f"gpu_sessions/traces/{name}.json.gz", SHARED / f"kineto/{name}.json.gz"]
        return self.of(next((path for path in places if path.exists()), SHARED / "captures" / name))


def split(baseline: Arm, candidate: Arm) -> Decomposition:
    return decompose(baseline, candidate, replaced_kernels(baseline.accounts, candidate.accounts))


def of_arms(sessions: Sessions) -> Iterator[tuple[str, bool]]:
    """Claim 1: the recorded arms, with the closure of every pair of a block."""
    sides = {name: arm({f"{name} {block}": sessions.recorded(block, name) for block in range(10)}) for name in _ARMS}
    found = {name: split(sides["baseline"], sides[name]) for name in _ARMS[1:]}
    for name, one in found.items():
        named = one.named()
        told = ", ".join(
            f"{kind} {short[:40]} {delta / 1e3:+.1f} us"
            for kind, short, delta in named.select("kind", "short_subject", "delta_ns").iter_rows()
        )
        change = f"{one.change_ns / 1e3:+.1f} us of {one.baseline_ns / 1e3:.0f} us recorded ({one.interval})"
        print(f"  {name}: {change}; named: {told or 'nothing'}")
    yield "baseline_repeat names nothing", found["baseline_repeat"].named().is_empty()
    first = found["extra_launches"].named().row(0, named=True)
    yield (
        "extra_launches: first cause is more launches of the tiny kernels",
        first["kind"] == "launches"
        and _TINY in first["subject"]
        and round(first["candidate_count"] - first["baseline_count"]) == 40,
    )
    hidden = found["host_delay"].named().filter(pl.col("kind") == "hidden_host")
    yield (
        "host_delay: the longer host time is reported as hidden",
        hidden.height == 1 and hidden.item(0, "delta_ns") > 0,
    )
    tops = Counter(
        row["kind"] == "launches" and _TINY in row["subject"]
        for block in range(10)
        for row in [
            split(
                arm({"a": sessions.recorded(block, "baseline")}), arm({"b": sessions.recorded(block, "extra_launches")})
            ).causes.row(0, named=True)
        ]
    )
    print(f"  extra_launches, each block as a single pair: first cause right in {tops[True]} of {tops.total()}")
    yield "extra_launches: first cause right in every single pair", tops[False] == 0


def of_closure(sessions: Sessions) -> Iterator[tuple[str, bool]]:
    """Claim 2: every pair of the forty recorded sessions, and of other traces of one workload."""
    single = [arm({f"{name} {block}": sessions.recorded(block, name)}) for block in range(10) for name in _ARMS]
    pairs = list(itertools.combinations(single, 2))
    qwen = [arm({name: sessions.trace(name)}) for name in ("h100_qwen1.5_0.5b", "mi300x_qwen1.5_0.5b")]
    worst = max(split(*pair).closure_ratio for pair in [*pairs, (qwen[0], qwen[1])])
    print(f"  {len(pairs) + 1} pairs: worst closure {worst:.2g} of the change")
    yield f"closure below {_CLOSES:.0%} on all pairs", worst < _CLOSES


def of_faults(sessions: Sessions) -> Iterator[tuple[str, bool]]:
    """Claim 3: faults put into single traces, and into one arm of recorded sessions."""
    right: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    worst = 0.0
    cases = [(name, {name: sessions.trace(name)}, {name: sessions.trace(name)}, _SIZES) for name in _TRACES]
    cases += [
        (f"block {block}", {"a": one}, {"b": one}, _SIZES)
        for block in _BLOCKS
        for one in [sessions.recorded(block, _BEFORE)]
    ]
    # Both arms are identical code: the first and the second half of the blocks of one arm.
    halves = (range(5), range(5, 10))
    before, after = ({f"{_BEFORE} {n}": sessions.recorded(n, _BEFORE) for n in half} for half in halves)
    cases.append(("arms of five sessions", before, after, _SIZES_OF_ARMS))
    for (label, base, candidate, sizes), fault in itertools.product(cases, FAULTS):
        for size in sizes:
            changed = {name: fault.put_in(tables, size) for name, tables in candidate.items()}
            if None in changed.values():
                continue
            wanted = {one[1] for one in changed.values() if one}
            sides = (
                arm({k: sampled(v) for k, v in base.items()}),
                arm({k: _clocked(one[0], fault) for k, one in changed.items() if one}),
            )
            found = split(*sides)
            worst = max(worst, found.closure_ratio)
            top = found.causes.row(0, named=True)
            hit = any(top["kind"] == kind and subject in (None, top["subject"]) for kind, subject in fault.kinds)
            hit = hit and (wanted == {None} or top["subject"] in wanted)
            tried[fault.name] += 1
            right[fault.name] += hit
            if not hit:
                told = f"{top['kind']} {top['short_subject'][:60]} {top['delta_ns'] / 1e3:+.1f}"
                print(f"  WRONG {label}, {fault.name} {size:.0%}: {told} of {found.change_ns / 1e3:+.1f} us")
    for name, count in tried.items():
        print(f"  {name}: {right[name]} of {count} right")
    print(f"  worst closure of these {tried.total()}: {worst:.2g}")
    yield "first cause right in every fault", right == tried and len(tried) == len(FAULTS)
    yield f"closure below {_CLOSES:.0%} on all faults", worst < _CLOSES


def of_swaps(sessions: Sessions, onnx: tuple[Tables, Tables] | None) -> Iterator[tuple[str, bool]]:
    """Claim 4: swaps are named first, and pairs without one name nothing."""
    swaps = list(_swaps(sessions, onnx))
    kinds: Counter[str] = Counter()
    wrong = 0
    for swap in swaps:
        sides = arm({"before": swap.before}), arm({"after": swap.after})
        found = selections(*sides, replaced_kernels(sides[0].accounts, sides[1].accounts))
        first = found.row(0, named=True) if found.height else None
        hit = (
            first is not None
            and first["what"] in swap.kinds
            and (swap.values is None or (swap.values[0] in first["from_value"] and swap.values[1] in first["to_value"]))
        )
        kinds[swap.kinds[0]] += 1
        wrong += not hit
        if not hit:
            print(f"  WRONG {swap.name}: {first and (first['what'], first['from_value'][:60], first['to_value'][:60])}")
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"  {len(swaps)} swaps: {counts}; {wrong} not first")
    named, pairs = 0, 0
    for one, other in _without_a_swap(sessions):
        found = selections(one, other, replaced_kernels(one.accounts, other.accounts))
        pairs += 1
        named += found.height > 0
        if found.height:
            print(f"  NAMED {found.row(0)}")
    print(f"  {pairs} pairs without a swap: {named} named")
    yield (
        f"{_LEAST_SWAPS} swaps or more of {_LEAST_KINDS} kinds, each first",
        wrong == 0 and len(swaps) >= _LEAST_SWAPS and len(kinds) >= _LEAST_KINDS,
    )
    yield f"{_LEAST_PAIRS} pairs or more without a swap name nothing", named == 0 and pairs >= _LEAST_PAIRS


def _clocked(tables: Tables, fault: Fault) -> Tables:
    return tables if fault.name == "lower clock" else sampled(tables)


def _swaps(sessions: Sessions, onnx: tuple[Tables, Tables] | None) -> Iterator[Swap]:
    names = known_names(SHARED / "kernels" / "kernel_names.csv.gz")
    # Every other name of the list: the rules were written on the others.
    names = names.filter(pl.int_range(pl.len()) % 2 == 0)
    pairs = [(f"block {one}", sessions.recorded(one, _BEFORE), sessions.recorded(one, _AFTER)) for one in _BLOCKS]
    traces = [(name, sessions.trace(name), sessions.trace(name)) for name in _TRACES]
    for label, before, after in [*pairs, *traces]:
        found = list(kernel_swaps(label, before, after, names, 3))
        yield from found
        yield from map(without_operators, found)
        yield from fusions(label, before, after, 2)
    for label, before, after in pairs:
        yield graph_swap(label, before, after)
    yield from fact_swaps(*pairs[0])
    if onnx is not None:
        yield from placement_swaps("squeezenet", *onnx, (1, 5, 20))


def _without_a_swap(sessions: Sessions) -> Iterator[tuple[Arm, Arm]]:
    """Pairs of recorded sessions of all arms, and traces with a fault that replaces nothing."""
    single = [arm({f"{name} {block}": sessions.recorded(block, name)}) for block in _BLOCKS for name in _ARMS]
    yield from itertools.permutations(single, 2)
    for name, fault in itertools.product(_TRACES, FAULTS):
        changed = fault.put_in(sessions.trace(name), 0.1)
        if changed is not None:
            yield arm({name: sessions.trace(name)}), arm({name: changed[0]})


def _onnx(lake: TraceLake | None) -> tuple[Tables, Tables] | None:
    """Two sessions of one model in a lake of this machine, where they were run."""
    if lake is None:
        return None
    live = [s for s in sorted(lake.sessions()) if s.endswith("-squeezenet")][:2]
    if len(live) < 2:
        return None
    first, second = ({name: lake.read(name, one).drop("session_id") for name in _READ} for one in live)
    return first, second


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lake", type=Path, help="keep the captures' sessions here")
    parser.add_argument("--onnx-lake", type=Path, help="a lake with two sessions of `aaco run --model squeezenet`")
    options = parser.parse_args(arguments)
    if not (SHARED / "gpu_sessions" / "sessions").is_dir():
        print(f"{SHARED}: no recorded sessions there; set AACO_SHARED")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        lake = options.lake or Path(scratch) / "lake"
        lake.mkdir(parents=True, exist_ok=True)
        sessions = Sessions(TraceLake(lake))
        onnx = _onnx(TraceLake(options.onnx_lake) if options.onnx_lake else None)
        started = time.process_time()
        claims: Mapping[str, Iterator[tuple[str, bool]]] = {
            "recorded arms": of_arms(sessions),
            "closure": of_closure(sessions),
            "faults": of_faults(sessions),
            "selection": of_swaps(sessions, onnx),
        }
        failed = 0
        for heading, found in claims.items():
            print(heading)
            for claim, holds in found:
                failed += not holds
                print(f"{'holds' if holds else 'FAILS'}: {claim}")
        print(f"{time.process_time() - started:.0f} s CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
