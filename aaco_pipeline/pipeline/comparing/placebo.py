"""The placebo: the baseline once more in the same blocks, from a copy of its file that is made for the campaign.

What moves it is how a file lies on the host, or what the host does to whoever runs beside others. It is no candidate:
where it differs from the baseline, a candidate's difference says nothing.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.artefacts import ARTEFACTS, copy_artefact
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject
from aaco_pipeline.resources.measure.models import model_digest, weights_beside

ARM: Final = "placebo"


def placebo_of(lake: TraceLake, baseline: Subject) -> Subject:
    """The arm that measures a copy of the baseline's file, which is made when its campaign is measured."""
    file = lake.path / ARTEFACTS / f"placebo-{token_hex(8)}" / baseline.artefact.name
    return replace(baseline, request=baseline.request.model_copy(update={"artefact": str(file)}), artefact=file)


@contextmanager
def fresh_copy(lake: TraceLake, plan: Plan) -> Iterator[None]:
    """The placebo's copy for as long as the campaign is measured; nothing for a plan without one.

    LakeError when the copy cannot be made, or is not the file that was planned.
    """
    arm = plan.arms.get(ARM)
    if arm is None:
        yield
        return
    source: Path = plan.arms["baseline"].artefact
    copy = copy_artefact(lake.path, source, weights_beside(source), arm.artefact.parent.name)
    try:
        if model_digest(copy) != arm.artefact_sha256:
            raise LakeError(f"{copy}: its copy is not the file that campaign {plan.campaign} measures; start it again")
        yield
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)
