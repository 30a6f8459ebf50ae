"""The Dagster resources that assets ask for: the lake, and the runner that takes measurements.

Without a path each is the project's, found when it is used, so that the definitions load anywhere. They are plain
objects: whoever starts a run could set the fields of a `ConfigurableResource`, and with them what may be executed.
"""

from dataclasses import dataclass

import dagster as dg

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import find_project


@dataclass(frozen=True)
class LakeResource:
    """The TraceLake at a local path; the project's without one."""

    path: str | None = None

    def open(self) -> TraceLake:
        return TraceLake(self.path or find_project(new=True).lake)


#: How an asset, op, sensor or schedule asks for them.
Lake = dg.ResourceParam[LakeResource]
Runner = dg.ResourceParam[InferenceRunner]
