"""The calls of a harness as the search's check of correctness: two fresh processes, and a seed that nobody knew."""

from dataclasses import asdict

from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.loop.launching import launch_of
from aaco_pipeline.optimization.loop.means import Builder, Record, Version


class HarnessChecker:
    """Sizes and distributions of a harness, listed and drawn, on the target that builds."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def check(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """What the candidate passed. Refused when it is wrong; UsageError when the baseline or the harness is."""
        return self._checked(builder, baseline, version, seed, is_deep=False)

    def check_deeply(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """As `check`, at many drawn sizes and at large ones."""
        return self._checked(builder, baseline, version, seed, is_deep=True)

    def _checked(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool
    ) -> Record:
        target, size = builder.target, self._harness.timed_size(builder.target.name)
        if version.block is not None:
            launch_of(self._harness, size, version.block)
        before, after = builder(baseline or version), builder(version)
        with target.start(before) as one, target.start(after) as other:
            checked = check(
                self._harness,
                one,
                other,
                seed=seed,
                bit_exact=version.bit_exact and baseline is not None,
                timed_size=size,
                block=version.block,
                is_deep=is_deep,
            )
        return asdict(checked)
