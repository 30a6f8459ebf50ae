"""Show the ranks of a distributed job: which one is late and what the others wait for.

Lateness is computed in `aaco_pipeline.analysis`.
"""

from collections.abc import Mapping
from typing import Final

from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.report.formatting import capital, counted, duration
from aaco_pipeline.report.session.sentences import Document, Row

#: Answers whose reason says why there is none, and so nothing of ranks.
_NO_ANSWER: Final = ("incomplete", "cold_start")
_EACH_RANK: Final = (
    "a file for each rank, ingested as one folder: rocprofv3 -d OUT -o %hostname%_%rank%, or "
    "torch.profiler.tensorboard_trace_handler(DIR, worker_name=f'rank{rank}')"
)


def rank_name(row: Row) -> str:
    """What a process is called: by its rank, else by its number in the session."""
    return f"process {row['process_id']}" if row["rank"] is None else f"rank {row['rank']}"


def told_of_ranks(document: Document) -> list[str]:
    """Sentences on who is late; empty of a session without collectives."""
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
        last = {**last, "rank": None}  # all that one starter's variable reached state it
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
    """An amount of the judged window for one repetition; for the whole window where nothing repeats."""
    return None if amount is None else amount / (row["repetitions"] or 1)


def scope(document: Document, rows: list[Row]) -> str:
    """What amounts by `per_repetition` are of: `an iteration`, or `in the judged window`."""
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


#: Collectives within the judged window, by the judged device's own part in them, so that no clock has to be moved.
_JUDGED: Final = (
    "(SELECT DISTINCT c.collective_id, a.repetitions FROM (SELECT * FROM collectives WHERE session_id = '{session}') "
    "AS c JOIN (SELECT * FROM dispatches WHERE session_id = '{session}') AS d USING (dispatch_id) "
    "JOIN (SELECT * FROM answers WHERE session_id = '{session}') AS a ON d.device_id = a.device_id "
    "AND d.start_ns >= a.window_start_ns AND d.end_ns <= a.window_end_ns)"
)

RANKS: Final[Mapping[str, str]] = {
    # Wherever there are collectives there is a row for each process, whether or not its waits can be told.
    "rank_waits": (
        "SELECT c.process_id, any_value(p.rank) AS rank, count(*) AS collectives, "
        "max(c.expected_participants) AS expected_participants, max(c.participants) AS participants, "
        "count(j.collective_id) AS judged_count, any_value(j.repetitions) AS repetitions, "
        "count(c.wait_ns) FILTER (j.collective_id IS NOT NULL) AS compared_count, "
        "coalesce(count_if(c.is_straggler AND j.collective_id IS NOT NULL), 0) AS last_count, "
        "sum(c.wait_ns) FILTER (j.collective_id IS NOT NULL) AS wait_ns, "
        "sum(c.arrival_spread_ns) FILTER (c.is_straggler AND j.collective_id IS NOT NULL) AS behind_first_ns, "
        "any_value(k.reason) AS clock_reason FROM (SELECT * FROM collectives WHERE session_id = '{session}') AS c "
        f"LEFT JOIN {_JUDGED} AS j USING (collective_id) "
        "LEFT JOIN (SELECT process_id, rank FROM processes WHERE session_id = '{session}') AS p USING (process_id) "
        "LEFT JOIN (SELECT process_id, reason FROM rank_clocks WHERE session_id = '{session}') AS k USING (process_id) "
        "GROUP BY c.process_id ORDER BY rank NULLS LAST, c.process_id"
    ),
    "rank_times": (
        "SELECT d.process_id, p.rank, t.device_id, t.window_end_ns - t.window_start_ns AS window_ns, t.busy_ns, "
        "t.compute_ns, t.exposed_communication_ns, t.exposed_copy_ns, t.busy_bound "
        "FROM (SELECT * FROM timeline WHERE session_id = '{session}' AND iteration IS NULL "
        "AND window_rule = 'first_to_last_activity') AS t JOIN (SELECT DISTINCT process_id, device_id FROM dispatches "
        "WHERE session_id = '{session}') AS d USING (device_id) "
        "LEFT JOIN (SELECT process_id, rank FROM processes WHERE session_id = '{session}') AS p USING (process_id) "
        "ORDER BY p.rank NULLS LAST, d.process_id, t.device_id"
    ),
    "ranks_missing": (
        "SELECT mend FROM completeness_findings WHERE session_id = '{session}' "
        "AND finding = 'ranks_missing' ORDER BY ALL"
    ),
}
