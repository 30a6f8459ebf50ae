"""Trying again what was killed or failed: how often, after how long, and the tag that numbers the runs."""

from typing import Final

import dagster as dg

#: On a run: the how-manieth it is of this session, or of this content of the inbox.
ATTEMPT_TAG: Final = "aaco/attempt"
MOST_ATTEMPTS: Final = 5
#: After the first failure; each further one doubles it.
FIRST_DELAY_SECONDS: Final = 60.0
#: Runs that have not ended; one of them may be dead (`aaco_pipeline.automation.dead_runs`).
UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def delay_seconds(failures: int) -> float:
    """How long to wait after so many failures before the next attempt."""
    return FIRST_DELAY_SECONDS * 2.0 ** max(failures - 1, 0)
