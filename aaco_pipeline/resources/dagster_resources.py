"""The Dagster resources that assets ask for: the lake, and the runner that measures a launch.

They are thin: the lake is `aaco_pipeline.lake`, measuring is `aaco_pipeline.resources.measure.inference`. A test
overrides them with the same types pointed elsewhere.
"""

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure.inference import capture_inference, plan


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The TraceLake at a local path."""

    path: str

    def open(self) -> TraceLake:
        return TraceLake(self.path)


class InferenceRunner(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Measures launches on this host, with the registries of models and backends in the folder `configs`."""

    configs: str

    def check(self, launch: MeasurementRequest) -> None:
        """Raise AacoError when `launch` cannot be meant as it stands: unknown model, backend or precision."""
        plan(launch, Path(self.configs))

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        """Measure `launch` and leave the raw capture in `folder`; see `capture_inference`."""
        capture_inference(launch, folder, Path(self.configs), log)
