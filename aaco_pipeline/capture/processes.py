"""Which processes say that they are one, parent and child, or of one job: each compared with those of its keys alone.

What of it makes one run is `belonging`. Two processes belong together when they have one GUID; when both lived at one
time on one host, and one is the other's parent, or they ran one command and have one parent, one place of output, or
different ranks; and when they are different ranks of one command on different hosts.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

from aaco_pipeline.formats.capture_tables import StatedProcess

Join = Callable[[int, int], None]
#: A life from its beginning to its end: whose, and its colour; two of one colour do not belong together by it.
_Life = tuple[int, int, Hashable, int]


def join_related(stated: Iterable[tuple[Hashable, int, StatedProcess]], join: Join) -> None:
    """Call `join` with owners of processes that belong together, often enough that all are joined that are to be.

    Each process is given with the pass it is of, apart from which nothing is compared, and its owner's number.
    """
    guids: dict[Hashable, int] = {}
    lives: dict[Hashable, list[_Life]] = {}
    ranks: dict[Hashable, list[tuple[str, int, int]]] = {}
    for part, owner, one in stated:
        if one.guid is not None:
            join(guids.setdefault((part, one.guid), owner), owner)
        if one.host is None:
            continue
        if one.command is not None and one.rank is not None:
            ranks.setdefault((part, one.command), []).append((one.host, one.rank, owner))
        if one.start_ns is None or one.end_ns is None or one.end_ns < one.start_ns:
            continue
        for key, colour in _shared(one, owner):
            lives.setdefault((part, one.host, *key), []).append((one.start_ns, one.end_ns, colour, owner))
    for found in lives.values():
        _join_overlapping(found, join)
    for listed in ranks.values():
        _join_across_hosts(listed, join)


def _shared(one: StatedProcess, owner: int) -> Iterable[tuple[tuple[Hashable, ...], Hashable]]:
    """The keys under which processes of a host that lived at one time belong together, each with the colour in it."""
    if one.pid is not None:
        yield ("parent", one.pid), "parent"
    if one.parent_pid is not None:
        yield ("parent", one.parent_pid), "child"
    if one.command is None:
        return
    # In a container every program may be a child of process 1.
    if one.parent_pid is not None and one.parent_pid > 1:
        yield ("siblings", one.command, one.parent_pid), owner
    if one.output is not None:
        yield ("output", one.command, one.output), owner
    if one.rank is not None:
        yield ("ranks", one.command), one.rank


def _join_overlapping(lives: Sequence[_Life], join: Join) -> None:
    """Join lives that overlap and differ in colour, in one sweep over their beginnings.

    What is alive and of one colour alone waits by that colour. At most one cluster is of several: whatever begins joins
    all but those of its own colour alone. Of that cluster two lives are kept, the last to end and the last to end of
    another colour, for these tell whom it still meets.
    """
    waiting: dict[Hashable, list[_Life]] = {}
    mixed: list[_Life] = []
    for life in sorted(lives, key=lambda one: (one[0], one[1], one[3])):
        start, _, colour, owner = life
        mixed = [one for one in mixed if one[1] >= start]
        if len(mixed) == 1:
            waiting.setdefault(mixed[0][2], []).append(mixed.pop())
        met = [one for other in [key for key in waiting if key != colour] for one in waiting.pop(other)]
        met = [one for one in (*mixed, *met) if one[1] >= start]
        if not met:
            waiting.setdefault(colour, []).append(life)
            continue
        for one in met:
            join(one[3], owner)
        last = max((*met, life), key=lambda one: one[1])
        mixed = [last, max((one for one in (*met, life) if one[2] != last[2]), key=lambda one: one[1])]


def _join_across_hosts(listed: Sequence[tuple[str, int, int]], join: Join) -> None:
    """Join ranks of one command that differ in host and rank, outward from one, and looking at none again."""
    cells: dict[tuple[str, int], list[int]] = {}
    for host, rank, owner in listed:
        cells.setdefault((host, rank), []).append(owner)
    if len({host for host, _ in cells}) == 1 or len({rank for _, rank in cells}) == 1:
        return
    pending = set(cells)
    while pending:
        frontier = [min(pending)]
        pending.discard(frontier[0])
        while frontier:
            host, rank = frontier.pop()
            near = [cell for cell in pending if cell[0] != host and cell[1] != rank]
            for cell in near:
                pending.discard(cell)
                for owner in cells[cell]:
                    join(cells[host, rank][0], owner)
                frontier.append(cell)
            # Those of one cell belong together where anything beside them does.
            if near:
                for owner in cells[host, rank]:
                    join(cells[host, rank][0], owner)
