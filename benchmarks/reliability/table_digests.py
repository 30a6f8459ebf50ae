"""Digests of every table of over sixty sessions, to compare what two checkouts publish from the same inputs.

    python -m benchmarks.reliability.table_digests prepare INPUTS --tree BEFORE
    python -m benchmarks.reliability.table_digests make INPUTS LAKE --tree AFTER --output after.json
    python -m benchmarks.reliability.table_digests compare before.json after.json
    python -m benchmarks.reliability.table_digests read LAKE --before BEFORE --after AFTER

`prepare` copies captures, records programs and measures models once; further raw folders may be added to INPUTS/raw.
`make` replays or ingests them with `TREE/.venv/bin/aaco`. A digest covers values in published order, columns by name.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks.common import SHARED

LEAST_SESSIONS: Final = 60
#: Each of these, below the shared folder, is one input. Of the forty sessions measured on an H200 the first two blocks.
SINGLE: Final = (
    *("captures/*/", "counters/*/*/", "field_cases/*/*/", "kineto/*.json.gz", "gpu_sessions/traces/*.json.gz"),
    "gpu_sessions/sessions/b0[01]_*.trace.json.gz",
)
MODELS: Final = (
    ("squeezenet", "--iterations", "10"),
    ("squeezenet", "--iterations", "10", "--threads", "2", "--kernel-plane"),
    ("control_flow", "--iterations", "10"),
    ("gpt_tiny", "--iterations", "3", "--prompt", "8", "--tokens", "4"),
)
_MARKED: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from aaco_pipeline.mark import iteration, phase
for turn in range(30):
    with iteration(), phase("even" if turn % 2 == 0 else "odd"):
        sum(range(20_000))
"""
#: Sessions of a latency pass alone.
COMPARED: Final = ("--sessions", "2", "--traced", "0", "--seed", "1")
_ARM: Final = "control_flow --iterations 5 --warmup 1"
PROGRAMS: Final = {
    "marked": (sys.executable, "-c", _MARKED, "{tree}"),
    "pipeline": ("sh", "-c", "seq 200000 | sort -r | tail -1"),
    "sleeps": ("sleep", "0.2"),
    "fails": ("sh", "-c", "echo begun; exit 3"),
}
#: Stages whose file is a view, made when asked: a session is whole without them, and their evidence is of that file.
VIEWS: Final = ("perfetto_trace", "report")
#: What a session is given anew each time, and so is replaced or left out.
MINTED: Final = {
    "session_id": "the column is the session's name, minted when it is taken in: left out",
    "any text with a session's id": "the id is replaced by the session's label",
}
_ROWS_AT_ONCE: Final = 50_000
_QUERIES: Final = (
    *("latest_sessions", "sessions", "answers", "bottlenecks", "timeline", "kernel_stats", "session_metrics"),
    *("evidence", "critical_path_summary", "roofline", "iterations", "verdicts", "attributions"),
)


def aaco(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a checkout."""
    command = [str(tree / ".venv" / "bin" / "aaco"), *arguments]
    without = {name: value for name, value in os.environ.items() if name not in ("AACO_LAKE", "DAGSTER_HOME")}
    return subprocess.run(command, env=without, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def required(tree: Path, *arguments: str) -> str:
    """Run the command and return its output. RuntimeError when it fails."""
    done = aaco(tree, *arguments)
    if done.returncode:
        raise RuntimeError(f"aaco {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def prepare(inputs: Path, tree: Path) -> None:
    """Write the inputs: `captures/` of one folder or file an input, and `raw/` of measured sessions."""
    captures = inputs / "captures"
    captures.mkdir(parents=True)
    for pattern in SINGLE:
        for source in sorted(SHARED.glob(pattern)):
            target = captures / source.relative_to(SHARED).as_posix().replace("/", "__")
            shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
    for name, program in PROGRAMS.items():
        words = [word.format(tree=tree) if word == "{tree}" else word for word in program]
        told = ("record", "--no-output", "--runs", "3", "--trace", "off", "--workload", name)
        aaco(tree, *told, "--output", str(captures / f"program__{name}"), "--", *words)
        if not (captures / f"program__{name}").is_dir():
            raise RuntimeError(f"{name}: nothing was recorded")
    with tempfile.TemporaryDirectory(dir=inputs) as folder:
        for model, *options in MODELS:
            required(tree, "run", "--lake", folder, "--model", model, *options)
        required(tree, "compare", "--lake", folder, *COMPARED, "--baseline", _ARM, "--candidate", f"{_ARM} --threads 2")
        shutil.move(Path(folder) / "raw", inputs / "raw")


def make(inputs: Path, lake: Path, tree: Path) -> dict[str, Any]:
    """Fill a new lake with the inputs by the command of `tree`; digests by label, table and stage, and refusals."""
    lake.mkdir(parents=True)
    labels, refused = {}, {}
    if (inputs / "raw").is_dir():
        shutil.copytree(inputs / "raw", lake / "raw")
        labels = {one.name.removeprefix("session_id="): _replayed(one.name) for one in (lake / "raw").iterdir()}
        required(tree, "doctor", "--mend", "--lake", str(lake))
    for source in sorted((inputs / "captures").iterdir()):
        done = aaco(tree, "ingest", str(source), "--lake", str(lake), "--json")
        for run in json.loads(done.stdout or "[]"):
            if run["session_id"] is not None:
                label = _label(Path(run["folder"]), source)
                same = sum(one.partition("#")[0] == label for one in labels.values())
                labels[run["session_id"]] = f"{label}#{same + 1}" if same else label
        if done.returncode:
            refused[source.name] = [done.returncode, done.stderr.strip()]
        print(f"{len(labels):3} sessions after {source.name}: exit {done.returncode}", flush=True)
    sessions = {label: dict(_digests(lake, session, labels)) for session, label in sorted(labels.items())}
    return {"minted": MINTED, "views": VIEWS, "sessions": sessions, "refused": refused}


def _replayed(folder: str) -> str:
    """The label of a replayed session, whose id stays what it was."""
    return f"replayed/{folder.removeprefix('session_id=')}"


def _label(folder: Path, source: Path) -> str:
    inside = folder.relative_to(source).as_posix()
    return source.name if inside == "." else f"{source.name}/{inside}"


def _digests(lake: Path, session: str, labels: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Digest each table by stage, with its row count, and give the reason for each failed stage."""
    manifest = json.loads((lake / "manifests" / f"{session}.json").read_text())
    for state in manifest["stages"]:
        if state["failure"] is not None:
            yield f"failure of {state['stage']}", state["failure"]
    for entry in manifest["entries"]:
        if entry["stage"] not in VIEWS:
            file = lake / entry["file"] if entry["file"] else None
            frame = pl.DataFrame() if file is None else pl.read_parquet(file, hive_partitioning=False, glob=False)
            yield f"{entry['table']} of {entry['stage']}", [frame.height, digest(frame, labels)]


def digest(frame: pl.DataFrame, labels: Mapping[str, str]) -> str:
    """A digest over names, types and values of a table, as `labels` calls its sessions; "" without rows."""
    total = sha256()
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        for name in sorted(set(part.columns) - {"session_id"}):
            values = part[name]
            if values.dtype.is_temporal():
                values = values.to_physical()  # Python's own times end at microseconds
            told = f"{name}\0{part[name].dtype}\0{values.to_list()!r}\0"
            for session, label in labels.items():
                told = told.replace(session, f"<{label}>") if session in told else told
            total.update(told.encode())
    return total.hexdigest() if frame.height else ""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for each table, failure, session and refusal that is not the same in both."""
    found = []
    for kind in ("sessions", "refused"):
        for label in sorted(before[kind].keys() | after[kind].keys()):
            old, new = before[kind].get(label), after[kind].get(label)
            if old is None or new is None:
                found.append(f"{label}: only {'after' if old is None else 'before'} in {kind}")
            elif kind == "refused":
                found += [f"{label}: refused otherwise: {old} and {new}"] if old != new else []
            else:
                rows = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
                found += [f"{label}: {name}: {_told(old.get(name))} and {_told(new.get(name))}" for name in rows]
    return found


def _told(value: Any) -> str:
    if value is None:
        return "absent"
    return f"{value[0]} rows, digest {value[1][:12] or 'none'}" if isinstance(value, list) else str(value)


def compare(before: Path, after: Path) -> int:
    """Print every difference; 1 when there is one, or too few sessions to speak of."""
    old, new = (json.loads(file.read_text()) for file in (before, after))
    found = differences(old, new)
    tables = sum(len(one) for one in old["sessions"].values())
    print("\n".join([*found, f"{len(old['sessions'])} sessions, {tables} tables: {len(found)} differences"]))
    if len(old["sessions"]) < LEAST_SESSIONS:
        print(f"fewer than {LEAST_SESSIONS} sessions")
    return int(bool(found) or len(old["sessions"]) < LEAST_SESSIONS)


def answers(lake: Path, tree: Path) -> dict[str, Any]:
    """Ask a checkout's command about a copy of the lake; answers by question, each session and table separately."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="aaco_read_") as folder:
        copy = Path(folder) / "lake"
        shutil.copytree(lake, copy, ignore=shutil.ignore_patterns(".dagster_home"))
        sessions = json.loads(required(tree, "ls", "--json", "--lake", str(copy)))
        told["ls"] = sessions
        asked: dict[str, tuple[str, ...]] = {
            f"show {one['session_id']}": ("show", one["session_id"], "--json") for one in sessions
        }
        for table in _QUERIES:
            asked[f"sql {table}"] = ("sql", f"SELECT * FROM {table} ORDER BY ALL", "--format", "json")
        for question, arguments in asked.items():
            done = aaco(tree, *arguments, "--lake", str(copy))
            out = done.stdout.replace(str(copy), "LAKE")
            told[question] = json.loads(out) if out else [done.returncode, done.stderr.replace(str(copy), "LAKE")]
    return told


def unlike(before: Any, after: Any, place: str) -> Iterator[str]:
    """The places at which two JSON documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from unlike(before.get(key), after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from unlike(old, new, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {str(before)[:200]} and {str(after)[:200]}"


def read(lake: Path, before: Path, after: Path) -> int:
    """Ask both commands the same of a lake; 1 when an answer differs."""
    old, new = answers(lake, before), answers(lake, after)
    found = [line for question in {**old, **new} for line in unlike(old.get(question), new.get(question), question)]
    print("\n".join([*found, f"{len(old)} questions: {len(found)} differences"]))
    return int(bool(found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, *paths: str) -> None:
        one = commands.add_parser(name)
        for path in paths:
            if path.startswith("--"):
                one.add_argument(path, type=_absolute, required=True)
            else:
                one.add_argument(path, type=_absolute)

    command("prepare", "inputs", "--tree")
    command("make", "inputs", "lake", "--tree", "--output")
    command("compare", "before", "after")
    command("read", "lake", "--before", "--after")
    given = parser.parse_args(arguments)
    if given.command == "prepare":
        prepare(given.inputs, given.tree)
    elif given.command == "make":
        made = make(given.inputs, given.lake, given.tree)
        given.output.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
        print(f"{len(made['sessions'])} sessions, {len(made['refused'])} inputs refused or not whole")
        return int(len(made["sessions"]) < LEAST_SESSIONS)
    elif given.command == "compare":
        return compare(given.before, given.after)
    else:
        return read(given.lake, given.before, given.after)
    return 0


def _absolute(text: str) -> Path:
    return Path(text).absolute()


if __name__ == "__main__":
    sys.exit(main())
