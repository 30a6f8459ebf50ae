"""How far a session has come: which stages it is to have, which have published, which failed, which never ran.

The manifest states it (`aaco_pipeline.lake.manifest`); running what is missing is decided in `automation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aaco_pipeline.lake.manifest import Manifest, StageState


@dataclass(frozen=True)
class Progress:
    """The stages of one session. `expected` is in the order they run; () where that was never stated.

    `published` are those whose last run published, `failed` those whose last run failed (what such a stage had
    published before is still there), `missing` those expected ones that never ran.
    """

    expected: tuple[str, ...]
    published: tuple[StageState, ...]
    failed: tuple[StageState, ...]
    missing: tuple[str, ...]

    @property
    def is_whole(self) -> bool | None:
        """Whether every expected stage has published and none failed; None where nothing states what is expected."""
        if self.failed or self.missing:
            return False
        return True if self.expected else None

    @property
    def unpublished(self) -> tuple[str, ...]:
        """The expected stages that are still to publish, failed or never run, in the order they run."""
        return not_in(self.expected, self.published)

    @property
    def count(self) -> str:
        """How many of the expected stages have published, as `3 of 14 stages`."""
        return f"{len(self.expected) - len(self.unpublished)} of {len(self.expected)} stages"

    def as_document(self) -> dict[str, Any] | None:
        """The same for JSON; None where nothing states what is expected."""
        if not self.expected:
            return None
        return {
            "published": len(self.expected) - len(self.unpublished),
            "expected": len(self.expected),
            "failed": [{"stage": state.stage, "reason": state.failure} for state in self.failed],
            "missing": list(self.missing),
        }


def progress_of(manifest: Manifest) -> Progress:
    """What the manifest says of its stages."""
    return Progress(
        manifest.expected,
        tuple(state for state in manifest.stages if state.failure is None),
        tuple(state for state in manifest.stages if state.failure is not None),
        not_in(manifest.expected, manifest.stages),
    )


def not_in(names: Sequence[str], states: Sequence[StageState]) -> tuple[str, ...]:
    """Those of `names` that no state is of."""
    known = {state.stage for state in states}
    return tuple(name for name in names if name not in known)
