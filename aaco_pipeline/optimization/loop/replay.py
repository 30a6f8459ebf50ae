"""Repeat the decisions from a journal alone: nothing is built or run, and every decision must be the same."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.journal import Journal, JournalError, bytes_of
from aaco_pipeline.optimization.loop.attempt import (
    NO_EFFECT,
    UNDECIDED_BY,
    Decision,
    Stop,
    decide,
    decide_whole,
    is_unchanged,
    sha256,
)
from aaco_pipeline.optimization.loop.means import Record, Ruling, TextGuard, Timer, TimingStep

#: Steps for which a journal has all the evidence; the results of the others are taken as recorded.
_TEXT: Final = "text"
_EFFECT: Final = "effect"
_TIMED: Final[tuple[TimingStep, ...]] = ("search", "confirmation")


@dataclass(frozen=True)
class Replayed:
    """One repeated decision, of a line of this kind: `aa`, `attempt`, which has a number, or `whole`.

    `differs` describes the difference from the journal; null if there is none.
    """

    kind: str
    attempt: int | None
    decision: str
    guard: str | None
    reason: str
    differs: str | None


def replay(journal: Journal, check_text: TextGuard, timer_of: Callable[[Record], Timer]) -> list[Replayed]:
    """Repeat every decision for which a journal has evidence. JournalError if a line contradicts itself.

    Text guards run on the recorded texts, hashes are compared, and intervals are computed from the recorded pairs; what
    a compiler or a process reported is taken as recorded. `timer_of` makes the timing rule that `begin` names.
    """
    timer = timer_of(journal.begin)
    sources = dict(_sources(journal))
    again = []
    for line in journal.lines:
        if line["kind"] == "aa" and line["evidence"] is not None:
            again.append(replayed_aa(timer.decide("aa", line["evidence"]), line))
        elif line["kind"] == "attempt":
            again.append(replayed(_decided(line, sources, check_text, timer), line))
        elif line["kind"] == "whole":
            again.append(replayed(_decided_whole(line, timer), line, _parts(journal)))
    return again


def replayed_aa(ruling: Ruling, line: Record) -> Replayed:
    """Compare a ruling on identical code with the journal's line."""
    word = "quiet" if ruling.passed else "undecided"
    return Replayed("aa", None, word, ruling.guard, ruling.reason, difference(asdict(ruling), line["ruling"]))


def replayed(decision: Decision, line: Record, others: Record | None = None) -> Replayed:
    """Compare a decision, and `others` that the line must hold too, with the journal's line."""
    differs = "; ".join(filter(None, (difference(others or {}, line), difference(asdict(decision), line)))) or None
    number = line["attempt"] if line["kind"] == "attempt" else None
    return Replayed(line["kind"], number, decision.decision, decision.guard, decision.reason, differs)


def _decided_whole(line: Record, timer: Timer) -> Decision:
    stop = None if line["stop"] is None else Stop(**line["stop"])
    timed = line["timings"].get("confirmation")
    return decide_whole(stop, None if timed is None else timer.decide("confirmation", timed["evidence"]))


def _parts(journal: Journal) -> Mapping[str, Any]:
    """Compute the content of a line about the whole: accepted attempts, the first source and the last accepted one."""
    accepted = [line for line in journal.of_kind("attempt") if line["decision"] == "accepted"]
    return {
        "attempts": [line["attempt"] for line in accepted],
        "baseline_sha256": journal.begin["source_sha256"],
        "source_sha256": accepted[-1]["source_sha256"] if accepted else None,
    }


def _sources(journal: Journal) -> Iterator[tuple[str, bytes]]:
    """Yield every source of the journal by its hash, which must match its text."""
    for line in journal.lines:
        if "source" in line:
            source = bytes_of(line["source"])
            if sha256(source) != line["source_sha256"]:
                raise JournalError(f"line {line['line'] + 1}: its source has another hash than it says")
            yield line["source_sha256"], source


def _decided(line: Record, sources: Mapping[str, bytes], check_text: TextGuard, timer: Timer) -> Decision:
    recorded = None if line["stop"] is None else Stop(**line["stop"])
    baseline, source = sources.get(line["baseline_sha256"]), sources[line["source_sha256"]]
    if baseline is None:
        raise JournalError(f"line {line['line'] + 1}: the journal does not hold the source of its baseline")
    if recorded is not None and recorded.guard in UNDECIDED_BY:
        stop: Stop | None = recorded
    else:
        stop = _stopped_by_its_text(baseline, source, line, check_text) or _stopped_by_its_code(line)
        if stop is None and recorded is not None and recorded.step not in (_TEXT, _EFFECT):
            stop = recorded
    timings = line.get("timings", {})
    rulings: dict[str, Ruling] = {
        step: timer.decide(step, timings[step]["evidence"]) for step in _TIMED if step in timings
    }
    return decide(stop, rulings)


def _stopped_by_its_text(baseline: bytes, source: bytes, line: Record, check_text: TextGuard) -> Stop | None:
    try:
        check_text(baseline, source, line["kernel"], allowed=line["signature"])
    except Refused as refused:
        return Stop(_TEXT, refused.guard, refused.reason)
    return None


def _stopped_by_its_code(line: Record) -> Stop | None:
    """Repeat the step `effect`; a candidate stopped by an earlier step has no build in its line."""
    if "build" in line and is_unchanged(
        line["baseline_code_sha256"], line["build"]["code_sha256"], line["block"], line["baseline_block"]
    ):
        return Stop(_EFFECT, "no_effect", NO_EFFECT)
    return None


def difference(again: Mapping[str, Any], recorded: Mapping[str, Any]) -> str | None:
    """Describe the difference of two decisions; figures must be equal to the last bit."""
    wrong = {name: value for name, value in again.items() if recorded.get(name) != value}
    return "; ".join(f"{name} was {recorded.get(name)!r} and is {value!r}" for name, value in wrong.items()) or None
