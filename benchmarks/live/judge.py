"""Judge the pipeline on the programs that `h200_programs.py` ran: records, class, resource, gain, tracing cost.

Every kernel, fill and copy must be there; class and resource must be as built; `saves_at_most` must bound the gain
measured without a profiler, within 25 % in three quarters of the programs. `--lake PATH` keeps the sessions.
"""

import argparse
import collections
import gzip
import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture
from benchmarks.live.programs.catalogue import SETS, TORCH, Program

Run = Mapping[str, Any]
_CONFIGS: Final = Path(__file__).parents[2] / "configs"
_BUSY: Final = 0.02
_ABOVE: Final = 1.25
_CLOSE_SHARE: Final = 0.75
#: Kernels that fill at least this part of a loop pace it.
_PACES: Final = 0.95
#: What `h200_programs.py` names the folders of recorded programs by.
RECORDED: Final = ("recorded", "recorded_fixed")
_ROOM: Final = 40
#: How torch.profiler names copies and fills, among kernels.
_COPY, _FILL = "Memcpy", "Memset"


@dataclass(frozen=True)
class Seen:
    """The pipeline's view of one traced run: names and counts of kernels in the loop, totals, and its answer."""

    names: collections.Counter[str]
    totals: Mapping[str, int]
    in_loop: Mapping[str, int]
    busy_ns: int
    kernels_ns: int
    loop_ns: int
    answer: Mapping[str, Any]
    idle: str


def taken_in(lake: TraceLake, folder: Path) -> list[str]:
    """The sessions of one capture folder, every stage of an answer done."""
    sessions = []
    for run in discover_runs(folder).runs:
        session = new_session_id()
        with lake.receive_raw(session) as raw:
            copy_capture(run, raw, folder.name)
        materialize(Session(lake, session, _CONFIGS))
        sessions.append(session)
    return sessions


def union_ns(spans: pl.DataFrame) -> int:
    """Time covered by at least one span (start_ns, end_ns)."""
    busy, until = 0, 0
    for start, end in spans.drop_nulls().sort("start_ns").iter_rows():
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def seen(lake: TraceLake, sessions: Sequence[str]) -> Seen:
    """Read the sessions of one traced run; the answer is the first one's."""
    totals: collections.Counter[str] = collections.Counter()
    in_loop: collections.Counter[str] = collections.Counter()
    names: collections.Counter[str] = collections.Counter()
    busy = kernels_ns = loop_ns = 0
    for session in sessions:
        kernels = lake.read("kernels", session).select("kernel_id", pl.col("name").cast(pl.String))
        dispatches = lake.read("dispatches", session).join(kernels, on="kernel_id", how="left")
        both = lake.read("memory_copies", session).with_columns(pl.col("direction").cast(pl.String))
        fills = both.filter(pl.col("direction") == "fill")
        copies = both.filter(pl.col("direction").is_null() | (pl.col("direction") != "fill"))
        rows = {"kernels": dispatches, "copies": copies, "fills": fills}
        allocations = lake.read("memory_allocations", session).filter(
            (pl.col("operation").cast(pl.String) == "allocation") & pl.col("device_id").is_not_null()
        )
        totals.update({name: table.height for name, table in rows.items()} | {"allocations": allocations.height})
        loops = lake.read("markers", session).filter(pl.col("name").cast(pl.String) == "loop")
        for process, start, end in loops.select("process_id", "start_ns", "end_ns").iter_rows():
            its_own = (pl.col("process_id") == process) & pl.col("start_ns").is_between(start, end)
            within = {name: table.filter(its_own) for name, table in rows.items()}
            in_loop.update({name: table.height for name, table in within.items()})
            names.update(within["kernels"].get_column("name").to_list())
            kernels_ns += int(within["kernels"].select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
            loop_ns = max(loop_ns, end - start)
            busy += union_ns(pl.concat([table.select("start_ns", "end_ns") for table in within.values()]))
    answer = lake.read("answers", sessions[0]).row(0, named=True)
    return Seen(names, totals, in_loop, busy, kernels_ns, loop_ns, answer, idle_shares(lake, sessions[0]))


def idle_shares(lake: TraceLake, session: str) -> str:
    """The shares of the answer's window, the largest first, as they are printed; parts behind a slash."""
    shares = lake.read("time_shares", session).filter(pl.col("share_ratio") >= 0.01)
    shares = shares.sort("share_ratio", descending=True)
    rows = shares.select(pl.col("share").cast(pl.String), pl.col("reason").cast(pl.String), "share_ratio").iter_rows()
    return ", ".join(f"{share}{'/' + reason if reason else ''} {ratio:.2f}" for share, reason, ratio in rows)


@dataclass
class Results:
    """Returned runs by program and way, and the captures' folder."""

    runs: Mapping[tuple[str, str], list[Run]]
    captures: Path

    def recording(self, program: Program, way: str) -> Path | None:
        """The folder that `aaco record` left of a program; None where there is none."""
        folder = self.captures / f"{program.name}-{way}"
        return folder if (folder / "capture.json").is_file() else None

    def loops(self, program: Program, way: str) -> list[int]:
        """The loops' times of all unprofiled runs that went well, in ns."""
        if way in RECORDED:
            folder = self.recording(program, way)
            return [] if folder is None else recorded_loops(folder)
        good = [one for one in self.runs.get((program.name, way), []) if one["status"] == 0 and one["said"]]
        return [one["said"]["loop_ns"] for one in good]

    def said(self, program: Program, way: str) -> Run | None:
        """Output of the first good run."""
        good = [one for one in self.runs.get((program.name, way), []) if one["status"] == 0 and one["said"]]
        return good[0]["said"] if good else None


def recorded_loops(folder: Path) -> list[int]:
    """Loop times that the unprofiled runs of a recording printed, in ns."""
    passes = json.loads((folder / "capture.json").read_text())["passes"]
    loops = []
    for one in passes:
        if one["kind"] == "run" and one["profiler"] is None:
            said = (folder / one["folder"] / "stdout_tail").read_text().splitlines()
            loops += [json.loads(line)["loop_ns"] for line in said if line.startswith("{")][:1]
    return loops


def results(folder: Path, scratch: Path) -> Results:
    """The runs and the unpacked captures of a folder that came back."""
    runs: dict[tuple[str, str], list[Run]] = collections.defaultdict(list)
    for line in (folder / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run.get("program"):
            runs[run["program"], run["way"]].append(run)
    for archive in sorted([*folder.glob("captures_*.tar"), *folder.glob("recorded_*.tar*")]):
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
    for path in scratch.rglob("*.cupti.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return Results(runs, scratch)


def complete(program: Program, own: Seen, said: Run | None, profiled: Run | None) -> tuple[bool | None, str]:
    """Claim 1 of one program, and what tells it; None without anything to compare with."""
    if program.language != TORCH:
        if said is None:
            return None, "the program said nothing"
        counted = {name: said[name] for name in ("kernels", "copies", "fills", "allocations")}
        told = ", ".join(f"{name} {own.totals[name]} of {count}" for name, count in counted.items() if count)
        return all(own.totals[name] == count for name, count in counted.items()), told
    if profiled is None:
        return None, "no run under torch.profiler"
    theirs = {name: count for name, (count, _) in profiled["names"].items()}
    kernels = {name: count for name, count in theirs.items() if not name.startswith((_COPY, _FILL))}
    copies = sum(count for name, count in theirs.items() if name.startswith(_COPY))
    fills = sum(count for name, count in theirs.items() if name.startswith(_FILL))
    their_ns = sum(time for name, (_, time) in profiled["names"].items() if name in kernels)
    apart = own.kernels_ns / their_ns - 1 if their_ns else float("inf")
    parts = (own.kernels_ns / own.loop_ns, their_ns / profiled["loop_ns"])
    paced = min(parts) >= _PACES
    apart = parts[0] / parts[1] - 1 if paced else apart
    busy = own.busy_ns / profiled["busy_ns"] - 1 if profiled["busy_ns"] else float("inf")
    counts = (own.in_loop["kernels"], own.in_loop["copies"], own.in_loop["fills"])
    expected = (sum(kernels.values()), copies, fills)
    same_names = dict(own.names) == kernels
    told = f"kernels, copies, fills {counts} of {expected}; names {'equal' if same_names else 'DIFFER'}; "
    told += f"kernels' {'part of the loop' if paced else 'time'} {100 * apart:+.2f} %, busy {100 * busy:+.2f} %"
    return counts == expected and same_names and abs(apart) <= _BUSY, told


def right(program: Program, answer: Mapping[str, Any]) -> bool:
    """Claim 2 of one program."""
    limit = answer["resource"]
    return answer["class"] in program.classes and (limit is None or not program.resources or limit in program.resources)


@dataclass(frozen=True)
class Gain:
    """Shares of the unprofiled loop: what the answer bounds, and what removing the cause gained (medians)."""

    bound: float | None
    gained: float
    #: Whether the bound is of iterations without a profiler or of traced ones, and how many loops of each way ran.
    of: str
    runs: tuple[int, int]

    @property
    def bounds(self) -> bool:
        return self.bound is not None and self.bound >= self.gained

    @property
    def is_close(self) -> bool:
        return self.bounds and self.bound is not None and self.bound <= _ABOVE * self.gained

    @property
    def verdict(self) -> str:
        """The bound beside the gain, in a word."""
        if self.bound is None:
            return "NONE"
        return "close" if self.is_close else "bounds" if self.bounds else "WRONG"


def gain(program: Program, answer: Mapping[str, Any], found: Results, ways: tuple[str, str]) -> Gain | None:
    """Cost of the cause in runs of two ways; None without runs of both."""
    plain, fixed = (found.loops(program, way) for way in ways)
    if not plain or not fixed:
        return None
    saves, window = answer["saves_unprofiled_ns"], answer["unprofiled_period_ns"]
    if saves is None:
        saves, window = answer["saves_at_most_ns"], answer["window_ns"]
    bound = saves / window if saves is not None and window else None
    of = "traced" if answer["saves_unprofiled_ns"] is None else "unprofiled"
    return Gain(bound, 1 - statistics.median(fixed) / statistics.median(plain), of, (len(plain), len(fixed)))


def cost(program: Program, own: Seen | None, found: Results, way: str) -> str:
    """The ratio of a way's loops to the unprofiled ones (medians), with the time that it adds to each launch."""
    plain, other = found.loops(program, "plain"), found.loops(program, way)
    if not plain or not other:
        return "–"
    base, slow = statistics.median(plain), statistics.median(other)
    kernels = own.in_loop["kernels"] if own else 0
    added = f", {(slow - base) / kernels / 1e3:+.2f} us" if kernels else ""
    return f"{slow / base:.3f}{added} (n={len(other)})"


def told(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}")
    lines = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def short(text: str | None) -> str:
    """A name as far as a table has room for it."""
    return "–" if text is None else text if len(text) <= _ROOM else text[: _ROOM - 1] + "…"


def word(verdict: bool | None) -> str:
    """A verdict as it is printed."""
    return {True: "right", False: "WRONG", None: "–"}[verdict]


def answered(lake: TraceLake, folder: Path) -> tuple[Mapping[str, Any], str]:
    """The answer's row of what lies in a folder, and its shares."""
    session = taken_in(lake, folder)[0]
    return lake.read("answers", session).row(0, named=True), idle_shares(lake, session)


def judge(lake: TraceLake, found: Results, programs: Sequence[Program]) -> bool:
    """Print every table; whether every claim holds."""
    records, answers, gains, costs = [], [], [], []
    verdicts: list[bool] = []
    judged_gains: list[Gain] = []
    for program in programs:
        folders = {way: found.captures / f"{program.name}-{way}" for way in ("traced", "traced_fixed")}
        recording = found.recording(program, RECORDED[0])
        told_by = None
        try:
            held = {way: seen(lake, taken_in(lake, one)) for way, one in folders.items() if one.is_dir()}
            told_by = None if recording is None else answered(lake, recording)
        except AacoError as error:
            print(f"{program.name}: {error}")
            held = {}
        own = held.get("traced")
        costs.append((program.name, *(cost(program, own, found, way) for way in ("traced", "profiled"))))
        if own is None:
            records.append((program.name, "no capture came back", word(False if recording is None else None)))
            verdicts += [False] if recording is None else []
        else:
            whole, what = complete(program, own, found.said(program, "traced"), found.said(program, "profiled"))
            records.append((program.name, what, word(whole)))
            verdicts += [] if whole is None else [whole]
        if told_by is None and own is not None:
            told_by = own.answer, own.idle
        if told_by is None:
            continue
        answer, shares = told_by
        is_right = right(program, answer)
        verdicts.append(is_right)
        after = held["traced_fixed"].answer["class"] if "traced_fixed" in held else "–"
        truth = " or ".join(program.classes) + (f" ({' or '.join(program.resources)})" if program.resources else "")
        beside = "–" if own is None else f"{(own.answer['window_ns'] or 0) / own.loop_ns:.2f}"
        said = (answer["class"], answer["resource"], short(answer["subject"]), beside)
        answers.append((program.name, truth, *said, shares, after, word(is_right)))
        one = gain(program, answer, found, ("plain", "fixed") if recording is None else RECORDED)
        if one is not None:
            bound = "none" if one.bound is None else f"{100 * one.bound:.1f} %"
            verdict = one.verdict if program.bounded else "–"
            runs = ", ".join(map(str, one.runs))
            gains.append((program.name, program.removed, bound, one.of, f"{100 * one.gained:.1f} %", runs, verdict))
            judged_gains += [one] if program.bounded else []
    told("Records", ("program", "in the tables, of what it counted or torch.profiler saw", ""), records)
    told(
        "Answers",
        ("program", "built as", "class", "resource", "subject", "window / loop", "shares", "with --fixed", ""),
        answers,
    )
    heads = ("program", "removed", "saves at most", "of loops", "gained", "runs", "")
    told("Counterfactuals (– where --fixed is not the change that saves_at_most bounds)", heads, gains)
    told("Cost over unprofiled, and for each launch", ("program", "traced", "torch.profiler"), costs)
    bounded, close = sum(one.bounds for one in judged_gains), sum(one.is_close for one in judged_gains)
    print(f"\n{sum(verdicts)} of {len(verdicts)} verdicts on records and answers right")
    print(f"saves_at_most bounds the gain in {bounded} of {len(judged_gains)} programs, within 25 % of it in {close}")
    enough = bool(judged_gains) and bounded == len(judged_gains) and close >= _CLOSE_SHARE * len(judged_gains)
    return bool(verdicts) and all(verdicts) and enough


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--lake", type=Path)
    parser.add_argument("--only", default="programs")
    asked = parser.parse_args()
    wanted = asked.only.split(",")
    programs = [one for name, some in SETS.items() for one in some if name in wanted or one.name in wanted]
    with tempfile.TemporaryDirectory() as scratch:
        found = results(asked.results, Path(scratch) / "captures")
        return 0 if judge(TraceLake(asked.lake or Path(scratch) / "lake"), found, programs) else 1


if __name__ == "__main__":
    sys.exit(main())
