"""What belongs together: which parts found in one folder are one run of a workload.

Different processes, programs, agents and thread traces are never one run unless they say that they are. What counts as
saying so:

- passes: folders or names `pass_<n>`, as rocprofv3 makes them for one command; each pass ran the program once more
- names of one process's files: its prefix, or the prefix of a trace with a word behind it (`decode`, `decode_waves`)
- a database or results file that repeats a process, or whose process is the other's parent; processes of one parent and
  one command, alive at the same time; ranks of one command, on one host alive at the same time
- a thread trace whose raw files name the process, or whose agent, dispatch and kernel the only database has

Files are recognized by `aaco_pipeline.capture.discovery`; here only what was read of them is compared.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from aaco_pipeline.formats.capture_tables import StatedProcess

#: A pass of one command, at the beginning of a folder's or a file's name.
_PASS: Final = re.compile(r"(?:^|/)(pass_\d+)(?=[/_]|$)")


@dataclass(frozen=True)
class Marks:
    """What a part says of itself. `name` is its path in the run's folder.

    `stem` is what all files of its process are called, None where names say nothing. `is_trace` says that it holds a
    kernel trace. Of a decoded thread trace `agent` and `dispatch` are those in its folder's name, `pids` the processes
    that the raw files of that dispatch name, and `kernels` the functions in its listing. `traced` tells of a database
    whether it has a dispatch: by agent, number and kernels. `is_devices` is for samples of devices, of no process.
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
        """The pass that it is of, if its path says one."""
        found = _PASS.search(self.name)
        return found[1] if found else None


class _Groups:
    """Numbers 0 … n-1 in groups, each number in one of them; at first all are apart."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def of(self, one: int) -> int:
        while self._above[one] != one:
            one = self._above[one]
        return one

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.of(first), self.of(second)))
        self._above[high] = low

    def part(self, one: int) -> None:
        """Leave a number alone; of a group that is parted every number has to be."""
        self._above[one] = one

    def among(self, members: Iterable[int]) -> list[list[int]]:
        """The groups that the members are in, each with those of them, in order."""
        found: dict[int, list[int]] = {}
        for one in members:
            found.setdefault(self.of(one), []).append(one)
        return list(found.values())


def together(marks: Sequence[Marks]) -> list[list[int]]:
    """The parts in groups, one for each run: their positions, in order."""
    groups = _Groups(len(marks))
    programs = [i for i, one in enumerate(marks) if not one.is_thread_trace and not one.is_devices]
    traces = [i for i, one in enumerate(marks) if one.is_thread_trace]
    for i, k in combinations(programs, 2):
        if marks[i].pass_name == marks[k].pass_name and _same_process_or_job(marks[i], marks[k]):
            groups.join(i, k)
    _part_repeated_ranks(groups, marks, programs)
    _join_passes(groups, marks, programs)
    for i in traces:
        _join_thread_trace(groups, marks, i, programs)
    for i, k in combinations(traces, 2):
        if marks[i].pass_name == marks[k].pass_name and marks[i].pids & marks[k].pids:
            groups.join(i, k)
    devices = [i for i, one in enumerate(marks) if one.is_devices]
    others = groups.among([*programs, *traces])
    for i in devices:  # samples of devices are of whatever ran, where that is one run
        groups.join(i, others[0][0] if len(others) == 1 else devices[0])
    return groups.among(range(len(marks)))


def _same_process_or_job(first: Marks, second: Marks) -> bool:
    """Whether two parts of one pass say that they are of one process, or of processes of one job."""
    if any(_related(a, b) for a in first.processes for b in second.processes):
        return True
    if first.stem is None or second.stem is None:
        return False
    short, long = sorted((first, second), key=lambda one: len(one.stem or ""))
    if short.stem == long.stem:
        return True
    return bool(short.stem) and f"{long.stem}".startswith(f"{short.stem}_") and short.is_trace and not long.is_trace


def _related(first: StatedProcess, second: StatedProcess) -> bool:
    """Whether two processes say that they are one, parent and child, or of one job."""
    if first.guid is not None and first.guid == second.guid:
        return True
    alike = first.command is not None and first.command == second.command
    ranks = alike and None not in (first.rank, second.rank) and first.rank != second.rank
    if first.host is None or first.host != second.host:
        return ranks and None not in (first.host, second.host)
    if not _overlap(first, second):
        return False
    is_parent = first.pid is not None and first.pid == second.parent_pid
    is_child = second.pid is not None and second.pid == first.parent_pid
    # In a container every program may be a child of process 1.
    siblings = alike and first.parent_pid == second.parent_pid and (first.parent_pid or 0) > 1
    one_output = alike and first.output is not None and first.output == second.output
    return is_parent or is_child or siblings or ranks or one_output


def _overlap(first: StatedProcess, second: StatedProcess) -> bool:
    """Whether both lived at one time; what is not stated is no such thing."""
    if None in (first.start_ns, first.end_ns, second.start_ns, second.end_ns):
        return False
    return max(first.start_ns or 0, second.start_ns or 0) <= min(first.end_ns or 0, second.end_ns or 0)


def _part_repeated_ranks(groups: _Groups, marks: Sequence[Marks], programs: Sequence[int]) -> None:
    """Take a job apart that has one rank twice: two jobs on several hosts, and nothing says who is of which."""
    for members in groups.among(programs):
        ranks = [one.rank for i in members for one in _distinct(marks[i].processes) if one.rank is not None]
        guids = [one.guid for i in members for one in marks[i].processes if one.guid is not None]
        if len(set(ranks)) < len(ranks) and len(set(guids)) == len(guids):
            for i in members:
                groups.part(i)


def _distinct(processes: Iterable[StatedProcess]) -> list[StatedProcess]:
    return list(dict.fromkeys(processes))


def _join_passes(groups: _Groups, marks: Sequence[Marks], programs: Sequence[int]) -> None:
    """Join what each pass of one command ran: where a pass ran several processes, those that can be told again."""
    passes: dict[str | None, list[list[int]]] = {}
    for members in groups.among(programs):
        passes.setdefault(marks[members[0]].pass_name, []).append(members)
    if set(passes) <= {None}:
        return
    named = {name: found for name, found in passes.items() if name is not None}
    without = passes.get(None, [])
    # A trace beside the folders of the passes is the pass that counted nothing.
    listed = [*([without] if without else []), *named.values()]
    for first, second in combinations(listed, 2):
        for mine, theirs in _paired(first, second, marks):
            groups.join(mine[0], theirs[0])


def _paired(
    first: Sequence[list[int]], second: Sequence[list[int]], marks: Sequence[Marks]
) -> Iterable[tuple[list[int], list[int]]]:
    """Which processes of two passes are the same program's: the only ones, else those alike in what tells them."""
    if len(first) == len(second) == 1:
        if _commands(first[0], marks) & _commands(second[0], marks) or not (
            _commands(first[0], marks) and _commands(second[0], marks)
        ):
            yield first[0], second[0]
        return
    for key in (_ranks, _commands, _stems):
        mine, theirs = ({key(group, marks): group for group in side} for side in (first, second))
        if len(mine) == len(first) and len(theirs) == len(second):
            shared = [one for one in mine if one and one in theirs]
            if shared:
                yield from ((mine[one], theirs[one]) for one in shared)
                return


def _commands(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[str]:
    return frozenset(one.command for i in members for one in marks[i].processes if one.command is not None)


def _ranks(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[Hashable]:
    return frozenset((one.command, one.rank) for i in members for one in marks[i].processes if one.rank is not None)


def _stems(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[str]:
    """What the files are called inside their pass, where that is no number of a process."""
    found = {_PASS.sub("", marks[i].stem or "").strip("/_") for i in members}
    return frozenset(one for one in found if one and not one.rpartition("/")[2].isdigit())


def _join_thread_trace(groups: _Groups, marks: Sequence[Marks], i: int, programs: Sequence[int]) -> None:
    """Join a thread trace to the run that it says it is of, if there is one."""
    own = marks[i]
    beside = [k for k in programs if marks[k].pass_name == own.pass_name] or (
        list(programs) if own.pass_name is not None else []
    )
    candidates = groups.among(beside)
    if own.pids:
        candidates = [members for members in candidates if own.pids & _pids(members, marks)]
    elif own.pass_name is None:
        candidates = [members for members in candidates if _has_dispatch(members, marks, own)]
    if len(candidates) == 1:
        groups.join(i, candidates[0][0])


def _has_dispatch(members: Sequence[int], marks: Sequence[Marks], trace: Marks) -> bool:
    """Whether a database among parts has the dispatch that a thread trace is of."""
    agent, dispatch = trace.agent, trace.dispatch
    if agent is None or dispatch is None:
        return False
    asked = [marks[k].traced for k in members]
    return any(one(agent, dispatch, trace.kernels) for one in asked if one is not None)


def _pids(members: Sequence[int], marks: Sequence[Marks]) -> frozenset[int]:
    """The processes of parts, stated or in their names."""
    stated = {one.pid for i in members for one in marks[i].processes if one.pid is not None}
    words = (word for i in members for word in re.split(r"[/_]", marks[i].stem or ""))
    return frozenset(stated | {int(word) for word in words if word.isdigit() and len(word) < 19})
