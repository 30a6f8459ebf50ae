"""CPU and peak memory of the commands beside 1,000 and 10,000 sessions, with the growth exponent.

    python -m benchmarks.performance.lake_growth --lake FOLDER/lake_1000 --lake FOLDER/lake_10000 [--compact]

Units are `import dagster`, run in turn; cold is without this host's cache of the lake. `--before PATH` runs another
checkout in the same turns. Exits with 1 when a budget is exceeded.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Final

#: Not from `benchmarks.common`: the publishing child also runs with another checkout on its path.
ROOT: Final = Path(__file__).resolve().parents[2]
MOST_MB: Final = 400.0
MOST_EXPONENT: Final = 0.1
_FURTHER: Final = 100_000
_PLACE: Final = 50
_PUBLICATIONS: Final = 5
_UNIT: Final = ("-P", "-c", "import dagster")
_COMMAND: Final = ("-P", "-c", "import sys; from aaco_pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))")
_HISTORY: Final = "SELECT name, count(*) AS n, median(mean_ns) AS ns FROM kernel_history GROUP BY name ORDER BY name"
_ONE_SESSION: Final = "SELECT count(*) AS n, sum(end_ns - start_ns) AS ns FROM dispatches WHERE session_id = '{}'"


@dataclass(frozen=True)
class Case:
    """A command, its budget in units beside the largest lake, and whether its growth has one, too.

    `{}` in the arguments is a session's id. A cold one begins without a cache, a rare one takes fewer turns, as it is
    long. Where `says_cpu`, the CPU seconds are what the process says in its last line.
    """

    name: str
    arguments: tuple[str, ...]
    budget: float | None = None
    is_flat: bool = False
    is_cold: bool = False
    is_rare: bool = False
    says_cpu: bool = False


CASES: Final = (
    Case("ls", ("ls",), 1.0),
    Case("ls --json", ("ls", "--json")),
    Case("ls -n 20", ("ls", "-n", "20")),
    Case("show ID", ("show", "{}"), 0.8, is_flat=True),
    Case("show latest", ("show", "latest"), 0.8, is_flat=True),
    Case("sql, one session", ("sql", _ONE_SESSION), 0.8, is_flat=True),
    Case("sql, kernel_history grouped", ("sql", _HISTORY), 1.2),
    Case("sql, kernel_history to Parquet", ("sql", "SELECT * FROM kernel_history", "--format", "parquet")),
    Case("tables", ("tables",)),
    Case("publishing, in a warm process", ("publish",), 0.3, says_cpu=True),
    Case("publishing, the whole process", ("publish",)),
    Case("ls, cold", ("ls",), is_cold=True, is_rare=True),
    Case("show ID, cold", ("show", "{}"), is_cold=True, is_rare=True),
    Case("sql, kernel_history grouped, cold", ("sql", _HISTORY), is_cold=True, is_rare=True),
    Case("doctor", ("doctor",), 20.0, is_rare=True),
)
_COMPACT: Final = Case("compact", ("compact",), is_rare=True)


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a process and its children, and the most that one of them held in memory, in MB."""

    cpu: float
    peak: float
    said: str = ""


@dataclass
class Row:
    """The costs of one case in one checkout, by the lake's number of sessions."""

    case: Case
    checkout: str
    costs: dict[int, list[Cost]] = field(default_factory=dict)

    def cpu(self, sessions: int) -> float:
        return statistics.median(cost.cpu for cost in self.costs[sessions])

    def peak(self, sessions: int) -> float:
        return max(cost.peak for cost in self.costs[sessions])


def process(arguments: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run Python once, to its end. RuntimeError when it fails with anything but what `doctor` found."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
        child = subprocess.Popen(
            [sys.executable, *arguments], cwd=tempfile.gettempdir(), env={**os.environ, **environment},
            stdin=subprocess.DEVNULL, stdout=out, stderr=told,
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        told.seek(0)
        if child.returncode != 0:
            error = told.read().decode(errors="replace").strip()
            raise RuntimeError(f"{' '.join(arguments[3:])} ended with {child.returncode}: {error[-2000:]}")
        out.seek(max(0, out.seek(0, os.SEEK_END) - 200))
        last = out.read().decode(errors="replace").splitlines()
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, last[-1] if last else "")


def measured(case: Case, lake: Path, checkout: Path, cache: Path) -> Cost:
    """One cost of a case on a lake."""
    if case.is_cold:
        cache = cache.with_name(f"{cache.name}-cold")  # what others have warmed stays
        shutil.rmtree(cache, ignore_errors=True)
    environment = {
        **{"AACO_LAKE": str(lake), "DAGSTER_HOME": str(lake / ".dagster_home"), "PYTHONPATH": str(checkout)},
        **{"AACO_CACHE": str(cache)},
    }
    session = _sessions(lake)[_PLACE]
    if case.arguments == ("publish",):
        arguments: tuple[str, ...] = ("-P", __file__, "--publish", session, "--lake", str(lake))
    else:
        arguments = (*_COMMAND, *(one.replace("{}", session) for one in case.arguments))
    cost = process(arguments, environment)
    return Cost(float(cost.said), cost.peak) if case.says_cpu else cost


def publish(lake: Path, session: str) -> float:
    """CPU seconds of publishing a session once more: the median of several, after one that warms. They are removed."""
    from aaco_pipeline.lake.store import TraceLake

    opened = TraceLake(lake)
    manifest = opened.manifest(session)
    stages = sorted({entry.stage for entry in manifest.entries}, key=manifest.expected.index)
    tables = {
        stage: {one.table: opened.read_entry(one).drop("session_id") for one in manifest.of_stage(stage)}
        for stage in stages
    }
    spent = []
    for _ in range(_PUBLICATIONS + 1):
        began = process_time()
        new = opened.new_session("one-more")
        opened.expect(new, stages)
        for stage in stages:
            opened.publish(new, stage, tables[stage])
        spent.append(process_time() - began)
        opened.remove(new)
    return statistics.median(spent[1:])


def measure(
    lakes: Mapping[int, Path], checkouts: Mapping[str, Path], cases: Sequence[Case], repeats: int
) -> tuple[float, list[Row]]:
    """The unit in seconds and all rows; whatever is compared is measured turn by turn."""
    rows = [Row(case, name) for case in cases for name in checkouts if not (case.is_cold and name != "this")]
    units = []
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(repeats + 1):
            for row in rows:
                if row.case.is_rare and turn > max(1, repeats // 3):
                    continue
                for sessions, lake in lakes.items():
                    cache = Path(scratch, f"{row.checkout}-{sessions}")
                    cost = measured(row.case, lake, checkouts[row.checkout], cache)
                    if turn or row.case.is_rare:  # the first one warms
                        row.costs.setdefault(sessions, []).append(cost)
                units.append(process(_UNIT, {}).cpu)
            print(f"turn {turn} of {repeats} done", file=sys.stderr, flush=True)
    return statistics.median(units), rows


def compacted(lakes: Mapping[int, Path], checkout: Path) -> Row:
    """Cost of compacting each lake: the first time, then with nothing left to do."""
    row = Row(_COMPACT, "this")
    with tempfile.TemporaryDirectory() as cache:
        for sessions, lake in lakes.items():
            row.costs[sessions] = [measured(_COMPACT, lake, checkout, Path(cache))]
    return row


def exponent(row: Row) -> float:
    """Exponent of growth from the smallest lake to the largest: 0 for none, 1 for growth with the sessions."""
    few, many = min(row.costs), max(row.costs)
    return math.log(row.cpu(many) / row.cpu(few)) / math.log(many / few) if many > few else math.nan


def further(row: Row, sessions: int) -> tuple[float, float]:
    """CPU seconds by the straight line through smallest and largest lake, and how far off it is between, as a share."""
    few, many = min(row.costs), max(row.costs)
    slope = (row.cpu(many) - row.cpu(few)) / (many - few)
    line = {size: row.cpu(few) + slope * (size - few) for size in (*row.costs, sessions)}
    off = max((abs(line[size] / row.cpu(size) - 1) for size in row.costs if size not in (few, many)), default=math.nan)
    return line[sessions], off


def missed(row: Row, unit: float) -> list[str]:
    """The promises of this checkout that do not hold, in words."""
    if row.checkout != "this":
        return []
    many = max(row.costs)
    units, peak, growth = row.cpu(many) / unit, row.peak(many), exponent(row)
    said = []
    if row.case.budget is not None and units > row.case.budget:
        said.append(f"{row.case.name}: {units:.2f} units of CPU, at most {row.case.budget:g}")
    if peak > MOST_MB:
        said.append(f"{row.case.name}: {peak:.0f} MB, at most {MOST_MB:.0f}")
    if row.case.is_flat and growth > MOST_EXPONENT:
        said.append(f"{row.case.name}: grows with exponent {growth:.2f}, at most {MOST_EXPONENT:g}")
    return said


def print_table(unit: float, rows: Sequence[Row], lakes: Mapping[int, Path]) -> None:
    heads = [f"{size:,}" for size in lakes]
    line: Callable[..., str] = ("{:<34}" + "{:>10}" * len(heads) + "{:>8}{:>9}{:>9}{:>12}{:>8}").format
    print(f"unit: python -c 'import dagster', {unit:.3f} s CPU")
    print(line("units of CPU", *heads, "budget", "MB", "exponent", f"{_FURTHER:,}", "off by"))
    for row in rows:
        most = max(row.costs)
        cells = [f"{row.cpu(size) / unit:.2f}" for size in lakes]
        budget = "–" if row.case.budget is None else f"{row.case.budget:g}"
        seconds, off = further(row, _FURTHER) if len(row.costs) > 1 else (math.nan, math.nan)
        name = row.case.name if row.checkout == "this" else f"  before: {row.case.name}"[:33]
        ends = [f"{row.peak(most):.0f}", f"{exponent(row):.2f}", f"{seconds / unit:.2f}", f"{off:.0%}"]
        print(line(name, *cells, budget, *("–" if cell.startswith("nan") else cell for cell in ends)))


def _sessions(lake: Path) -> list[str]:
    return sorted(path.stem for path in (lake / "manifests").glob("2*.json"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and what is not met; 1 when anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lake", type=Path, action="append", required=True, help="a lake; several times")
    parser.add_argument("--compact", action="store_true", help="compact the lakes first")
    parser.add_argument("--before", type=Path, help="another checkout, run beside this one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--publish", metavar="SESSION", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.publish:
        print(publish(options.lake[0], options.publish))
        return 0
    lakes = {len(_sessions(lake)): lake.resolve() for lake in options.lake}
    lakes = dict(sorted(lakes.items()))
    if not lakes or min(lakes) <= _PLACE:
        parser.error(f"{options.lake[0]}: a lake of more than {_PLACE} sessions is needed")
    checkouts = {"this": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    first = [compacted(lakes, ROOT)] if options.compact else []
    unit, rows = measure(lakes, checkouts, [case for case in CASES if options.only in case.name], options.repeats)
    print_table(unit, [*first, *rows], lakes)
    broken = [said for row in (*first, *rows) for said in missed(row, unit)]
    print("\n".join(f"NOT MET: {said}" for said in broken) or "all met")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
