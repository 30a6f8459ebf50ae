"""Show the ranks of a distributed job: which one is late and what the others wait for.

`aaco_pipeline.analysis` computes lateness.
"""

from typing import Final

from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.report.formatting import capital, counted, duration
from aaco_pipeline.report.session.sentences import Document, Row

#: Classes whose reason explains why there is no answer, and so nothing about ranks.
_NO_ANSWER: Final = ("incomplete", "cold_start")
_EACH_RANK: Final = (
    "a file for each rank, ingested as one folder: rocprofv3 -d OUT -o %hostname%_%rank%, or "
    "torch.profiler.tensorboard_trace_handler(DIR, worker_name=f'rank{rank}')"
)


def rank_name(row: Row) -> str:
    """Name a process by its rank, or else by its number in the session."""
    return f"process {row['process_id']}" if row["rank"] is None else f"rank {row['rank']}"


def told_of_ranks(document: Document) -> list[str]:
    """Describe which ranks are late; empty for a session without collectives."""
    rows = document["rank_waits"]
    if not rows:
        return []
    if len(rows) == 1:
        return [_alone(rows[0], document)]
    if not any(row["compared_count"] for row in rows):
        reasons = dict.fromkeys(row["clock_reason"] for row in rows if row["clock_reason"])
        why = "; ".join(reasons) or "no collective of the judged window has all its ranks on one clock"
        return [f"Which of the {len(rows)} ranks is late cannot be told: {why}."]
    last = max(rows, key=lambda row: row["last_count"])
    if sum(row["rank"] == last["rank"] for row in rows) > 1:
        last = {**last, "rank": None}  # ambiguous: several processes inherited this rank
    if not last["last_count"]:
        return [f"No rank comes last beyond the clocks’ uncertainty, in {counted(last['judged_count'], 'collective')}."]
    said = [
        f"{capital(rank_name(last))} comes last to {last['last_count']:,} of "
        f"{counted(last['judged_count'], 'collective')}; from the first rank’s arrival to its own pass "
        f"{duration(per_repetition(last['behind_first_ns'], last))} {scope(document, [last])}."
    ]
    reason = next((row["reason"] for row in document["answers"] if row["class"] not in _NO_ANSWER), None)
    return [*said, f"{capital(reason)}."] if reason else said


def per_repetition(amount: float | None, row: Row) -> float | None:
    """Convert an amount for the judged window to one repetition, or to the complete window if nothing repeats."""
    return None if amount is None else amount / (row["repetitions"] or 1)


def scope(document: Document, rows: list[Row]) -> str:
    """Return the scope of amounts from `per_repetition`: `an iteration`, or `in the judged window`."""
    if not rows or not rows[0]["repetitions"]:
        return "in the judged window"
    one = one_of(document["answers"][0]["window_rule"])
    return f"{'an' if one[0] in 'aeiou' else 'a'} {one}"


def _alone(row: Row, document: Document) -> str:
    size = row["expected_participants"]
    of = f" of {size}" if size else ""
    text = f"Which rank is late cannot be told from one rank alone: this is {rank_name(row)}{of}"
    mends = [found["mend"] for found in document["ranks_missing"]] or [_EACH_RANK]
    return f"{text}, and time in a collective may be waiting for another. That takes {mends[0]}."


#: Collectives in the judged window, selected by the judged device's own participation, so that clocks need no
#: alignment.
