"""Compare every counter-derived figure with ROCm Compute Profiler 3.3.0 on the same captures.

A figure is compared by mean, minimum and maximum, and dispatch by dispatch, to 1e-6. `DIFFERENCES` is the one list of
deliberate differences; exits with 1 for any other.
"""

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.roofline.counter_metrics import counted, metrics_of, work_of
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import Limits
from benchmarks.common import SHARED

TOLERANCE: Final = 1e-6
GIGA: Final = 1e9


@dataclass(frozen=True)
class Equivalent:
    """Our figure that equals one of theirs, and the factor by which theirs is multiplied to have its unit."""

    metric: str
    scale: float = 1.0


@dataclass(frozen=True)
class Difference:
    """A figure that differs on purpose: where, what they compute, why that is wrong, and ours over theirs if fixed."""

    figures: tuple[str, ...]
    captures: tuple[str, ...]
    theirs: str
    reason: str
    corrected: str
    factor: float | None = None
    ours_is_null: bool = False


@dataclass
class Coverage:
    """Coverage of the figures of one capture."""

    capture: str
    compared: int = 0
    equal: int = 0
    values: int = 0
    different: dict[str, str] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)
    not_reported: list[str] = field(default_factory=list)
    used: set[Difference] = field(default_factory=set)


_VCOPY_MI300: Final = ("vcopy/MI300A_A1", "vcopy/MI300X_A1")
_SEPARATE_LEVELS: Final = ("mixbench/MI200", "mixbench_SQ/MI200", "vcopy/MI100", "vcopy/MI200", *_VCOPY_MI300)
#: Every figure that is different on purpose. `docs/counters.md` tells the same at more length.
DIFFERENCES: Final = (
    Difference(
        ("2.1|Wavefront Occupancy", "7.2|Wavefront Occupancy"),
        _SEPARATE_LEVELS,
        "SQ_ACCUM_PREV_HIRES of one pass / GRBM_GUI_ACTIVE of another, per XCC",
        "two executions: on MI300X the counters' own pass was active 5.3 to 6.1 times as long as the level pass",
        "GRBM_GUI_ACTIVE of the pass that accumulated; achieved_occupancy_ratio divides by busy CU cycles instead",
    ),
    Difference(
        ("2.1|L2-Fabric Read BW", "roofline|ai_hbm"),
        ("vcopy/MI350",),
        "128*TCC_BUBBLE + 64*(TCC_EA0_RDREQ - TCC_BUBBLE - TCC_EA0_RDREQ_32B) + 32*TCC_EA0_RDREQ_32B",
        "TCC_BUBBLE stays zero on gfx950 while reads are of 128 bytes: 65,612 requests copied 8,388,608 bytes",
        "128*(TCC_EA0_RDREQ - TCC_EA0_RDREQ_32B) + 32*TCC_EA0_RDREQ_32B, flagged request_size_assumed",
        factor=2.0,
    ),
    Difference(
        ("17.2|Uncached Read Traffic",),
        ("mixbench/MI200", "vcopy/MI200", *_VCOPY_MI300, "vcopy/MI300X_A1_rocpd", "vcopy/MI350"),
        "TCC_EA_RD_UNCACHED_32B / TCC_EA_RDREQ",
        "the counter counts a request of 64 bytes as two: theirs reaches 195 % on mixbench's fill kernel",
        "32*TCC_EA_RD_UNCACHED_32B / bytes read",
    ),
    Difference(
        ("16.3|L1 Access Latency",),
        ("vcopy/MI350",),
        "TCP_TCP_LATENCY, a sum over all requests, under the name of a latency",
        "a sum of cycles grows with the kernel and is no latency",
        "TCP_TCP_LATENCY / TCP_TA_TCP_STATE_READ, as that tool does for every other architecture",
    ),
    Difference(
        (
            *("2.1|VALU IOPs", "11.1|VALU IOPs", "2.1|vL1D Cache BW", "2.1|L2 Cache BW", "2.1|L2-Fabric Read BW"),
            *("2.1|L2-Fabric Write BW", "2.1|sL1D Cache BW", "2.1|L1I BW", "16.3|Cache BW", "16.3|L1-L2 BW"),
            *("17.1|L2-Fabric Read BW", "17.1|L2-Fabric Write and Atomic BW", "17.2|Read BW"),
            *("17.2|Write and Atomic BW", "13.3|L1I-L2 Bandwidth", "14.3|sL1D-L2 BW", "17.3|Bandwidth"),
            "roofline|perf_gflops",
        ),
        _VCOPY_MI300,
        "work / (End_Timestamp - Start_Timestamp), which is infinite, and zero FLOP/s in its roofline",
        "a spreadsheet cut the times to 8.1097E+14, so start and end are the same: there is no duration",
        "null, flagged no_duration",
        ours_is_null=True,
    ),
    Difference(
        ("roofline|ai_hbm", "roofline|ai_l2", "roofline|ai_l1"),
        ("mixbench_SQ/MI200",),
        "zero",
        "no counter of memory was collected, so there are no bytes to divide by",
        "null, for its counters lack",
        ours_is_null=True,
    ),
    Difference(
        ("7.2|Kernel Time",),
        ("vcopy/MI300X_A1_rocpd",),
        "the median over counter passes",
        "each pass is another execution; a timeline is of one",
        "the duration of the first pass; the others' mean is counted_duration_ns",
    ),
    Difference(
        ("7.2|Kernel Time",),
        ("vcopy/MI350",),
        "the mean over counter passes, with its fraction of a nanosecond",
        "durations are whole nanoseconds",
        "the same mean, rounded: counted_duration_ns; the base trace's is null, for no pass was without counters",
    ),
    Difference(
        ("7.2|Kernel Time",),
        _VCOPY_MI300,
        "zero",
        "a spreadsheet cut the times to 8.1097E+14, so there is no duration",
        "null, flagged no_duration",
        ours_is_null=True,
    ),
)
#: Differences that no capture here shows, for all its kernels have zero there: figure, architectures, theirs, reason.
UNSEEN_DIFFERENCES: Final = (
    (
        "roofline|ai_l1",
        "gfx942, gfx950",
        "64 bytes per vL1D access",
        "lines are of 128 bytes; theirs is twice too high",
    ),
    (
        "roofline|ai_l2",
        "gfx942, gfx950",
        "64 bytes per L1-L2 read",
        "reads are of 128-byte lines; up to twice too high",
    ),
    ("11.3|FLOPs (Total)", "gfx942", "leaves out SQ_INSTS_VALU_MFMA_MOPS_XF32", "a GEMM in xf32 would have no FLOPs"),
)
#: Theirs that have no equal here, by table, and where the answer is instead.
NOT_REPORTED: Final[Mapping[str, str]] = {
    "2": "Active CUs: a guess from busy cycles; cu_busy_ratio is measured",
    "3": "the memory chart repeats other figures, rounded",
    "5": "gfx950's queues of the command processor",
    "6": "shares of shader engines and pipes, whose numbers `devices` does not hold",
    "7": "registers, sizes of grid, workgroup, LDS and scratch: in `kernels` and `dispatches`",
    "12": "shares of a peak: ceilings and bounds are the roofline's",
    "13": "shares of a peak: ceilings and bounds are the roofline's",
    "14": "shares of a peak: ceilings and bounds are the roofline's",
    "16": "shares of a peak: ceilings and bounds are the roofline's",
    "17": "shares of a peak: ceilings and bounds are the roofline's",
}
_ROOFLINE: Final = {
    "perf_gflops": Equivalent("flops_rate", GIGA),
    "ai_hbm": Equivalent("fabric_arithmetic_intensity"),
    "ai_l2": Equivalent("vl1d_to_l2_arithmetic_intensity"),
    "ai_l1": Equivalent("vl1d_arithmetic_intensity"),
}
_DURATION: Final = "7.2|Kernel Time"
_EQUIVALENTS: Final = Path(__file__).with_suffix(".csv")
_STATISTICS: Final = ("Avg", "Value", "Min", "Max", "Median")


def equivalents() -> dict[str, Equivalent]:
    """Our figure for each of theirs, by number of the table and name."""
    with _EQUIVALENTS.open(newline="", encoding="utf-8") as file:
        return {
            f"{row['table']}|{row['theirs']}": Equivalent(row["metric"], float(row["scale"]))
            for row in csv.DictReader(file)
        }


def folders(root: Path) -> list[Path]:
    """The captures below `root` that have figures of that tool, dispatch by dispatch."""
    return sorted(found.parent for found in root.glob("*/*/oracle_dispatches.csv"))


def read(folder: Path) -> dict[str, pl.DataFrame]:
    """The canonical tables of one capture."""
    parts = [part for run in discover_runs(folder).runs for part in run.parts]
    return dict(merge_parts([NamedReading(part.name, part.read(Limits())) for part in parts]).tables)


def of_dispatches(table: pl.DataFrame) -> pl.DataFrame:
    """The metrics of each dispatch: those of kernels of one dispatch each; what it does not give is left out."""
    found = metrics_of(table.with_columns(kernel_id="dispatch_id")).drop_nulls("value")
    return found.select("metric", "unit", "value", dispatch_id="kernel_id")


class Comparison:
    """Ours and theirs of one capture."""

    def __init__(self, folder: Path) -> None:
        self.coverage = Coverage(f"{folder.parent.name}/{folder.name}")
        self.equivalents = equivalents()
        self.oracle: dict[str, Any] = json.loads((folder / "oracle.json").read_text())
        with (folder / "oracle_dispatches.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))
        self.tables = read(folder)
        frames = (self.tables["counters"], self.tables["dispatches"], self.tables["devices"])
        table = counted(*frames)
        done = work_of(table).with_columns(elapsed=pl.coalesce("duration_ns", "counted_duration_ns"))
        self.durations: dict[int, int | None] = dict(done.select("dispatch_id", "elapsed").iter_rows())
        self.theirs_ns = self._column(_DURATION)
        self.checked = of_dispatches(table)
        every = of_dispatches(counted(*frames, check_clock=False))
        self.ours = {name: self._scaled(group) for (name,), group in every.partition_by("metric", as_dict=True).items()}
        self.of_kernels = metrics_of(table).join(
            self.tables["kernels"].select("kernel_id", "name"), on="kernel_id", how="left"
        )

    def run(self) -> Coverage:
        for theirs in self.oracle["metrics"]:
            table, name = ".".join(theirs["id"].split(".")[:2]), theirs["metric"]
            key = f"{table}|{name}"
            if key == _DURATION:
                self._judge(key, list(self._durations_compared()))
            elif key in self.equivalents:
                self._judge(key, list(self._values(key, theirs)))
            else:
                self.coverage.not_reported.append(key)
        for column, equivalent in _ROOFLINE.items():
            pairs = list(self._roofline(column, equivalent))
            if pairs:
                self._judge(f"roofline|{column}", pairs)
        return self.coverage

    def nulled_by_clock(self) -> int:
        """Count the figures of dispatches that are null because of their clock."""
        return sum(map(len, self.ours.values())) - self.checked.height

    def _scaled(self, group: pl.DataFrame) -> dict[int, float]:
        """Values by dispatch; rates as they would be over the duration that the tool took."""
        is_rate = group.get_column("unit")[0].endswith("/s")
        values: dict[int, float] = dict(group.select("dispatch_id", "value").iter_rows())
        if not is_rate:
            return values
        return {row: value * self._longer(row) for row, value in values.items()}

    def _longer(self, row: int) -> float:
        ours, theirs = self.durations.get(row), self.theirs_ns.get(row)
        return ours / theirs if ours and theirs else 1.0

    def _column(self, key: str) -> dict[int, float]:
        """The tool's values of one figure by dispatch."""
        for name in self.rows[0]:
            parts = name.split("|")
            if len(parts) > 2 and parts[2] in _STATISTICS and _key(name) == key:
                return {int(row["row"]): float(row[name]) for row in self.rows if row[name]}
        return {}

    def _durations_compared(self) -> Iterator[tuple[float | None, float]]:
        for row, theirs in self.theirs_ns.items():
            yield self.durations.get(row), theirs

    def _values(self, key: str, theirs: dict[str, Any]) -> Iterator[tuple[float | None, float]]:
        """Pairs of ours and theirs: over all dispatches, then dispatch by dispatch."""
        equivalent = self.equivalents[key]
        ours = self.ours.get(equivalent.metric, {})
        for statistic in _STATISTICS:
            if isinstance(theirs.get(statistic), (int, float)) or theirs.get(statistic) == "inf":
                yield _summary(statistic, list(ours.values())), float(theirs[statistic]) * equivalent.scale
        for row, value in self._column(key).items():
            yield ours.get(row), value * equivalent.scale

    def _roofline(self, column: str, equivalent: Equivalent) -> Iterator[tuple[float | None, float]]:
        ours = self.of_kernels.filter(pl.col("metric") == equivalent.metric)
        values: dict[str, float | None] = dict(ours.select("name", "value").iter_rows())
        for kernel in self.oracle.get("roofline_kernels", []):
            name = kernel["kernel"].removesuffix(" (.kd)").removesuffix(" [clone .kd]").removesuffix(".kd")
            yield values.get(name), float(kernel[column]) * equivalent.scale

    def _judge(self, key: str, pairs: list[tuple[float | None, float]]) -> None:
        judge(self.coverage, key, pairs)


def judge(coverage: Coverage, key: str, pairs: list[tuple[float | None, float]]) -> None:
    """Enter one figure, with all its pairs of ours and theirs, into the coverage."""
    coverage.compared += 1
    coverage.values += len(pairs)
    wrong = [(ours, theirs) for ours, theirs in pairs if not _equal(ours, theirs)]
    if not wrong:
        coverage.equal += 1
        return
    known = next((d for d in DIFFERENCES if key in d.figures and coverage.capture in d.captures), None)
    if known is not None and all(_as_said(known, *pair) for pair in wrong):
        coverage.used.add(known)
        coverage.different[key] = known.reason
    else:
        coverage.unexplained[key] = f"{len(wrong)} of {len(pairs)} values, such as {wrong[0]}"


def compared_with_formulas(folder: Path) -> Coverage:
    """For a capture that the tool cannot read: ours and what its formulas give, which `oracle.json` holds."""
    coverage = Coverage(f"{folder.parent.name}/{folder.name}")
    oracle = json.loads((folder / "oracle.json").read_text())
    tables = read(folder)
    table = counted(tables["counters"], tables["dispatches"], tables["devices"])
    done = work_of(table)
    if "read" in oracle:
        _by_dispatch(coverage, oracle, done, of_dispatches(table))
    else:
        _by_kernel(coverage, oracle["kernels"], done.join(tables["kernels"], on="kernel_id"))
    return coverage


def _by_dispatch(coverage: Coverage, oracle: Any, done: pl.DataFrame, found: pl.DataFrame) -> None:
    """Dispatches in order: bytes and their rate from one pass, derived counters from the other."""
    rate = pl.col("fabric_read_bytes") / pl.col("duration_ns")
    for name, ours in (("dur_ns", "duration_ns"), ("fetch_bytes", "fabric_read_bytes"), ("fetch_GBps", rate)):
        values = done.select(ours).to_series().to_list()
        judge(coverage, name, list(zip(values, [row[name] for row in oracle["read"]], strict=True)))
    for name, ours, scale in (
        ("Wavefronts", "wavefronts", 1.0),
        ("L2CacheHit", "l2_hit_ratio_derived", 0.01),
        ("MemUnitBusy", "memory_unit_busy_ratio_derived", 0.01),
        ("WriteUnitStalled", "write_unit_stalled_ratio_derived", 0.01),
        ("LDSBankConflict", "lds_bank_conflict_of_time_ratio_derived", 0.01),
        ("OccupancyPercent", "occupancy_ratio_derived", 0.01),
    ):
        values = found.filter(pl.col("metric") == ours).get_column("value").to_list()
        judge(coverage, name, list(zip(values, [row[name] * scale for row in oracle["stall"]], strict=True)))


def _by_kernel(coverage: Coverage, kernels: list[dict[str, Any]], done: pl.DataFrame) -> None:
    """Medians of kernels, whose counters and times come from two runs."""
    for name, ours in (
        ("fetch_bytes_med", "fabric_read_bytes"),
        ("write_bytes_med", "fabric_write_bytes"),
        ("dur_ns_med", "duration_ns"),
    ):
        medians: dict[str, float] = dict(done.group_by("name").agg(pl.col(ours).cast(pl.Float64).median()).iter_rows())
        pairs = [(medians.get(row["kernel"].removesuffix(".kd")), float(row[name])) for row in kernels]
        judge(coverage, name, pairs)
    coverage.not_reported += ["L1_bytes", "L2_read_bytes"]


def _key(column: str) -> str:
    number, name = column.split("|")[:2]
    return ".".join(number.split(".")[:2]) + "|" + name


def _summary(statistic: str, values: list[float]) -> float | None:
    if not values:
        return None
    series = pl.Series(values)
    found = {"Min": series.min, "Max": series.max, "Median": series.median}.get(statistic, series.mean)()
    return float(found) if isinstance(found, (int, float)) else None


def _equal(ours: float | None, theirs: float) -> bool:
    return ours is not None and math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=1e-12)


def _as_said(known: Difference, ours: float | None, theirs: float) -> bool:
    """Return whether a difference is of the kind that its description says."""
    if known.ours_is_null or ours is None:
        return known.ours_is_null and ours is None
    return known.factor is None or math.isclose(ours, known.factor * theirs, rel_tol=TOLERANCE)


def line(found: Coverage, nulled: int) -> str:
    """The coverage of one capture as a line of the printed table."""
    numbers = (found.compared, found.equal, len(found.different), len(found.unexplained), len(found.not_reported))
    return f"{found.capture:24}" + "".join(f"{number:14}" for number in (*numbers, found.values, nulled))


def main() -> int:
    """Print the coverage; 1 if a difference has no explanation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SHARED / "counters", help="captures")
    root = parser.parse_args().folder
    heads = ("compared", "equal", "different", "unexplained", "not reported", "values", "null by clock")
    print(f"{'capture':24}" + "".join(f"{head:>14}" for head in heads))
    coverages = []
    for folder in folders(root):
        comparison = Comparison(folder)
        coverages.append(comparison.run())
        print(line(coverages[-1], comparison.nulled_by_clock()))
    for oracle in sorted(root.glob("*/*/oracle.json")):
        if not (oracle.parent / "oracle_dispatches.csv").exists():
            coverages.append(compared_with_formulas(oracle.parent))
            print(line(coverages[-1], 0))
    for found in coverages:
        for key, reason in {**found.different, **found.unexplained}.items():
            print(f"{found.capture} {key}: {reason}")
    for folder in folders(root):
        print(_timed(folder))
    return 1 if any(found.unexplained for found in coverages) else 0


def _timed(folder: Path) -> str:
    """CPU seconds of reading a capture, of its work and of its figures, all modules being loaded."""
    steps = [time.process_time()]
    tables = read(folder)
    frames = (tables["counters"], tables["dispatches"], tables["devices"])
    steps.append(time.process_time())
    table = counted(*frames)
    steps.append(time.process_time())
    metrics_of(table)
    steps.append(time.process_time())
    took = "  ".join(
        f"{name} {b - a:.3f}" for name, (a, b) in zip(("read", "work", "figures"), pairwise(steps), strict=True)
    )
    return f"{folder.parent.name + '/' + folder.name:24} {tables['counters'].height:8} counters; CPU seconds: {took}"


if __name__ == "__main__":
    sys.exit(main())
