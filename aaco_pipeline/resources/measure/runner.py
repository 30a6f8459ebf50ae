"""Run measurements on this host, with the registries in a project's `configs` folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaco_pipeline.resources.project import find_project

if TYPE_CHECKING:
    from aaco_pipeline.capture.request import MeasurementRequest


@dataclass(frozen=True)
class InferenceRunner:
    """Measures on this host with the registries in the folder `configs`, by default the project's."""

    configs: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of models.yaml, backends.yaml and so on; it need not exist."""
        return find_project(new=True).configs if self.configs is None else Path(self.configs)

    def check(self, request: "MeasurementRequest") -> None:
        """Raise AacoError if `request` cannot be measured; see `check_request`."""
        from aaco_pipeline.resources.measure.inference import check_request

        check_request(request, self.folder)

    def measure(self, launch: "MeasurementRequest", folder: Path, log: Callable[[str], None]) -> None:
        """Measure a launch and leave the raw capture in `folder`; see `capture_inference`."""
        from aaco_pipeline.resources.measure.inference import capture_inference

        capture_inference(launch, folder, self.folder, log)
