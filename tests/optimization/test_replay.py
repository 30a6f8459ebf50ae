"""A captured dispatch: both layouts, defects, reservations of its addresses, and the difference of two memories."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.optimization import replay as module
from aaco_pipeline.optimization.replay import Finding, Region, plan, read_capture, region_differences
from tests.optimization.captured import BASE, isolated, kerncap, region, slot


def faults(folder: Path) -> list[str]:
    return [one.what for one in read_capture(folder).findings if one.severity == "fault"]


def rewritten(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_both_layouts_are_read(tmp_path: Path) -> None:
    plain, named = read_capture(isolated(tmp_path / "a")), read_capture(kerncap(tmp_path / "b"))
    assert (plain.layout, named.layout) == ("rocm-perf-lab", "kerncap")
    assert plain.workgroups == named.workgroups == (4, 1, 1)
    assert (plain.slots, plain.registers) == (None, {"sgprs": None, "vgprs": None})
    assert named.registers == {"sgprs": 16, "vgprs": 8}
    assert [(one.slot.name, one.address - BASE, one.region) for one in named.pointers()] == [
        ("x", 0, named.regions[0]),
        ("y", 0x10_0040, named.regions[1]),
    ]
    assert not named.findings
    assert [one.severity for one in plain.findings] == ["note"]  # its arguments are not stated


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda at: (at / f"memory/region_{BASE:x}.bin").unlink(), "is missing: the content of 4,096 bytes"),
        (lambda at: (at / f"memory/region_{BASE:x}.bin").write_bytes(b"short"), "has 5 bytes, its region 4,096"),
        (lambda at: (at / "kernarg.bin").write_bytes(bytes(20)), "kernarg.bin has 20 bytes"),
        (lambda at: (at / "kernel.hsaco").write_bytes(b"another"), "another one than was loaded"),
        (lambda at: (at / "kernel.hsaco").unlink(), "there is no code to run"),
        (lambda at: (at / "capture_complete").unlink(), "had not finished writing"),
        (lambda at: rewritten(at / "metadata.json", kernarg_segment_size_meta=32), "states 32 bytes of arguments"),
        (
            lambda at: rewritten(at / "metadata.json", kernarg_slots=[slot(20, 8, "global_buffer", "z")]),
            "argument z ends behind",
        ),
        (lambda at: rewritten(at / "memory_regions.json", regions=[]), "the memory was not captured"),
        (
            lambda at: rewritten(at / "memory_regions.json", regions=[region(BASE, 4096)]),
            "argument y points to 0x7f1234100040, which no region holds",
        ),
    ],
)  # fmt: skip
def test_what_makes_it_another_dispatch_is_a_fault(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    folder = kerncap(tmp_path / "capture")
    spoil(folder)
    assert any(said in one for one in faults(folder)), faults(folder)


def test_overlapping_regions_are_noted_once_each(tmp_path: Path) -> None:
    regions = [region(BASE, 0x9000), region(BASE + 0x1000, 0x1000), region(BASE + 0x8000, 0x1000)]
    found = read_capture(isolated(tmp_path / "capture", regions)).findings
    assert Finding("note", f"the regions at {BASE:#x} and {BASE + 0x8000:#x} overlap") in found
    assert sum("overlap" in one.what for one in found) == 2


def test_a_pointer_belongs_to_the_smallest_region_that_holds_it(tmp_path: Path) -> None:
    found = read_capture(isolated(tmp_path / "c", [region(BASE, 0x9000), region(BASE + 0x1000, 0x1000)]))
    assert found.holds(BASE + 0x1800) == found.regions[1]
    assert found.holds(BASE + 0x2000) == found.regions[0]
    assert found.holds(BASE + 0x9000) is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("dispatch.json", "{", "is no JSON"),
        ("dispatch.json", "[" * 100_000, "is no JSON"),
        ("dispatch.json", "[]", "document"),
        ("dispatch.json", '{"mangled_name": "k", "grid": [1, 1], "block": [1, 1, 1], "kernarg_size": 0}', "grid"),
        ("dispatch.json", '{"mangled_name": "k", "grid": [0, 1, 1], "block": [1, 1, 1], "kernarg_size": 0}', "nothing"),
        ("memory_regions.json", '{"regions": [{"base": -4096, "size": 4096}]}', "regions.0.base"),
        ("memory_regions.json", '{"regions": [{"base": 4096, "size": 1e30}]}', "regions.0.size"),
        ("memory_regions.json", '{"regions": [{"base": "4096", "size": 1}]}', "regions.0.base"),
        ("metadata.json", '{"kernarg_slots": 3}', "kernarg_slots"),
    ],
)
def test_what_is_no_capture_is_one_line_that_names_the_file(tmp_path: Path, name: str, content: str, said: str) -> None:
    folder = kerncap(tmp_path / "capture")
    (folder / name).write_text(content)
    with pytest.raises(CaptureError, match=f"{name}: .*{said}") as told:
        read_capture(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["dispatch.json", "kernarg.bin", "memory_regions.json"])
def test_a_link_or_nothing_in_a_files_place_is_refused(tmp_path: Path, name: str) -> None:
    folder = kerncap(tmp_path / "capture")
    (folder / name).unlink()
    with pytest.raises(CaptureError, match=name):
        read_capture(folder)
    (folder / name).symlink_to("/etc/hostname")
    with pytest.raises(CaptureError, match=name):
        read_capture(folder)


REGIONS = st.lists(
    st.builds(Region, base=st.integers(1, 1 << 24), size=st.integers(1, 1 << 16)), min_size=1, max_size=30
)


def test_two_regions_in_a_page_are_one_reservation() -> None:
    near = [Region(base=0x1000, size=16), Region(base=0x1800, size=16)]
    assert [(one.base, one.size, one.regions) for one in plan(near)] == [(0x1000, 0x1000, tuple(near))]


def test_a_granule_of_the_driver_joins_what_pages_keep_apart() -> None:
    apart = [Region(base=0x10_0000, size=4096), Region(base=0x14_0000, size=4096)]
    assert len(plan(apart)) == 2
    assert [(one.base, one.size) for one in plan(apart, 2 << 20)] == [(0, 2 << 20)]


@given(REGIONS, st.sampled_from([4096, 65536, 2 << 20]))
def test_every_byte_is_reserved_once(regions: list[Region], granularity: int) -> None:
    planned = plan(regions, granularity)
    assert sorted(one.base for each in planned for one in each.regions) == sorted(one.base for one in regions)
    for one in planned:
        assert one.base % granularity == one.size % granularity == 0
        assert all(one.base <= region.base and region.end <= one.end for region in one.regions)
        # Nothing more than its regions need.
        assert min(region.base for region in one.regions) - one.base < granularity
        assert one.end - max(region.end for region in one.regions) < granularity
    assert all(before.end < after.base for before, after in pairwise(planned))


@pytest.mark.parametrize("granularity", [0, 1024, 6000, -4096])
def test_a_granularity_that_is_none_is_refused(granularity: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        plan([Region(base=4096, size=1)], granularity)


def test_what_was_written_is_found_with_its_place_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1024)  # several chunks
    sides = [isolated(tmp_path / name) for name in "ab"]
    values = np.zeros(1024, np.float32)
    values[[700, 1000]] = 2.5, -4.0
    values[5] = np.nan
    (sides[1] / f"memory/region_{BASE:x}.bin").write_bytes(values.tobytes())
    found = region_differences(read_capture(sides[0]), read_capture(sides[1]), "float32")
    assert [(one.state, one.elements_differing, one.greatest_difference) for one in found] == [
        ("differs", 3, 4.0),
        ("equal", 0, None),
    ]
    assert found[0].first_offset == 5 * 4 + 2
    assert found[0].bytes_differing == int(np.count_nonzero(values.view(np.uint8)))
    plain = region_differences(read_capture(sides[0]), read_capture(sides[1]))
    assert plain[0].elements_differing is None


def test_regions_without_a_counterpart_are_reported(tmp_path: Path) -> None:
    first = isolated(tmp_path / "a", [region(BASE, 64), region(BASE + 4096, 64), region(BASE + 8192, 64)])
    second = isolated(tmp_path / "b", [region(BASE, 65), region(BASE + 4096, 64), region(BASE + 12288, 64)])
    (second / f"memory/region_{BASE + 4096:x}.bin").unlink()
    found = region_differences(read_capture(first), read_capture(second))
    assert [one.state for one in found] == ["other size", "not captured", "only in first", "only in second"]


def test_a_type_that_is_none_is_refused(tmp_path: Path) -> None:
    one = read_capture(isolated(tmp_path / "a"))
    with pytest.raises(UsageError, match="float32"):
        region_differences(one, one, "object")
