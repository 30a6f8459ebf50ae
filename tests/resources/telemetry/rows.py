"""Waiting for the sampler's rows instead of for a time, in which a busy machine may take none."""

import time

from aaco_pipeline.resources.telemetry.sampler import SystemSampler


def wait_for_rows(sampler: SystemSampler, number: int) -> None:
    """Let the sampler take `number` rows more, however busy the machine is."""
    wanted, patience = sampler._rows + number, time.monotonic() + 60
    while sampler._rows < wanted:
        assert time.monotonic() < patience, "the sampler takes no rows"
        time.sleep(0.002)
