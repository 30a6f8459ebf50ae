"""The Dagster resources that assets ask for: the lake, and the runner that takes measurements.

They are thin: the lake is `aaco_pipeline.lake`, measuring is `aaco_pipeline.resources.measure.inference`. Without a
path each is the project's, found when it is used (`aaco_pipeline.resources.project`), so that the definitions load
anywhere. A test overrides them with the same types pointed elsewhere. They are plain objects: the fields of a
`ConfigurableResource` could be set by whoever starts a run, and with them which settings name what may be executed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import find_project

if TYPE_CHECKING:
    from aaco_pipeline.capture.request import MeasurementRequest


@dataclass(frozen=True)
class LakeResource:
    """The TraceLake at a local path; the project's without one."""

    path: str | None = None

    def open(self) -> TraceLake:
        return TraceLake(self.path or find_project(new=True).lake)


@dataclass(frozen=True)
class InferenceRunner:
    """Measures on this host, with the registries in the folder `configs`; the project's without one."""

    configs: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of models.yaml, backends.yaml and the rest; it need not exist."""
        return find_project(new=True).configs if self.configs is None else Path(self.configs)

    def check(self, request: "MeasurementRequest") -> None:
        """Raise AacoError when `request` cannot be measured as it stands; see `check_request`."""
        from aaco_pipeline.resources.measure.inference import check_request

        check_request(request, self.folder)

    def measure(self, launch: "MeasurementRequest", folder: Path, log: Callable[[str], None]) -> None:
        """Measure a launch and leave the raw capture in `folder`; see `capture_inference`."""
        from aaco_pipeline.resources.measure.inference import capture_inference

        capture_inference(launch, folder, self.folder, log)


#: How an asset, op, sensor or schedule asks for them.
Lake = dg.ResourceParam[LakeResource]
Runner = dg.ResourceParam[InferenceRunner]
