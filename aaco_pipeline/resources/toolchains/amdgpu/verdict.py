"""The static verdict: a kernel before and after a change, really compiled for each architecture.

Figures are stored as plain values in a journal, so that a decision can be repeated on a host without a compiler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from aaco_pipeline.optimization.guards.resources import (
    CompiledKernel,
    FailedTransformation,
    KernelResources,
    Permission,
    UnrolledLoop,
    check_architectures,
    waves_per_simd,
)
from aaco_pipeline.optimization.targets import Launch
from aaco_pipeline.resources.toolchains.amdgpu.compiling import StaticBuild, compile_kernel, why_no_kernel
from aaco_pipeline.resources.toolchains.amdgpu.finding import ARCHITECTURES, Missing, Toolchain, find_toolchain

Figures = Mapping[str, Mapping[str, Any]]
"""By architecture, the figures of one compiled kernel."""


class StaticVerdict:
    """Compiles sources with one toolchain, in a folder of the caller's, and compares their resources.

    `launch` is the harness's launch of the kernel, `flags` are the user's own. With `lower_occupancy_allowed`, fewer
    resident wavefronts are not a reason to refuse.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        folder: Path,
        launch: Launch,
        *,
        flags: Sequence[str] = (),
        lower_occupancy_allowed: bool = False,
    ) -> None:
        self._toolchain = toolchain
        self._folder = folder
        self._launch = launch
        self._flags = tuple(flags)
        self._lower_occupancy_allowed = lower_occupancy_allowed

    def figures(self, source: bytes, kernel: str) -> dict[str, dict[str, Any]]:
        """Return the compiled kernel's resources by architecture, as plain values. Refused (`compile`, `kernel`)."""
        return {
            name: _recorded(compile_kernel(self._toolchain, source, kernel, name, self._folder, flags=self._flags))
            for name in ARCHITECTURES
        }

    def check(
        self,
        before: Figures,
        after: Figures,
        block: tuple[int, int, int] | None = None,
        parameters: Mapping[str, int | str] | None = None,
    ) -> None:
        """Accept a candidate that takes no more than the baseline; Refused (`resources`, `no_effect`) otherwise.

        `block` is the candidate's workgroup, if it differs. Of its `parameters`, the `line` and `factor` of an unrolled
        loop and the `work_items` that it is compiled for are used.
        """
        candidate = self._launch if block is None else replace(self._launch, block=block)
        stated = {} if parameters is None else parameters
        line, factor = _whole(stated.get("line")), _whole(stated.get("factor"))
        permission = Permission(
            lower_occupancy=self._lower_occupancy_allowed,
            work_items=_whole(stated.get("work_items")),
            unrolled=None if line is None or factor is None else (line, factor),
        )
        check_architectures(_kernels(before), _kernels(after), (self._launch, candidate), permission)


def static_verdict(
    folder: Path, launch: Launch, *, flags: Sequence[str] = (), lower_occupancy_allowed: bool = False
) -> StaticVerdict | Missing:
    """Return the static verdict with this host's first working toolchain, or the reason why there is none.

    `folder` belongs to the caller and receives compiled files.
    """
    found = find_toolchain()
    if isinstance(found, Missing):
        return found
    for architecture in ARCHITECTURES:
        if (refusal := why_no_kernel(found, architecture, folder, flags)) is not None:
            return Missing(f"{' '.join(found.compiler)} compiles no empty kernel: {refusal}")
    return StaticVerdict(found, folder, launch, flags=flags, lower_occupancy_allowed=lower_occupancy_allowed)


def _recorded(build: StaticBuild) -> dict[str, Any]:
    return {
        **asdict(build.resources),
        "waves_per_simd": waves_per_simd(build.resources),
        "compiler": build.compiler,
        "flags": list(build.flags),
        "unrolled": [asdict(one) for one in build.remarks.unrolled],
        "failed": [asdict(one) for one in build.remarks.failed],
        "disagreements": list(build.disagreements),
    }


def _kernels(figures: Figures) -> dict[str, CompiledKernel]:
    return {
        name: CompiledKernel(
            KernelResources(**{each.name: one[each.name] for each in fields(KernelResources)}),
            tuple(UnrolledLoop(**each) for each in one["unrolled"]),
            tuple(FailedTransformation(**each) for each in one["failed"]),
        )
        for name, one in figures.items()
    }


def _whole(value: int | str | None) -> int | None:
    return value if isinstance(value, int) else None
