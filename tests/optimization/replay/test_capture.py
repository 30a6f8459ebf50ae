"""A captured dispatch as it is read: both layouts, what is wrong with one, and what cannot be used at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.optimization.replay.capture import Finding, read_capture
from tests.optimization.replay.made import BASE, isolated, kerncap, region, slot


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
