"""Refuse a candidate whose compiled kernel needs more AMD GPU resources than the baseline's, from static figures.

The figures come from a compiler (`aaco_pipeline.resources.toolchains.amdgpu`); they are not a statement about speed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import polars as pl

from aaco_pipeline.hardware.architecture import Architecture
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.occupancy import occupancy
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Launch

_GUARD: Final = "resources"
#: Name of the guard against unchanged machine code.
NO_EFFECT: Final = "no_effect"


@dataclass(frozen=True)
class KernelResources:
    """Resources of one compiled kernel on one architecture.

    Registers and spills are per lane of a wavefront (`sgprs` per wavefront); `vgprs` includes `agprs`, the accumulation
    registers, if both share one register file (gfx90a and later). `lds_bytes` is static, per workgroup; `scratch_bytes`
    per work-item. `max_workgroup_work_items` is the largest workgroup that the kernel was compiled for. `code_sha256`
    covers the machine code and everything that it references, without addresses.
    """

    architecture: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    dynamic_stack: bool
    max_workgroup_work_items: int
    wavefront_size: int
    code_bytes: int
    code_sha256: str


@dataclass(frozen=True)
class UnrolledLoop:
    """A loop that the compiler unrolled by `factor`, or removed (`completely`), with its source position."""

    line: int
    column: int
    factor: int
    completely: bool


@dataclass(frozen=True)
class FailedTransformation:
    """A loop that was not transformed as a pragma requested, with the compiler's message (`-Wpass-failed`)."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel on one architecture: its resources, and the transformations of its loops."""

    resources: KernelResources
    unrolled: tuple[UnrolledLoop, ...] = ()
    failed: tuple[FailedTransformation, ...] = ()


@dataclass(frozen=True)
class Permission:
    """Permission to use more resources than the baseline, or to change them.

    `lower_occupancy` is the user's permission for fewer resident wavefronts. `work_items` is the largest workgroup that
    the candidate declares. `unrolled` is the line of a loop in the baseline and the candidate's declared unroll factor.
    Fields are null if not declared.
    """

    lower_occupancy: bool = False
    work_items: int | None = None
    unrolled: tuple[int, int] | None = None


def waves_per_simd(resources: KernelResources) -> int | None:
    """Count the wavefronts that registers and static LDS keep resident on a SIMD, in workgroups of the largest size.

    Registers are counted per wavefront, as compilers do: `resident_wavefronts` checks whether complete workgroups fit.
    None if the architecture's limits are unknown, or if no wavefront fits.
    """
    if (known := _with_limits(resources)) is None or known.occupancy is None:
        return None
    simds = known.occupancy.shared_by_simds.whole
    one_wave = _resident(resources, known, resources.wavefront_size, 0)
    by_lds = _resident(resources, known, resources.max_workgroup_work_items, resources.lds_bytes, registers=False)
    return None if one_wave is None or by_lds is None else min(one_wave, by_lds) // simds


def resident_wavefronts(resources: KernelResources, launch: Launch) -> int | None:
    """Count the wavefronts of complete workgroups that stay resident on a compute unit; None if unknown."""
    lds_bytes = resources.lds_bytes + launch.dynamic_lds_bytes
    known = _with_limits(resources)
    return None if known is None else _resident(resources, known, _work_items(launch), lds_bytes)


def check_architectures(
    before: Mapping[str, CompiledKernel],
    after: Mapping[str, CompiledKernel],
    launches: tuple[Launch, Launch],
    permission: Permission,
) -> None:
    """Accept a candidate that passes on each architecture and has different machine code on at least one.

    Raises Refused like `check_resources` and `check_loops`. `launches` are the baseline's and the candidate's.
    """
    unchanged = []
    for name, one in after.items():
        try:
            check_loops(before[name], one, permission.unrolled)
            check_resources(before[name].resources, one.resources, launches, permission)
        except Refused as refused:
            if refused.guard != NO_EFFECT or before[name].resources.code_sha256 != one.resources.code_sha256:
                raise
            unchanged.append(refused)
    if unchanged and len(unchanged) == len(after):
        raise Refused(NO_EFFECT, "; ".join(one.reason for one in unchanged))


def check_resources(
    before: KernelResources, after: KernelResources, launches: tuple[Launch, Launch], permission: Permission
) -> None:
    """Accept a candidate that takes no more than the baseline.

    Args:
        before: the baseline, of the same architecture, compiler and flags.
        after: the candidate.
        launches: how the baseline and the candidate are launched: their workgroups and dynamic LDS are looked at.
        permission: what the candidate may change.

    Raises:
        Refused: `no_effect` when the same machine code is launched in the same way; `resources` when registers are
            spilled that were not, scratch memory grows, LDS is beyond what a workgroup can have, the largest workgroup
            is neither the one that it was nor the one that was declared, or occupancy falls.
        ValueError: the two are of different architectures.
    """
    if before.architecture != after.architecture:
        raise ValueError(f"{before.architecture} is compared with {after.architecture}")
    where = f"on {after.architecture}"
    if before.code_sha256 == after.code_sha256 and launches[0] == launches[1]:
        raise Refused(NO_EFFECT, f"the machine code {where} is the baseline's, {after.code_bytes} bytes")
    _check_spills(before, after, where)
    _check_lds(after, launches[1], where)
    _check_workgroup(before, after, launches[1], permission.work_items, where)
    if not permission.lower_occupancy:
        _check_occupancy((before, launches[0]), (after, launches[1]), where)


def check_loops(before: CompiledKernel, after: CompiledKernel, unrolled: tuple[int, int] | None) -> None:
    """Accept a candidate whose loops were transformed as its pragmas request.

    Raises Refused (`no_effect`) if the compiler reports more failed loops than for the baseline; or if it does not
    report that the loop at a line of the baseline, now possibly after a pragma, was unrolled by the factor or removed.
    """
    where = f"on {after.resources.architecture}"
    if len(after.failed) > len(before.failed):
        one = after.failed[-1]
        raise Refused(NO_EFFECT, f"line {one.line} {where}: {one.message}")
    if unrolled is None:
        return
    line, factor = unrolled
    there = [one for one in after.unrolled if one.line in (line, line + 1)]
    if not any(one.completely or one.factor == factor for one in there):
        did = ", ".join(f"by {one.factor}" for one in there) or "not at all"
        raise Refused(NO_EFFECT, f"the loop of line {line} was to be unrolled by {factor}, and was {did} {where}")


def _check_spills(before: KernelResources, after: KernelResources, where: str) -> None:
    for words, was, now in (
        ("VGPR spills", before.vgpr_spills, after.vgpr_spills),
        ("SGPR spills", before.sgpr_spills, after.sgpr_spills),
        ("bytes of scratch memory of a work-item", before.scratch_bytes, after.scratch_bytes),
    ):
        if now > was:
            raise Refused(_GUARD, f"{now} {words} {where}, where the baseline has {was}")
    if after.dynamic_stack and not before.dynamic_stack:
        raise Refused(_GUARD, f"a stack of unknown size {where}, where the baseline has none")


def _check_lds(after: KernelResources, launch: Launch, where: str) -> None:
    if (known := _with_limits(after)) is None or known.occupancy is None:
        return
    used, limit = after.lds_bytes + launch.dynamic_lds_bytes, known.occupancy.lds.bytes.whole
    if used > limit:
        raise Refused(_GUARD, f"{used} bytes of LDS of a workgroup {where}, of which there are {limit}")


def _check_workgroup(
    before: KernelResources, after: KernelResources, launch: Launch, declared: int | None, where: str
) -> None:
    was, now = before.max_workgroup_work_items, after.max_workgroup_work_items
    if now not in (was, declared):
        said = "nothing else was declared" if declared is None else f"{declared} was declared"
        compiled = f"compiled for workgroups of up to {now} work-items {where}"
        raise Refused(_GUARD, f"{compiled}, where the baseline's is {was} and {said}")
    if _work_items(launch) > now:
        asked = f"launched with workgroups of {_work_items(launch)} work-items"
        raise Refused(_GUARD, f"{asked}, compiled for up to {now} {where}")


def _check_occupancy(
    baseline: tuple[KernelResources, Launch], candidate: tuple[KernelResources, Launch], where: str
) -> None:
    (before, _), (after, launch) = baseline, candidate
    for words, was, now in (
        ("wavefronts per SIMD", waves_per_simd(before), waves_per_simd(after)),
        (
            f"resident wavefronts per compute unit in workgroups of {_work_items(launch)} work-items",
            resident_wavefronts(*baseline),
            resident_wavefronts(*candidate),
        ),
    ):
        if was is not None and (now is None or now < was):
            registers = f"{before.vgprs} to {after.vgprs} VGPRs, {before.sgprs} to {after.sgprs} SGPRs"
            lds = f"{before.lds_bytes} to {after.lds_bytes} bytes of static LDS"
            raise Refused(_GUARD, f"occupancy falls from {was} to {now or 0} {words} {where}: {registers}, {lds}")


def _with_limits(resources: KernelResources) -> Architecture | None:
    known = architecture(resources.architecture)
    return known if known is not None and known.occupancy is not None else None


def _work_items(launch: Launch) -> int:
    return prod(launch.block)


def _resident(
    resources: KernelResources, known: Architecture, work_items: int, lds_bytes: int, *, registers: bool = True
) -> int | None:
    """Count the wavefronts resident on the units that share a workgroup, by the rules of `hardware.occupancy`."""
    limits = known.occupancy
    assert limits is not None, "the caller has looked"
    frame = pl.DataFrame(
        {
            # Only the total reservation is known; its parts are rounded to different multiples.
            "arch_vgprs": resources.vgprs if registers else 0,
            "accum_vgprs": 0,
            "sgprs": resources.sgprs if registers else 0,
            "lds_bytes": lds_bytes,
            "workgroup_work_items": work_items,
            "wavefront_size": resources.wavefront_size,
            "grid_work_items": None,
            "compute_units": None,
        },
        schema_overrides={"grid_work_items": pl.Int64, "compute_units": pl.Int64},
    )
    groups = occupancy(frame, known).get_column("workgroups_per_cu").item()
    return None if groups is None else groups * -(-work_items // resources.wavefront_size)
