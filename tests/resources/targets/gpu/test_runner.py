"""Placement of buffers and bands, whatever the sizes and the seed."""

from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.resources.targets.gpu.runner import ALIGNMENT, BAND_BYTES, arrange

SIZES = st.lists(st.integers(0, 1 << 22), max_size=6)


@given(SIZES, st.integers(0, 2**63))
def test_buffers_and_bands_fill_the_arena_without_overlap(sizes: list[int], seed: int) -> None:
    arena = arrange(sizes, seed)
    pieces = sorted([*zip(arena.offsets, sizes, strict=True), *arena.bands])
    end = 0
    for offset, size in pieces:
        assert offset == end
        end += size
    assert end == arena.size
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets)
    assert all(size >= BAND_BYTES for _, size in arena.bands)
    assert len(arena.bands) == len(sizes) + 1


@given(SIZES, st.integers(0, 2**63))
def test_a_seed_is_a_layout(sizes: list[int], seed: int) -> None:
    assert arrange(sizes, seed) == arrange(sizes, seed)


def test_layouts_differ() -> None:
    found = [arrange((4096, 4096, 4096), seed) for seed in range(20)]
    assert len({arena.offsets for arena in found}) == 20
    assert {arena.decoys for arena in found} == {0, 1, 2, 3}
