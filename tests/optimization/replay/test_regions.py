"""What a kernel wrote, as the difference of two captures' memory."""

from pathlib import Path

import numpy as np
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.replay import regions as module
from aaco_pipeline.optimization.replay.capture import read_capture
from aaco_pipeline.optimization.replay.regions import region_differences
from tests.optimization.replay.made import BASE, isolated, region


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


def test_regions_that_have_no_like_are_told(tmp_path: Path) -> None:
    first = isolated(tmp_path / "a", [region(BASE, 64), region(BASE + 4096, 64), region(BASE + 8192, 64)])
    second = isolated(tmp_path / "b", [region(BASE, 65), region(BASE + 4096, 64), region(BASE + 12288, 64)])
    (second / f"memory/region_{BASE + 4096:x}.bin").unlink()
    found = region_differences(read_capture(first), read_capture(second))
    assert [one.state for one in found] == ["other size", "not captured", "only in first", "only in second"]


def test_a_type_that_is_none_is_refused(tmp_path: Path) -> None:
    one = read_capture(isolated(tmp_path / "a"))
    with pytest.raises(UsageError, match="float32"):
        region_differences(one, one, "object")
