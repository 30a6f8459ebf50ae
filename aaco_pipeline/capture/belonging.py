"""Decide which parts found in one folder belong to the same run of a workload.

Different processes, programs, agents and thread traces are separate runs unless one of these links them:

- passes: folders or names `pass_<n>`, as rocprofv3 makes them for one command; each pass ran the program once more
- names of one process's files: its prefix, or the prefix of a trace followed by a word (`decode`, `decode_waves`)
- a database or results file that repeats a process, or whose process is the other's parent; processes of one parent and
  one command, alive at the same time; ranks of one command, on one host alive at the same time
- a thread trace whose raw files name the process, or whose agent, dispatch and kernel only this database has

`aaco_pipeline.capture.discovery` recognizes the files; this module only compares their statements.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Final

from aaco_pipeline.formats.capture_tables import StatedProcess

Join = Callable[[int, int], None]
#: A lifetime: start, end, colour and owner; overlap alone does not join two of the same colour.
_Life = tuple[int, int, Hashable, int]


def join_related(stated: Iterable[tuple[Hashable, int, StatedProcess]], join: Join) -> None:
    """Call `join` on owners of related processes, often enough to connect all of them.

    Each process comes with its pass and its owner's number; only processes of the same pass are compared.
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
    """Yield the keys that link simultaneous processes of a host, each with its colour."""
    if one.pid is not None:
        yield ("parent", one.pid), "parent"
    if one.parent_pid is not None:
        yield ("parent", one.parent_pid), "child"
    if one.command is None:
        return
    # In a container, every program may be a child of process 1.
    if one.parent_pid is not None and one.parent_pid > 1:
        yield ("siblings", one.command, one.parent_pid), owner
    if one.output is not None:
        yield ("output", one.command, one.output), owner
    if one.rank is not None:
        yield ("ranks", one.command), one.rank


def _join_overlapping(lives: Sequence[_Life], join: Join) -> None:
    """Join lifetimes that overlap and differ in colour, in one sweep over their starts.

    Lifetimes of a single colour wait under that colour. At most one cluster has several colours: a new lifetime joins
    everything except lifetimes of its own colour only. The cluster keeps two lifetimes, the last to end and the last of
    another colour to end; these decide what it still overlaps.
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
    """Join ranks of one command that differ in both host and rank, starting from one and visiting each once."""
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
            # Ranks in one cell belong together if anything outside the cell belongs to them.
            if near:
                for owner in cells[host, rank]:
                    join(cells[host, rank][0], owner)


#: Pass of a command, at the start of a folder or file name.
_PASS: Final = re.compile(r"(?:^|/)(pass_\d+)(?=[/_]|$)")


@dataclass(frozen=True)
class Marks:
    """Facts that a part states about itself. `name` is its path in the run's folder.

    `stem` is the common name of its process's files, None if the names give none. `is_trace`: it holds a kernel trace.
    For a decoded thread trace, `agent` and `dispatch` come from its folder's name, `pids` are the processes in the
    names of that dispatch's raw files, and `kernels` are the functions in its listing. `traced` returns whether a
    database has a dispatch, by agent, number and kernels. `is_devices`: it holds device samples, which belong to no
    process.
    """

    name: str
    stem: str | None = None
    is_trace: bool = False
    processes: tuple[StatedProcess, ...] = ()
    is_thread_trace: bool = False
    agent: str | None = None
    dispatch: int | None = None
    pids: frozenset[int] = frozenset()
    kernels: frozenset[str] = frozenset()
    traced: Callable[[str, int, frozenset[str]], bool] | None = field(default=None, compare=False)
    is_devices: bool = False

    @property
    def pass_name(self) -> str | None:
        """Return the pass that its path names, if any."""
        found = _PASS.search(self.name)
        return found[1] if found else None


class _Groups:
    """Disjoint groups of the numbers 0 … n-1; initially each number is alone."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def of(self, one: int) -> int:
        while self._above[one] != one:
            self._above[one] = self._above[self._above[one]]
            one = self._above[one]
        return one

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.of(first), self.of(second)))
        self._above[high] = low

    def part(self, one: int) -> None:
        """Separate a number from its group; every other number of that group must be separated too."""
        self._above[one] = one

    def among(self, members: Iterable[int]) -> list[list[int]]:
        """Return the groups of these members, each restricted to them, in order."""
        found: dict[int, list[int]] = {}
        for one in members:
            found.setdefault(self.of(one), []).append(one)
        return list(found.values())


def together(marks: Sequence[Marks]) -> list[list[int]]:
    """Group the parts by run; returns their positions, in order."""
    groups = _Groups(len(marks))
    programs = [i for i, one in enumerate(marks) if not one.is_thread_trace and not one.is_devices]
    traces = [i for i, one in enumerate(marks) if one.is_thread_trace]
    join_related(((marks[i].pass_name, i, one) for i in programs for one in marks[i].processes), groups.join)
    _join_named(groups, marks, programs)
    _part_repeated_ranks(groups, marks, programs)
    _join_passes(groups, marks, programs)
    _join_thread_traces(groups, marks, traces, programs)
    named: dict[Hashable, int] = {}
    for i in traces:
        for pid in marks[i].pids:
            groups.join(named.setdefault((marks[i].pass_name, pid), i), i)
    devices = [i for i, one in enumerate(marks) if one.is_devices]
    others = groups.among([*programs, *traces])
    for i in devices:  # device samples cover everything that ran, so they join a single run
        groups.join(i, others[0][0] if len(others) == 1 else devices[0])
    return groups.among(range(len(marks)))


def _join_named(groups: _Groups, marks: Sequence[Marks], programs: Sequence[int]) -> None:
    """Join parts of one pass whose files share a name, or a trace's name followed by a word."""
    called: dict[Hashable, int] = {}
    traces: dict[Hashable, int] = {}
    for i in programs:
        key = (marks[i].pass_name, marks[i].stem)
        if marks[i].stem is not None:
            groups.join(called.setdefault(key, i), i)
        if marks[i].is_trace and marks[i].stem:
            traces.setdefault(key, i)
    for i in programs:
        stem = "" if marks[i].is_trace else marks[i].stem or ""
        for place in (found.start() for found in re.finditer("_", stem)):
            if (trace := traces.get((marks[i].pass_name, stem[:place]))) is not None:
                groups.join(trace, i)


def _part_repeated_ranks(groups: _Groups, marks: Sequence[Marks], programs: Sequence[int]) -> None:
    """Split a job with a duplicate rank: it is two jobs on several hosts whose ranks cannot be assigned."""
    for members in groups.among(programs):
        ranks = [one.rank for i in members for one in dict.fromkeys(marks[i].processes) if one.rank is not None]
        guids = [one.guid for i in members for one in marks[i].processes if one.guid is not None]
        if len(set(ranks)) < len(ranks) and len(set(guids)) == len(guids):
            for i in members:
                groups.part(i)


def _join_passes(groups: _Groups, marks: Sequence[Marks], programs: Sequence[int]) -> None:
    """Join the processes of one command's passes; if a pass has several, join those that can be matched."""
    passes: dict[str | None, list[list[int]]] = {}
    for members in groups.among(programs):
        passes.setdefault(marks[members[0]].pass_name, []).append(members)
    if set(passes) <= {None}:
        return
    named = {name: found for name, found in passes.items() if name is not None}
    without = passes.get(None, [])
    # A trace next to the pass folders is the pass without counters.
    listed = [*([without] if without else []), *named.values()]
    alone = [found[0] for found in listed if len(found) == 1]
    _join_alone(groups, alone, marks)
    several = [found for found in listed if len(found) > 1]
    # Passes that ran the same processes match others the same way, so one represents them all.
    alike: dict[Hashable, list[list[int]]] = {}
    for found in several:
        told = frozenset((_ranks(one, marks), _commands(one, marks), _stems(one, marks)) for one in found)
        first = alike.setdefault((len(found), told), found)
        if first is not found:
            _join_paired(groups, first, found, marks)
    for first, second in (*combinations(alike.values(), 2), *product(alike.values(), ([one] for one in alone))):
        _join_paired(groups, first, second, marks)


def _join_alone(groups: _Groups, alone: Sequence[list[int]], marks: Sequence[Marks]) -> None:
    """Join passes' only processes if they share a command, or all of them if one states no command."""
    commands = [_commands(one, marks) for one in alone]
    ran: dict[str, int] = {}
    for one, stated in zip(alone, commands, strict=True):
        if not all(commands):
            groups.join(alone[0][0], one[0])
        for command in stated:
            groups.join(ran.setdefault(command, one[0]), one[0])


def _join_paired(
    groups: _Groups, first: Sequence[list[int]], second: Sequence[list[int]], marks: Sequence[Marks]
) -> None:
    """Join processes of two passes, one with several, by the first key that distinguishes them in each pass."""
    for key in (_ranks, _commands, _stems):
        mine, theirs = ({key(group, marks): group for group in side} for side in (first, second))
        shared = [one for one in mine if one and one in theirs]
        if len(mine) == len(first) and len(theirs) == len(second) and shared:
            for one in shared:
                groups.join(mine[one][0], theirs[one][0])
            return


def _commands(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[str]:
    return frozenset(one.command for i in members for one in marks[i].processes if one.command is not None)


def _ranks(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[Hashable]:
    return frozenset((one.command, one.rank) for i in members for one in marks[i].processes if one.rank is not None)


def _stems(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[str]:
    """Return the files' names within their pass, without process numbers."""
    found = {_PASS.sub("", marks[i].stem or "").strip("/_") for i in members}
    return frozenset(one for one in found if one and not one.rpartition("/")[2].isdigit())


def _join_thread_traces(
    groups: _Groups, marks: Sequence[Marks], traces: Sequence[int], programs: Sequence[int]
) -> None:
    """Join each thread trace to the run that it names, if there is one."""
    of_pass: dict[str | None, list[int]] = {}
    for k in programs:
        of_pass.setdefault(marks[k].pass_name, []).append(k)
    found = {name: groups.among(members) for name, members in of_pass.items()}
    # A trace from a pass without a program is searched for in all passes.
    found |= {name: groups.among(programs) for name in {marks[i].pass_name for i in traces} - {None, *found}}
    ran: dict[Hashable, list[int]] = {}
    for name, runs in found.items():
        for number, members in enumerate(runs):
            for pid in pids_of(marks[k] for k in members):
                ran.setdefault((name, pid), []).append(number)
    for i in traces:
        own = marks[i]
        runs = found.get(own.pass_name, [])
        if own.pids:
            numbers = {number for pid in own.pids for number in ran.get((own.pass_name, pid), [])}
            candidates = [runs[number] for number in sorted(numbers)]
        elif own.pass_name is None:
            candidates = [members for members in runs if _has_dispatch(members, marks, own)]
        else:
            candidates = runs
        if len(candidates) == 1:
            groups.join(i, candidates[0][0])


def _has_dispatch(members: Sequence[int], marks: Sequence[Marks], trace: Marks) -> bool:
    """Return whether any database among the parts has the thread trace's dispatch."""
    agent, dispatch = trace.agent, trace.dispatch
    if agent is None or dispatch is None:
        return False
    asked = [marks[k].traced for k in members]
    return any(one(agent, dispatch, trace.kernels) for one in asked if one is not None)


def pids_of(marks: Iterable[Marks]) -> frozenset[int]:
    """Return the processes of parts: stated, in file names, or named by a thread trace's raw files."""
    each = list(marks)
    stated = {one.pid for mark in each for one in mark.processes if one.pid is not None}
    words = (word for mark in each for word in re.split(r"[/_]", mark.stem or ""))
    in_names = {int(word) for word in words if word.isdigit() and len(word) < 19}
    return frozenset().union(stated, in_names, *(mark.pids for mark in each))
