"""Running a version in the workgroup that it asks for, with the calls of a harness that launches another."""

from dataclasses import dataclass, replace

from aaco_pipeline.optimization.calls import Call, Execution, Launch
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness import Harness, Size
from aaco_pipeline.optimization.targets import Worker


def launch_of(harness: Harness, size: Size, block: tuple[int, int, int]) -> Launch:
    """How the harness launches another workgroup. Refused (guard `inputs`) where it does not say."""
    if harness.launch is None:
        raise Refused("inputs", "its harness has no launch(size, block), so the workgroup stays as it is")
    return harness.launch(size, block)


def relaunched(worker: Worker, harness: Harness, size: Size, block: tuple[int, int, int] | None) -> Worker:
    """The worker, whose calls of this size are launched in workgroups of `block`; as it is where that is null."""
    return worker if block is None else _Relaunched(worker, launch_of(harness, size, block))


@dataclass(frozen=True)
class _Relaunched:
    worker: Worker
    launch: Launch

    def run(self, call: Call) -> Execution:
        return self.worker.run(replace(call, launch=self.launch))
