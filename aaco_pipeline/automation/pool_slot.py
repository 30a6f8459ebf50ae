"""A slot of a pool of Dagster's, taken and given back by a run that is not made of Dagster's own steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import dagster as dg

from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.resources.measure.measurement_slot import slot_holder
from aaco_pipeline.resources.measure.slot_holder import SlotWait

_POLL_SECONDS: Final = 0.5


@contextmanager
def pool_slot(
    instance: dg.DagsterInstance, run_id: str, pool: str, step: str, log: Callable[[str], None]
) -> Iterator[ExitStack]:
    """Wait for a slot of the pool and hold it; closing what is yielded gives it back early.

    While waiting, log the holder, and free the slot of runs that were killed.
    """
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default(pool)
    with ExitStack() as held:
        held.callback(storage.free_concurrency_slots_for_run, run_id)
        wait = SlotWait(log, slot_holder)
        while not storage.claim_concurrency_slot(pool, run_id, step).is_claimed:
            wait.go_on()
            time.sleep(_POLL_SECONDS)
            reap(instance)
        yield held
