"""Record a search in the lake: a row for question and answer, a row per attempt, its journal and its patch.

Rows are derived from the journal alone, so the two always agree. The journal is stored with the lake's artefacts, and
the row that names it is published before anything is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.artefacts import ARTEFACTS
from aaco_pipeline.lake.files import lake_errors, make_folder, sync_folder, write_atomically
from aaco_pipeline.lake.health import clear_away
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.journal import JournalWriter
from aaco_pipeline.optimization.loop.search import Gain, gain_of
from aaco_pipeline.pipeline.comparing.campaigns import publish

STAGE: Final = "optimization"
JOURNAL_FILE: Final = "journal.jsonl"
#: Architecture whose static figures become columns if there are several; the journal has all of them.
SHOWN_ARCHITECTURE: Final = "gfx942"
_RESOURCES: Final = ("vgprs", "sgprs", "lds_bytes", "scratch_bytes")
_OF_THE_QUESTION: Final = (
    *("source_name", "kernel", "session", "target", "executed_on", "speedup_applies_to", "threshold_ratio", "alpha"),
    *("seed", "source_sha256", "harness_sha256"),
)

#: Columns with the same name as a field of a journal line.
_SAME: Final = (
    *("attempt", "kernel", "proposer", "guard", "decision", "reason", "speedup_ratio", "ci_low", "ci_high"),
    *("measured_in", "source_sha256", "baseline_sha256", "bit_exact", "spent_ns"),
)


@dataclass
class Recorder:
    """Writes a search's lines to its journal and publishes after each attempt; a kill only loses the current one."""

    lake: TraceLake
    name: str
    began_at: datetime
    journal: JournalWriter
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    patch: str | None = None
    is_applied: bool | None = None
    effect: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gain(self) -> Gain | None:
        """The gain reported by the search so far."""
        return _gain(self.lines)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line to the journal; it is on disk before the tables that include it are published."""
        with lake_errors(journal_path(self.lake.path, self.name)):
            self.journal.write(line)
        self.lines.append(line)
        if line["kind"] in ("begin", "attempt", "whole"):
            self.publish()

    def keep_patch(self, content: bytes, file_name: str) -> Path:
        """Store the accepted changes next to the journal, and return their path."""
        path = journal_path(self.lake.path, self.name).with_name(file_name)
        with lake_errors(path):
            write_atomically(path, content)
        self.patch = path.relative_to(self.lake.path).as_posix()
        return path

    def publish(self) -> None:
        """Publish all results so far."""
        journal = journal_path(self.lake.path, self.name).relative_to(self.lake.path).as_posix()
        known = {"began_at": self.began_at, "journal": journal, "patch": self.patch, "is_applied": self.is_applied}
        tables = {
            "optimizations": [{**question_row(self.lines), **self.effect, **known}],
            "optimization_attempts": attempt_rows(self.lines),
        }
        publish(self.lake, self.name, STAGE, tables)


def journal_path(lake: Path, name: str) -> Path:
    """Return the path of a search's journal."""
    return lake / ARTEFACTS / name / JOURNAL_FILE


def open_journal(lake: TraceLake, name: str) -> JournalWriter:
    """Open a new journal, after removing files of killed writers: a killed search cannot be resumed.

    LakeError if it cannot be created.
    """
    clear_away(lake)
    path = journal_path(lake.path, name)
    with lake_errors(path):
        make_folder(path.parent)
        writer = JournalWriter(path)
        sync_folder(path.parent)
    return writer


def question_row(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the row of `optimizations` from a journal's lines, without paths and the effect on a session."""
    begin = lines[0]
    end = lines[-1] if lines[-1]["kind"] == "end" else {}
    whole, gain = _whole(lines), _gain(lines)
    return {
        **{name: begin[name] for name in _OF_THE_QUESTION},
        "budget_ns": begin["limits"]["time_ns"],
        "most_attempts": begin["limits"]["attempts"],
        "spent_ns": end.get("at_ns"),
        "ended_by": end.get("end"),
        "reason": end.get("reason"),
        "result_sha256": end.get("source_sha256"),
        **{name: getattr(gain, name, None) for name in ("speedup_ratio", "ci_low", "ci_high")},
        "speedup_of": gain and gain.of,
        "whole_decision": whole and whole["decision"],
        "whole_reason": whole and whole["reason"],
        "run_options": end.get("run_options"),
    }


def attempt_rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Build the rows of `optimization_attempts` from a journal's lines."""
    return [_attempt(lines[0], line) for line in lines if line["kind"] == "attempt"]


def find_optimization(lake: TraceLake, name: str) -> str:
    """Find a search by its id or a unique prefix; UsageError for no match, or several."""
    known = lake.read("optimizations").get_column("campaign_id").to_list()
    matching = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(matching) != 1:
        why = "is ambiguous" if matching else "is not in this lake"
        raise UsageError(f'optimization {name!r} {why}; `aaco sql "SELECT * FROM optimizations"` lists them')
    return matching[0]


def read_kept(lake: TraceLake, name: str) -> bytes:
    """Read a search's journal as bytes; LakeError if it cannot be read."""
    path = lake.path / str(lake.read("optimizations", name).item(0, "journal"))
    try:
        return path.read_bytes()
    except OSError as error:
        raise LakeError(f"{path}: {error.strerror}") from error


def _whole(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((line for line in lines if line["kind"] == "whole"), None)


def _gain(lines: Sequence[Mapping[str, Any]]) -> Gain | None:
    accepted = [line for line in lines if line["kind"] == "attempt" and line["decision"] == "accepted"]
    return gain_of(accepted, _whole(lines))


def _attempt(begin: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    build, timings = line.get("build"), line.get("timings", {})
    taken = [pairs for step in timings.values() for pairs in step["evidence"]["pairs"]["candidate"]]
    is_executed, is_timed = line.get("correctness") is not None or bool(timings), bool(taken)
    return {
        **{name: line[name] for name in _SAME},
        "transformation": _words(line),
        "executed_on": begin["executed_on"] if is_executed else None,
        "speedup_applies_to": begin["speedup_applies_to"] if is_timed else None,
        "compiler": build and build["compiler"],
        "flags": build and build["flags"],
        "binary_sha256": build and build["code_sha256"],
        **_resources(begin, line),
        "pairs": sum(len(one["baseline_ns"]) for one in taken) if is_timed else None,
        "layouts": len(taken) if is_timed else None,
        "alpha": next(iter(timings.values()))["evidence"]["alpha"] if is_timed else None,
        "ratio_of": line.get("ratio_of", "call"),
        "campaigns": line.get("campaigns"),
    }


def _words(line: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name}={value}" for name, value in line["parameters"].items())
    return f"{line['transformation']} ({told})" if told else str(line["transformation"])


def _resources(begin: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return static figures of an AMD GPU if there are any, else those of the target's own compiler."""
    static = line.get("static")
    if static and static["before"]:
        shown = SHOWN_ARCHITECTURE if SHOWN_ARCHITECTURE in static["before"] else min(static["before"])
        of, before, after = shown, static["before"][shown], static["after"][shown]
    else:
        before, after = line["baseline_resources"], (line.get("build") or {}).get("resources", {})
        of = begin["executed_on"] if any(name in before for name in _RESOURCES) else None
    return {
        "resources_of": of,
        **{f"{name}_before": before.get(name) for name in _RESOURCES},
        **{f"{name}_after": after.get(name) for name in _RESOURCES},
    }
