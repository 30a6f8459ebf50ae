"""What a host keeps of segments' lists is what they say."""

import os
import sqlite3
from pathlib import Path

import pytest

from aaco_pipeline.lake.catalogue import SegmentCatalogue
from aaco_pipeline.lake.segments.format import (
    Part,
)
from aaco_pipeline.lake.store import TraceLake
from tests.lake.catalogue.asked import SEGMENT_NAMES, Counting, cache_files, list_path, write_list
from tests.lake.published import LATER, SESSION


def test_a_list_that_has_not_changed_is_not_opened(lake: TraceLake, caches: Path) -> None:
    for name in SEGMENT_NAMES:
        write_list(lake, "kernels", name, [Part(SESSION, "a", "ab", 1, 1, 1)], 1)
        os.utime(list_path(lake, "kernels", name), (1e9, 1e9))
    lake.storage = storage = Counting()  # type: ignore[misc]
    for expected in (list(SEGMENT_NAMES), []):
        with SegmentCatalogue(lake, "kernels") as known:
            assert [one.segment.name for one in known.held({SESSION}).values()] == ["bb"]
        assert storage.read_now == expected
        storage.read_now = []


@pytest.mark.parametrize("column", ["first_row", "rows", "place", "sha256", "owner", "stage"])
def test_a_part_that_is_not_what_was_kept_is_read_from_its_list(column: str, lake: TraceLake, caches: Path) -> None:
    write_list(lake, "kernels", "aa", [Part(one, "a", "ab" * 32, 2, 1, 1) for one in (SESSION, LATER)], 1)
    os.utime(list_path(lake, "kernels", "aa"), (1e9, 1e9))
    with SegmentCatalogue(lake, "kernels") as known:
        before = known.held()
    (file,) = cache_files(caches)
    with sqlite3.connect(file) as made:
        made.execute(f"UPDATE parts SET {column} = 0 WHERE place = 1")
    made.close()
    with SegmentCatalogue(lake, "kernels") as known:
        assert known.held() == before
