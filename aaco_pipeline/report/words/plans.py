"""What a measurement that is only planned would take and find, in words; nothing of it was measured."""

from collections.abc import Mapping
from typing import Any

from aaco_pipeline.report.words import bisection, verdicts
from aaco_pipeline.report.words.units import counted, long_duration

Row = Mapping[str, Any]


def campaign_plan(document: Row) -> list[str]:
    """Of `aaco compare --plan`: how much is measured, from what it is foretold, and what."""
    blocks, traced = document["blocks"], document["traced_blocks"]
    told = f"{document['workload']} on {document['backend']}: {counted(blocks, 'block')} of {document['arms']} sessions"
    told += f", then {counted(traced, 'traced block')}." if traced else "."
    return [told, history(document["history"]), verdicts.foretold(document["foretold"])]


def search_plan(document: Row) -> list[str]:
    """Of `aaco bisect --plan`: the builds, how many of them are measured, from what it is foretold, and what."""
    builds = document["builds"]
    told = f"{document['workload']} on {document['backend']}: {counted(len(builds), 'build')}, "
    told += f"{_called(builds[0])} to {_called(builds[-1])}."
    most = document["most_measured"]
    bounds = (
        f"At most {most} of them {'is' if most == 1 else 'are'} measured beside the first, in "
        f"{document['least_blocks']} to {document['most_blocks']} blocks of two sessions altogether."
    )
    return [told, bounds, history(document["history"]), bisection.foretold(document["foretold"])]


def history(row: Row) -> str:
    """What earlier campaigns showed, or why nothing can be foretold."""
    if not row["campaigns"]:
        return "No campaign of this workload with these options was measured on this host: the first one tells."
    told = f"From {counted(row['campaigns'], 'campaign')} on this host: "
    spread = "none had the five blocks that show a spread"
    if row["deviation"] is not None:
        spread = f"blocks are spread by {100 * row['deviation']:.2g} %"
    kinds = (("a session", row["session_ns"]), ("a traced one", row["traced_ns"]))
    times = [f"{kind} takes {long_duration(time)}" for kind, time in kinds if time is not None]
    return f"{told}{', '.join([spread, *times])}."


def _called(build: Row) -> str:
    return str(build["label"]) if build["title"] is None else f"{build['label']} “{build['title']}”"
