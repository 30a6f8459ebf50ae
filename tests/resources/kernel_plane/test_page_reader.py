"""Either version of control groups counts how often quotas bound a process, wherever the quota is set."""

from pathlib import Path

import pytest

from aaco_pipeline.resources.kernel_plane.page_reader import Quotas, groups_of, keep_reading, throttling_of

PROCESS = 5


def host(root: Path, lines: str, stats: dict[str, str]) -> Path:
    """A root with a process in these groups, and what groups below sys/fs/cgroup count."""
    (root / f"proc/{PROCESS}").mkdir(parents=True)
    (root / f"proc/{PROCESS}/cgroup").write_text(lines)
    for group, text in stats.items():
        (root / "sys/fs/cgroup" / group).mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / group / "cpu.stat").write_text(text)
    return root


V1, V2 = "nr_periods 9\nnr_throttled {}\nthrottled_time {}\n", "usage_usec 1\nnr_throttled {}\nthrottled_usec {}\n"


@pytest.mark.parametrize(
    ("lines", "stats", "expected"),
    [
        pytest.param("3:cpu:/a\n0::/\n", {"cpu/a": V1.format(3, 250)}, ("cpu/a", 3, 250), id="version 1"),
        pytest.param(
            "3:cpu,cpuacct:/a\n", {"cpu,cpuacct/a": V1.format(3, 250)}, ("cpu,cpuacct/a", 3, 250), id="with cpuacct"
        ),
        pytest.param("0::/a/b\n", {"a/b": V2.format(4, 7)}, ("a/b", 4, 7_000), id="version 2"),
        pytest.param(
            "4:memory:/x\n0::/a\n", {"unified/a": V2.format(4, 7)}, ("unified/a", 4, 7_000), id="version 2 beside 1"
        ),
        pytest.param(
            "0::/pod/own\n", {"pod": V2.format(5, 2), "pod/own": V2.format(0, 0)}, ("pod/own", 5, 2_000), id="set above"
        ),
        pytest.param("0::/a\n", {"a": "usage_usec 1\n", ".": "usage_usec 1\n"}, None, id="no quota"),
        pytest.param(
            "3:cpu:/docker/1\n", {"cpu": V1.format(2, 9)}, ("cpu", 2, 9), id="a container sees the root alone"
        ),
        pytest.param("0::/../other\n", {".": V2.format(1, 1)}, (".", 1, 1_000), id="a group outside what it sees"),
    ],
)
def test_quotas_that_bind_a_process_are_counted(
    tmp_path: Path, lines: str, stats: dict[str, str], expected: tuple[str, int, int] | None
) -> None:
    groups = groups_of(PROCESS, host(tmp_path, lines, stats))
    found = throttling_of(groups)
    if expected is None:
        assert (groups, found) == ([], None)
    else:
        own, throttled, length = expected
        folder = str(tmp_path / "sys/fs/cgroup" / own)
        assert found == {"group": folder, "throttled": throttled, "throttled_ns": length}


def test_a_process_that_moves_is_counted_where_it_is_and_one_that_ended_where_it_was(tmp_path: Path) -> None:
    host(tmp_path, "0::/a\n", {"a": V2.format(4, 7), "b": V2.format(9, 1)})
    quotas = Quotas(tmp_path)
    assert (quotas.of(None), quotas.of(PROCESS + 1)) == (None, None)
    assert (quotas.of(PROCESS) or {})["throttled"] == 4
    (tmp_path / "sys/fs/cgroup/a/cpu.stat").write_text(V2.format(5, 8))
    assert (quotas.of(PROCESS) or {})["throttled"] == 5
    (tmp_path / f"proc/{PROCESS}/cgroup").write_text("0::/b\n")
    assert (quotas.of(PROCESS) or {})["throttled"] == 9
    (tmp_path / f"proc/{PROCESS}/cgroup").unlink()
    assert (quotas.of(PROCESS) or {})["throttled"] == 9
    quotas.close()
    assert quotas.of(PROCESS) is None


def test_a_process_or_group_that_has_gone_counts_nothing(tmp_path: Path) -> None:
    assert groups_of(PROCESS, tmp_path) == []
    assert throttling_of([tmp_path / "gone"]) is None
    (tmp_path / "cpu.stat").write_text("damaged\n")
    assert throttling_of([tmp_path]) is None


def test_of_readings_that_count_the_same_the_first_and_the_last_are_kept() -> None:
    """A wait of long before a count rose is not taken for one that it is about."""
    readings: list[dict[str, int | str]] = []
    for at, count in ((0, 3), (1, 3), (2, 3), (3, 4), (4, 5), (5, 5), (6, 5), (7, 5)):
        keep_reading(readings, {"monotonic_ns": at, "group": "/a", "throttled": count, "throttled_ns": 10 * count})
    assert [(one["monotonic_ns"], one["throttled"]) for one in readings] == [(0, 3), (2, 3), (3, 4), (4, 5), (7, 5)]
