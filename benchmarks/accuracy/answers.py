"""Compare our answer on every shared capture with an expert's, then withhold evidence and compare again.

Without host calls, shapes, counters or markers a class may only become `unknown` or `incomplete`. `--lake` keeps and
reuses sessions; `--compare` and `--abstain` run one half each. Exits with 1 when a figure or class is wrong.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml

from aaco_pipeline.assets.stage import Session, materialize, stages
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.session.document import session_summary
from aaco_pipeline.report.session.sentences import answer
from aaco_pipeline.resources.ingestion import copy_capture
from benchmarks.common import CONFIGS, SHARED

Entry = Mapping[str, Any]
#: How far a share of the kernels' time, a rate, and a share of a window or of a roof may be from the expert's.
_FAMILY: Final = 0.04
_RATE: Final = 0.03
_RATIO: Final = 0.02
#: Classes that claim nothing.
WEAKER: Final = ("unknown", "incomplete")
#: What is taken out, by the tables that hold it; the iterations of a capture come from its markers.
EVIDENCE: Final[Mapping[str, tuple[str, ...]]] = {
    "host calls": ("api_calls", "synchronizations"),
    "shapes": ("operator_inputs",),
    "counters": ("counters",),
    "markers": ("markers", "iterations", "iteration_blocks"),
}
#: Stages that read the capture itself.
_FIRST: Final = ("capture", "session_environment", "inference_run", "telemetry", "kernel_trace")
_KNOWN: Final = "captures.json"
#: Kinds of work by the names that the expert gave them.
_KINDS: Final[Mapping[str, str]] = {"rmsnorm": "normalization", "elementwise": "elementwise_and_copies"}


@dataclass(frozen=True)
class Compared:
    """One stated figure and ours."""

    key: str
    stated: object
    found: object
    right: bool


def judged(lake: TraceLake, capture: Path) -> str:
    """The session of the first run at `capture`, with all stages that an answer needs; taken in once for a lake."""
    known = lake.path / _KNOWN
    sessions: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
    if str(capture) not in sessions:
        run = discover_runs(capture).runs[0]
        session = new_session_id()
        with lake.receive_raw(session) as folder:
            copy_capture(run, folder, capture.name)
        materialize(Session(lake, session, CONFIGS))
        sessions[str(capture)] = session
        known.write_text(json.dumps(sessions, indent=1))
    return sessions[str(capture)]


def compared(lake: TraceLake, session: str, entry: Entry) -> list[Compared]:
    """Every figure that the entry states beside ours."""
    row = lake.read("answers", session).row(0, named=True)
    told = answer(session_summary(lake, session))
    found: list[Compared] = []

    def of(key: str, stated: object, ours: object, right: bool) -> None:
        found.append(Compared(key, stated, ours, right))

    if "class" in entry:
        of("class", " or ".join(entry["class"]), row["class"], row["class"] in entry["class"])
    for never in entry.get("never", ()):
        said = never in (row["class"], row["second_class"]) or (" " in never and never in told.lower())
        of("never", never, never if said else "not said", not said)
    if "resource" in entry:
        of("resource", " or ".join(entry["resource"]), row["resource"], row["resource"] in entry["resource"])
    devices = lake.read("devices", session)
    for key in ("arch", "product"):
        if key in entry:
            ours = sorted(set(devices.get_column(key).drop_nulls()))
            of(key, entry[key], ", ".join(ours), any(one.startswith(entry[key]) for one in ours))
    if "busy" in entry:
        whole = lake.read("timeline", session).filter(pl.col("window_rule").cast(pl.String) == "first_to_last_activity")
        ours = whole.sort("busy_ns").get_column("active_ratio").to_list()
        of("busy", entry["busy"], ours[-1], any(abs(one - entry["busy"]) < _RATIO / 10 for one in ours))
    kinds = dict(lake.read("kinds_of_work", session).select(pl.col("kind").cast(pl.String), "share_ratio").iter_rows())
    for key in ("families", "families_without_communication"):
        for family, share in entry.get(key, {}).items():
            ours = kinds.get(_KINDS.get(family, family), 0.0)
            of(f"family {family}", share, round(ours, 3), abs(ours - share) <= _FAMILY)
    for rate in entry.get("rates", ()):
        found += _rate(lake, session, rate)
    if "exposed_communication_ms" in entry:
        shares = lake.read("time_shares", session).filter(pl.col("reason").is_null())
        exposed = shares.filter(pl.col("share").cast(pl.String) == "communication").get_column("time_ns")
        length, stated = int(exposed.sum()) / 1e6, entry["exposed_communication_ms"]
        of("exposed communication, ms", stated, round(length, 2), abs(length - stated) <= _RATE * stated)
    if "steady" in entry:
        found += _steady(lake, session, entry["steady"], row)
    return found


def weakened(lake: TraceLake, session: str) -> Iterator[tuple[str, str, str, bool]]:
    """Per kind of evidence that there is: its name, the class with it, the class without it, whether that is allowed.

    The session's tables are as before afterwards, but for the stages after those that read the capture.
    """
    before = lake.read("answers", session).item(0, "class")
    for evidence, names in EVIDENCE.items():
        held = {name: lake.read(name, session) for name in names if name in _tables(lake, session)}
        if all(frame.is_empty() for frame in held.values()):
            continue
        published = {
            stage: {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage(stage)}
            for stage in _FIRST
            if set(names) & set(stages()[stage].publishes)
        }
        for stage, own in published.items():
            cut = {name: frame.clear() if name in names else frame for name, frame in own.items()}
            lake.publish(session, stage, cut)
        again = [name for name in stages() if name not in _FIRST]
        materialize(Session(lake, session, CONFIGS), again)
        after = lake.read("answers", session).item(0, "class")
        for stage, own in published.items():
            lake.publish(session, stage, own)
        yield evidence, before, after, after == before or after in WEAKER


# ---- inside ----------------------------------------------------------------------------------------------------------


def _tables(lake: TraceLake, session: str) -> set[str]:
    return {entry.table for stage in _FIRST for entry in lake.manifest(session).of_stage(stage)}


def _rate(lake: TraceLake, session: str, rate: Entry) -> list[Compared]:
    """The shape of the stated work and number of calls; an operator may be named by the one that called it."""
    shapes = lake.read("operator_shapes", session).drop_nulls(["flops", "achieved_flops_per_s"])
    work = rate["gflop_per_call"] * 1e9
    own = shapes.filter(
        (pl.col("call_count") == rate["calls"]) & ((pl.col("flops") - work).abs() <= _RATE * work)
    ).sort("kernel_ns", descending=True)
    if own.is_empty():
        return [Compared(f"rate of {rate['op']}", rate["tflops"], None, False)]
    ours = own.item(0, "achieved_flops_per_s") / 1e12
    found = [
        Compared(
            f"TFLOP/s of {rate['op']}",
            rate["tflops"],
            round(ours, 1),
            abs(ours - rate["tflops"]) <= _RATE * rate["tflops"],
        )
    ]
    if "share" in rate:
        # The expert's share is of the published peak; ours in the paragraph may be of what is reported to be reached.
        published = lake.read("ceilings", session).filter(
            (pl.col("resource").cast(pl.String) == str(own.item(0, "bound")))
            & pl.col("dtype").cast(pl.String).eq_missing(pl.lit(own.item(0, "dtype"), pl.String))
            & (pl.col("source").cast(pl.String) == "spec")
        )
        share = ours * 1e12 / published.item(0, "value") if published.height else None
        near = share is not None and abs(share - rate["share"]) <= _RATIO
        found.append(Compared(f"roof of {rate['op']}", rate["share"], share and round(share, 3), near))
    return found


def _steady(lake: TraceLake, session: str, steady: Entry, row: Entry) -> list[Compared]:
    parts = lake.read("session_parts", session).filter(
        (pl.col("device_id") == row["device_id"]) & (pl.col("part").cast(pl.String) == "interruption")
    )
    length = int((parts.get_column("end_ns") - parts.get_column("start_ns")).sum()) / 1e6
    busy, stated = row["busy_ratio"] or 0.0, steady["interruption_ms"]
    return [
        Compared("repetitions", steady["repetitions"], row["repetitions"], row["repetitions"] == steady["repetitions"]),
        Compared(
            "busy without the interruption",
            steady["busy_without_the_interruption"],
            round(busy, 3),
            abs(busy - steady["busy_without_the_interruption"]) <= _RATIO,
        ),
        Compared("interruptions", steady["interruptions"], parts.height, parts.height == steady["interruptions"]),
        Compared("interruption, ms", stated, round(length, 2), abs(length - stated) <= _RATE * stated),
    ]


def _compare(lake: TraceLake, entries: Mapping[Path, Entry]) -> tuple[int, int]:
    rows, wrong, total = [], 0, 0
    for capture, entry in entries.items():
        session = judged(lake, capture)
        print(f"\n{capture}\n  ours:   {answer(session_summary(lake, session))}")
        if "say" in entry:
            print(f"  expert: {entry['say'].strip()}", flush=True)
        for one in compared(lake, session, entry):
            total, wrong = total + 1, wrong + (not one.right)
            rows.append((capture.name, one.key, str(one.stated), str(one.found), "" if one.right else "WRONG"))
    print(pl.DataFrame(rows, schema=("capture", "what", "stated", "ours", "verdict"), orient="row"))
    print(f"{total - wrong} of {total} statements right")
    return wrong, total


def _abstain(lake: TraceLake, captures: list[Path]) -> int:
    rows, wrong = [], 0
    for capture in captures:
        for evidence, before, after, allowed in weakened(lake, judged(lake, capture)):
            wrong += not allowed
            rows.append((capture.name, evidence, before, after, "" if allowed else "WRONG"))
    print(pl.DataFrame(rows, schema=("capture", "without", "class", "then", "verdict"), orient="row"))
    print(f"{len(rows) - wrong} of {len(rows)} answers only weaker without evidence")
    return wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("captures", nargs="*", type=Path, help="further captures, printed and not compared")
    arguments.add_argument("--lake", type=Path, help="keep the sessions there, and go on with those that are there")
    arguments.add_argument("--only", help="captures whose path has this in it")
    part = arguments.add_mutually_exclusive_group()
    part.add_argument("--compare", action="store_true", help="compare only")
    part.add_argument("--abstain", action="store_true", help="take evidence away only")
    given = arguments.parse_args()
    listed = SHARED / "answers" / "answers.yaml"
    if not listed.is_file():
        print(f"{listed}: not there; set AACO_SHARED")
        return 2
    stated = {SHARED / one["capture"]: one for one in yaml.safe_load(listed.read_text(encoding="utf-8"))}
    entries: dict[Path, Entry] = {
        path: one for path, one in stated.items() if given.only is None or given.only in str(path)
    } | {path: {} for path in given.captures}
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch, pl.Config(tbl_rows=-1, tbl_width_chars=150, fmt_str_lengths=60):
        lake = TraceLake(given.lake or Path(scratch) / "lake")
        if not given.abstain:
            wrong += _compare(lake, entries)[0]
        if not given.compare:
            wrong += _abstain(lake, list(entries))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
