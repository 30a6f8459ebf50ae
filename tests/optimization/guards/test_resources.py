"""Each resource that grows is refused by a sentence with both figures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.resources import (
    CompiledKernel,
    FailedTransformation,
    KernelResources,
    Permission,
    UnrolledLoop,
    check_architectures,
    check_loops,
    check_resources,
    resident_wavefronts,
    waves_per_simd,
)
from aaco_pipeline.optimization.targets import Launch

LAUNCH = Launch((1024, 1, 1), (256, 1, 1))
NOTHING = Permission()
#: A stencil as it is and unrolled by 2, by clang 19.1.7.
REGISTERS: Any = {"vgprs": 56, "agprs": 0, "sgprs": 31, "vgpr_spills": 0, "sgpr_spills": 0}
MEMORY: Any = {"lds_bytes": 0, "scratch_bytes": 0, "dynamic_stack": False}
CODE: Any = {"max_workgroup_work_items": 1024, "wavefront_size": 64, "code_bytes": 1684, "code_sha256": "before"}
BEFORE = KernelResources("gfx942", **REGISTERS, **MEMORY, **CODE)
AFTER = replace(BEFORE, code_bytes=1700, code_sha256="after")


def refusal(
    after: KernelResources,
    launches: tuple[Launch, Launch] = (LAUNCH, LAUNCH),
    permission: Permission = NOTHING,
    before: KernelResources = BEFORE,
) -> tuple[str, str] | None:
    try:
        check_resources(before, after, launches, permission)
    except Refused as refused:
        return refused.guard, refused.reason
    return None


def test_what_takes_no_more_passes() -> None:
    assert refusal(AFTER) is None
    assert refusal(replace(AFTER, vgprs=64, sgprs=96, lds_bytes=8192)) is None


def test_the_stencil_unrolled_by_two_is_refused_for_its_occupancy_unless_that_is_taken() -> None:
    after = replace(AFTER, vgprs=94, sgprs=44)
    said = "occupancy falls from 8 to 5 wavefronts per SIMD on gfx942: 56 to 94 VGPRs, 31 to 44 SGPRs"
    assert refusal(after) == ("resources", f"{said}, 0 to 0 bytes of static LDS")
    assert refusal(after, permission=Permission(lower_occupancy=True)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vgpr_spills": 2}, "2 VGPR spills on gfx942, where the baseline has 0"),
        ({"sgpr_spills": 1}, "1 SGPR spills on gfx942, where the baseline has 0"),
        ({"scratch_bytes": 12}, "12 bytes of scratch memory of a work-item on gfx942, where the baseline has 0"),
        ({"dynamic_stack": True}, "a stack of unknown size on gfx942, where the baseline has none"),
        ({"lds_bytes": 65540}, "65540 bytes of LDS of a workgroup on gfx942, of which there are 65536"),
        (
            {"max_workgroup_work_items": 256},
            "compiled for workgroups of up to 256 work-items on gfx942, where the baseline's is 1024 and nothing else "
            "was declared",
        ),
        (
            {"lds_bytes": 40960},
            "occupancy falls from 8 to 4 wavefronts per SIMD on gfx942: 56 to 56 VGPRs, 31 to 31 SGPRs, 0 to 40960 "
            "bytes of static LDS",
        ),
        (
            {"sgprs": 112},
            "occupancy falls from 8 to 7 wavefronts per SIMD on gfx942: 56 to 56 VGPRs, 31 to 112 SGPRs, 0 to 0 bytes "
            "of static LDS",
        ),
    ],
)
def test_what_grows_is_refused_with_both_figures(change: Mapping[str, Any], words: str) -> None:
    assert refusal(replace(AFTER, **change)) == ("resources", words)


def test_spills_that_were_there_may_stay_and_not_grow() -> None:
    spilling = replace(BEFORE, vgpr_spills=3, scratch_bytes=16)
    assert refusal(replace(spilling, code_sha256="after"), before=spilling) is None
    assert refusal(replace(spilling, vgpr_spills=2, code_sha256="after"), before=spilling) is None
    assert refusal(replace(spilling, vgpr_spills=4, code_sha256="after"), before=spilling) is not None


def test_the_same_machine_code_has_no_effect_unless_it_is_launched_otherwise() -> None:
    same = replace(BEFORE, code_bytes=1684)
    assert refusal(same) == ("no_effect", "the machine code on gfx942 is the baseline's, 1684 bytes")
    assert refusal(same, (LAUNCH, replace(LAUNCH, block=(128, 1, 1)))) is None


def test_a_declared_workgroup_may_be_another_one_that_holds_the_launch() -> None:
    after = replace(AFTER, max_workgroup_work_items=256)
    assert refusal(after, permission=Permission(work_items=256)) is None
    assert refusal(AFTER, permission=Permission(work_items=256)) is None
    said = refusal(after, permission=Permission(work_items=512))
    assert said is not None and said[1].endswith("where the baseline's is 1024 and 512 was declared")
    large = replace(LAUNCH, block=(16, 16, 2))
    said = refusal(after, (LAUNCH, large), Permission(work_items=256))
    assert said == ("resources", "launched with workgroups of 512 work-items, compiled for up to 256 on gfx942")


def test_all_of_the_lds_may_be_taken() -> None:
    full = replace(AFTER, lds_bytes=65536)
    assert refusal(full, permission=Permission(lower_occupancy=True)) is None


def test_dynamic_lds_counts_in_what_a_workgroup_takes() -> None:
    large = replace(LAUNCH, dynamic_lds_bytes=65536)
    said = refusal(replace(AFTER, lds_bytes=4), (LAUNCH, large))
    assert said == ("resources", "65540 bytes of LDS of a workgroup on gfx942, of which there are 65536")
    said = refusal(AFTER, (LAUNCH, replace(LAUNCH, dynamic_lds_bytes=32768)))
    assert said is not None
    assert said[1].startswith("occupancy falls from 32 to 8 resident wavefronts per compute unit in workgroups of 256")


def test_occupancy_is_of_whole_workgroups_where_they_are_launched() -> None:
    """72 VGPRs let 7 wavefronts stay on each of four SIMDs: 28, of which 16 are a workgroup of 1,024 work-items."""
    one = replace(BEFORE, vgprs=72)
    assert waves_per_simd(one) == 7
    assert resident_wavefronts(one, LAUNCH) == 28
    assert resident_wavefronts(one, replace(LAUNCH, block=(1024, 1, 1))) == 16
    said = refusal(replace(BEFORE, code_sha256="x"), (LAUNCH, replace(LAUNCH, block=(192, 1, 1))))
    assert said is not None
    assert said[1].startswith("occupancy falls from 32 to 30 resident wavefronts per compute unit in workgroups of 192")


def test_accumulation_registers_count_among_the_vector_registers() -> None:
    assert waves_per_simd(replace(BEFORE, vgprs=308, agprs=256, max_workgroup_work_items=256)) == 1


def test_of_an_unknown_architecture_occupancy_is_not_known_and_spills_are() -> None:
    before, after = (replace(one, architecture="gfx000") for one in (BEFORE, AFTER))
    assert waves_per_simd(before) is None
    assert resident_wavefronts(before, LAUNCH) is None
    assert refusal(after, before=before) is None
    assert refusal(replace(after, vgpr_spills=1), before=before) is not None
    with pytest.raises(ValueError, match="gfx942 is compared with gfx000"):
        check_resources(BEFORE, after, (LAUNCH, LAUNCH), NOTHING)


FAILED = FailedTransformation(12, 3, "loop not unrolled")


@pytest.mark.parametrize(
    ("unrolled", "passes"),
    [
        ((UnrolledLoop(12, 3, 4, False),), True),
        ((UnrolledLoop(13, 3, 4, False),), True),
        ((UnrolledLoop(13, 3, 8, True),), True),
        ((UnrolledLoop(13, 3, 2, False),), False),
        ((UnrolledLoop(20, 3, 4, False),), False),
        ((), False),
    ],
)
def test_the_factor_is_confirmed_by_the_compiler(unrolled: tuple[UnrolledLoop, ...], passes: bool) -> None:
    before, after = CompiledKernel(BEFORE), CompiledKernel(AFTER, unrolled)
    check_loops(before, after, None)
    if passes:
        check_loops(before, after, (12, 4))
        return
    why = r"^no_effect: the loop of line 12 was to be unrolled by 4, and was .* on gfx942$"
    with pytest.raises(Refused, match=why):
        check_loops(before, after, (12, 4))


def test_a_loop_that_the_compiler_could_not_unroll_has_no_effect() -> None:
    with pytest.raises(Refused, match=r"^no_effect: line 12 on gfx942: loop not unrolled$"):
        check_loops(CompiledKernel(BEFORE), CompiledKernel(AFTER, failed=(FAILED,)), None)
    check_loops(CompiledKernel(BEFORE, failed=(FAILED,)), CompiledKernel(AFTER, failed=(FAILED,)), None)


def on(one: KernelResources, architecture: str) -> CompiledKernel:
    return CompiledKernel(replace(one, architecture=architecture))


def test_a_candidate_may_change_one_architecture_alone() -> None:
    before = {name: on(BEFORE, name) for name in ("gfx90a", "gfx942")}
    changed = {"gfx90a": on(BEFORE, "gfx90a"), "gfx942": on(AFTER, "gfx942")}
    check_architectures(before, changed, (LAUNCH, LAUNCH), NOTHING)
    with pytest.raises(Refused, match=r"^no_effect: the machine code on gfx90a .*; the machine code on gfx942 "):
        check_architectures(before, before, (LAUNCH, LAUNCH), NOTHING)
    worse = {**changed, "gfx942": on(replace(AFTER, vgpr_spills=1), "gfx942")}
    with pytest.raises(Refused, match=r"^resources: 1 VGPR spills on gfx942"):
        check_architectures(before, worse, (LAUNCH, LAUNCH), NOTHING)


def test_a_loop_that_was_not_unrolled_refuses_code_that_changed() -> None:
    before = {name: on(BEFORE, name) for name in ("gfx90a", "gfx942")}
    after = {name: on(AFTER, name) for name in before}
    why = r"^no_effect: the loop of line 3 was to be unrolled by 2, and was not at all on gfx90a"
    with pytest.raises(Refused, match=why):
        check_architectures(before, after, (LAUNCH, LAUNCH), Permission(unrolled=(3, 2)))
