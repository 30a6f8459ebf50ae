"""Dagster resources for assets, and the partition dimensions session and campaign.

GPU, model and stack are columns and tags, never dimensions.
"""

from dataclasses import dataclass
from typing import Final

import dagster as dg

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import find_project

Runner = dg.ResourceParam[InferenceRunner]
PARTITIONS_NAME: Final = "session"
#: Campaigns: sessions that are judged together. `aaco_pipeline.pipeline.comparing.plan` creates their ids.
CAMPAIGN_PARTITIONS_NAME: Final = "campaign"


@dataclass(frozen=True)
class LakeResource:
    """The TraceLake at a local path; by default the project's lake."""

    path: str | None = None

    def open(self) -> TraceLake:
        return TraceLake(self.path or find_project(new=True).lake)


#: Annotations with which assets, ops, sensors and schedules request the resources.
Lake = dg.ResourceParam[LakeResource]


session_partitions = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)


campaign_partitions = dg.DynamicPartitionsDefinition(name=CAMPAIGN_PARTITIONS_NAME)


def add_partition(instance: dg.DagsterInstance, *sessions: str) -> None:
    """Register sessions as Dagster partitions; existing ones are unchanged."""
    instance.add_dynamic_partitions(PARTITIONS_NAME, list(sessions))


def add_campaigns(instance: dg.DagsterInstance, *campaigns: str) -> None:
    """Register campaigns as Dagster partitions; existing ones are unchanged."""
    instance.add_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME, list(campaigns))
