"""Which processes belong together, against the rule for two of them, tried on every pair."""

from itertools import combinations
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture import processes
from aaco_pipeline.capture.belonging import Marks, together
from aaco_pipeline.formats.capture_tables import StatedProcess

MAYBE: Final = st.one_of(st.none(), st.integers(0, 2))
PROCESSES: Final = st.builds(
    StatedProcess,
    guid=st.sampled_from([None, None, None, "g", "h"]),
    pid=MAYBE,
    parent_pid=MAYBE,
    host=st.sampled_from([None, "a", "b", "c"]),
    command=st.sampled_from([None, "x", "y"]),
    rank=MAYBE,
    start_ns=st.one_of(st.none(), st.integers(0, 12)),
    end_ns=st.one_of(st.none(), st.integers(0, 12)),
    output=st.sampled_from([None, None, "o"]),
)


def belong(a: StatedProcess, b: StatedProcess) -> bool:
    """The rule for two."""
    if a.guid is not None and a.guid == b.guid:
        return True
    one_command = a.command is not None and a.command == b.command
    ranks = one_command and a.rank is not None and b.rank is not None and a.rank != b.rank
    if a.host is None or b.host is None:
        return False
    if a.host != b.host:
        return ranks
    if a.start_ns is None or b.start_ns is None or a.end_ns is None or b.end_ns is None:
        return False
    if max(a.start_ns, b.start_ns) > min(a.end_ns, b.end_ns):
        return False
    parent = (a.pid is not None and a.pid == b.parent_pid) or (b.pid is not None and b.pid == a.parent_pid)
    siblings = one_command and a.parent_pid == b.parent_pid and a.parent_pid is not None and a.parent_pid > 1
    return parent or siblings or ranks or (one_command and a.output is not None and a.output == b.output)


def groups_of(count: int, pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    groups = [{i} for i in range(count)]
    for i, k in pairs:
        one, other = (next(group for group in groups if n in group) for n in (i, k))
        if one is not other:
            one |= other
            groups.remove(other)
    return {frozenset(group) for group in groups}


@given(st.lists(PROCESSES, max_size=9))
def test_they_are_joined_as_if_every_pair_were_compared(stated: list[StatedProcess]) -> None:
    joined: list[tuple[int, int]] = []
    processes.join_related(((None, i, one) for i, one in enumerate(stated)), lambda i, k: joined.append((i, k)))
    numbered = combinations(range(len(stated)), 2)
    expected = [(i, k) for i, k in numbered if belong(stated[i], stated[k])]
    assert groups_of(len(stated), joined) == groups_of(len(stated), expected)


def test_what_is_joined_grows_with_the_files_and_not_with_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = 0
    real = processes.join_related

    def counted(stated: object, join: processes.Join) -> None:
        def one_more(first: int, second: int) -> None:
            nonlocal joins
            joins += 1
            join(first, second)

        real(stated, one_more)  # type: ignore[arg-type]

    monkeypatch.setattr("aaco_pipeline.capture.belonging.join_related", counted)
    facts = [
        StatedProcess("a", i, 1, f"job{i // 8}", i % 8, start_ns=i // 8 * 10, end_ns=i // 8 * 10 + 9)
        for i in range(2000)
    ]
    marks = [Marks(f"{i}", f"{i}", is_trace=True, processes=(one,)) for i, one in enumerate(facts)]
    assert [len(group) for group in together(marks)] == [8] * 250
    assert joins < 4 * len(marks)
