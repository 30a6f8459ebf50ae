"""The compiler's record: resources, loops that were unrolled, and loops that could not be."""

from dataclasses import replace

import pytest

from aaco_pipeline.optimization.guards.resources import UnrolledLoop
from aaco_pipeline.resources.toolchains.amdgpu.compiling import (
    SOURCE_NAME,
    disagreements,
    kernel_resources,
    read_remarks,
)
from tests.resources.toolchains.amdgpu.code_objects import SYMBOLS, kept


def test_resources_and_unrolled_loops() -> None:
    remarks = read_remarks(kept("star-gfx942-8", "yaml"), "star", SOURCE_NAME)
    assert remarks.usage == {
        **{"NumSGPR": 43, "NumVGPR": 128, "NumAGPR": 0, "ScratchSize": 400, "DynamicStack": 0},
        **{"Occupancy": 4, "SGPRSpill": 0, "VGPRSpill": 119, "BytesLDS": 0},
    }
    assert remarks.unrolled == (UnrolledLoop(15, 5, 4, True), UnrolledLoop(12, 3, 8, False))
    assert remarks.failed == ()


def test_a_loop_that_could_not_be_unrolled() -> None:
    name = "lookup-gfx90a-1"
    remarks = read_remarks(kept(name, "yaml"), SYMBOLS[name], SOURCE_NAME)
    (failed,) = remarks.failed
    assert (failed.line, failed.column) == (14, 3)
    assert failed.message.startswith("loop not unrolled: the optimizer was unable")
    assert remarks.unrolled == ()


def test_loops_of_other_files_and_functions_are_not_reported() -> None:
    record = kept("star-gfx942-8", "yaml")
    assert read_remarks(record, "star", "other.hip").unrolled == ()
    with pytest.raises(ValueError, match=r"does not state NumSGPR, .* of other"):
        read_remarks(record, "other", SOURCE_NAME)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"", "does not state"),
        (b"--- [", "cannot be read"),
        (b"--- !Analysis\nArgs: 1\nFunction: k\n", "cannot be read"),
    ],
)
def test_what_is_no_record_is_one_error(record: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_remarks(record, "k", SOURCE_NAME)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("sgprs", "SGPRs 44, by the compiler 43"),
        ("vgprs", "VGPRs 129, by the compiler 128"),
        ("agprs", "AGPRs 1, by the compiler 0"),
        ("scratch_bytes", "scratch bytes 401, by the compiler 400"),
        ("sgpr_spills", "SGPR spills 1, by the compiler 0"),
        ("vgpr_spills", "VGPR spills 120, by the compiler 119"),
        ("lds_bytes", "LDS bytes 1, by the compiler 0"),
    ],
)
def test_a_figure_that_is_not_the_compilers_is_reported(figure: str, words: str) -> None:
    resources, _ = kernel_resources(kept("star-gfx942-8"), "star")
    remarks = read_remarks(kept("star-gfx942-8", "yaml"), "star", SOURCE_NAME)
    wrong = replace(resources, **{figure: getattr(resources, figure) + 1})
    assert words in disagreements(wrong, remarks)
    assert "occupancy 4, by the compiler 3" in disagreements(
        resources, replace(remarks, usage={**remarks.usage, "Occupancy": 3})
    )
