"""Match the kernels of two sets of sessions by name, operator, position or normalized name."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.statistics.causes.accounts import COPY, Account

#: Maximum nesting depth of template arguments and parameter lists, which are removed from the inside out.
_DEEPEST: Final = 40
#: A Tensile solution: the problem type followed by the solution's parameters.
_TENSILE: Final = r"^(Cijk_[A-Za-z]+_[A-Za-z]+_[A-Za-z0-9]+)_.*$"
#: Generic kernels that run any functor.
_CARRIERS: Final = (
    r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|^(?:\w+::)*Kernel#?$|for_each|transform_kernel"
    r"|_kernel_agent|DeviceReduce|DeviceScan"
)
#: The functor of a generic kernel in its short name.
_CARRIED: Final = r"\[(.*)\]$"
_DIGESTS: Final = r"_(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{6,}"


def normalized(names: pl.Series) -> pl.Series:
    """Return the names without template arguments, parameters, tile and solution numbers; other numbers become `#`."""
    text = names.cast(pl.String)
    for _ in range(_DEEPEST):
        shorter = text.str.replace_all(r"<[^<>()]*>|\([^<>()]*\)", "")
        if shorter.equals(text, null_equal=True):
            break
        text = shorter
    frame = text.alias("one").to_frame()
    return frame.select(
        pl.col("one")
        .str.replace(_TENSILE, "${1}")
        .str.replace_all(_DIGESTS, "")
        .str.replace_all(r"^\s*void\s+", "")
        .str.replace_all(r"[0-9]+", "#")
        .str.replace_all(r"#(?:[x_]#)+", "#")
        .str.strip_chars()
        .alias(names.name)
    ).to_series()


def code_keys(names: pl.Series, short_names: pl.Series) -> pl.Series:
    """Return a key for each kernel's code: its normalized name with its functor.

    `short_names` are as in `kernels`, null if unknown. A generic kernel with an unknown functor keeps its full name.
    """
    carried = short_names.str.extract(_CARRIED).alias("carried")
    frame = pl.DataFrame([names.cast(pl.String).alias("name"), normalized(names).alias("key"), normalized(carried)])
    carrier = pl.col("key").str.contains(_CARRIERS)
    return frame.select(
        pl.when(pl.col("carried").is_not_null())
        .then(pl.concat_str("key", pl.lit(" ["), "carried", pl.lit("]")))
        .when(carrier)
        .then("name")
        .otherwise("key")
    ).to_series()


#: Smallest change of a kernel's count per iteration; random variation is smaller.
LEAST_COUNT: Final = 0.5
#: Maximum number of kernels of a step to align, without the common start and end.
_MOST_ALIGNED: Final = 5_000
#: Maximum number of different pairs of steps to align.
_MOST_STEPS: Final = 64
#: Minimum fraction of kernel time in common between sessions of the same work.
_LEAST_IN_COMMON: Final = 0.1
Counts = dict[str, float]
Step = tuple[str, ...]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Replaced:
    """Kernels of the baseline that other kernels of the candidate replace, by full name, per iteration.

    `before` and `after` are the counts of each kernel at these positions; `operator` is None if only the position in
    the step is known; `matched_by` is `operator`, `position` or `normalized_name`.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    operator: str | None
    position: int | None
    matched_by: str


def replaced_kernels(baseline: Sequence[Account], candidate: Sequence[Account]) -> list[Replaced]:
    """Find the kernel replacements between the two sides; each dispatch is in at most one.

    The most certain matches come first: by innermost operator; by outermost operator (kernels of one family, then the
    others); for kernels without an operator, by position between unchanged kernels; then by equal normalized names. A
    kernel's counts are limited to the total change of its count.
    """
    before, after = _per_iteration(baseline), _per_iteration(candidate)
    left, came = _Rest.of(before, after), _Rest.of(after, before)
    found: list[Replaced] = []
    if not left.counts or not came.counts:
        return found
    keys = _code_keys((*baseline, *candidate))
    places = chain(_operator_places(baseline, candidate), _position_places(baseline, candidate))
    for place in chain.from_iterable(_alike_first(one, keys) for one in places):
        lost, won = left.at_most(place.before), came.at_most(place.after)
        if lost and won:
            found.append(replace(place, before=lost, after=won))
            left.take(lost)
            came.take(won)
    return [*found, *_alike(left.at_most(left.counts), came.at_most(came.counts), keys)]


def other_work(baseline: Sequence[Account], candidate: Sequence[Account]) -> str | None:
    """Describe that the two sides have almost no kernels and operators in common; None if they do.

    None if kernels with common code or operators take a tenth of kernel time on both sides, or if a side has no
    kernels.
    """
    if not baseline or not candidate:
        return None
    keys = _code_keys((*baseline, *candidate))
    times = [_per_iteration(one, "busy_ns") for one in (baseline, candidate)]
    if not all(times):
        return None
    operators = [_operators(one) for one in (baseline, candidate)]
    marks = [
        {name: {keys[name], *own.get(name, ())} for name in time} for time, own in zip(times, operators, strict=True)
    ]
    for time, own, other in zip(times, marks, reversed(marks), strict=True):
        known = set[str]().union(*other.values())
        shared = sum(ns for name, ns in time.items() if own[name] & known)
        if shared < _LEAST_IN_COMMON * sum(time.values()):
            return "next to none of the kernels and operators of one session run in the other"
    return None


def groups_of(baseline: Sequence[Account], candidate: Sequence[Account], replaced: Iterable[Replaced]) -> pl.DataFrame:
    """Assign each kernel or copy to a group for splitting a change: category, name, launch, group, matched_by.

    `group` is a dense number. `matched_by` is `name` for an equal launch shape on both sides, `launch` for a kernel
    with different launch shapes, `operator`, `position` or `normalized_name` for replaced kernels, `added` or `removed`
    for kernels and copies of only one side.
    """
    sides = [
        pl.concat([one.groups.select("category", "name", "launch") for one in side])
        .unique()
        .with_columns(pl.lit(True).alias(mark))
        for side, mark in ((baseline, "in_baseline"), (candidate, "in_candidate"))
    ]
    both = sides[0].join(sides[1], on=("category", "name", "launch"), how="full", coalesce=True)
    both = both.with_columns(pl.col("in_baseline", "in_candidate").fill_null(False))
    shared = pl.col("in_baseline") & pl.col("in_candidate")
    kernels = pl.col("category") != COPY
    one_sided = [(pl.col(mark) & ~shared).any().over("category", "name") for mark in ("in_baseline", "in_candidate")]
    relaunched = ~shared & one_sided[0] & one_sided[1] & kernels
    united = _united(replaced)
    root, by = (
        pl.col("name").replace_strict(
            {name: one[at] for name, one in united.items()}, default=None, return_dtype=pl.String
        )
        for at in (0, 1)
    )
    is_replaced = root.is_not_null() & kernels
    key = (
        pl.when(is_replaced)
        .then(pl.concat_str(pl.lit("="), root))
        .when(relaunched)
        .then(pl.concat_str("category", pl.lit("\n"), "name"))
        .otherwise(pl.concat_str("category", pl.lit("\n"), "name", pl.lit("\n"), "launch"))
    )
    how = (
        pl.when(is_replaced)
        .then(by)
        .when(relaunched)
        .then(pl.lit("launch"))
        .when(shared)
        .then(pl.lit("name"))
        .when(pl.col("in_candidate"))
        .then(pl.lit("added"))
        .otherwise(pl.lit("removed"))
    )
    return both.select("category", "name", "launch", group=(key.rank("dense") - 1).cast(pl.Int64), matched_by=how).sort(
        "group", "category", "name", "launch"
    )


@dataclass(frozen=True)
class _Rest:
    """Changes of counts per iteration that are not matched yet, and the minimum count of a match.

    For kernels of only one side, the minimum count is half of their launches: if an iteration is a layer, a kernel that
    runs once per pass has a small count.
    """

    counts: Counts
    least: Mapping[str, float]

    @classmethod
    def of(cls, more: Mapping[str, float], fewer: Mapping[str, float]) -> Self:
        change = {name: count - fewer.get(name, 0.0) for name, count in more.items()}
        least = {name: LEAST_COUNT if name in fewer else min(LEAST_COUNT, count / 2) for name, count in change.items()}
        return cls({name: count for name, count in change.items() if count >= least[name]}, least)

    def at_most(self, counts: Mapping[str, float]) -> Counts:
        """Return the counts, limited to the unmatched remainder."""
        found = {name: min(count, self.counts.get(name, 0.0)) for name, count in counts.items()}
        return {name: count for name, count in found.items() if count >= self.least.get(name, LEAST_COUNT)}

    def take(self, counts: Mapping[str, float]) -> None:
        """Subtract matched counts."""
        for name, count in counts.items():
            self.counts[name] -= count


def _operator_places(baseline: Sequence[Account], candidate: Sequence[Account]) -> Iterator[Replaced]:
    """Kernels that disappeared and appeared at each operator, innermost operators first."""
    for operator, gone, new in _by_operator(baseline, candidate, "operator"):
        yield Replaced(gone, new, operator, None, "operator")
    family = _families((*baseline, *candidate))
    for operator, gone, new in _by_operator(baseline, candidate, "outermost_operator"):
        for kind in sorted({family[name] for name in gone}):
            old, other = ({name: n for name, n in side.items() if family[name] == kind} for side in (gone, new))
            yield Replaced(old, other, operator, None, "operator")
        yield Replaced(gone, new, operator, None, "operator")


def _position_places(baseline: Sequence[Account], candidate: Sequence[Account]) -> Iterator[Replaced]:
    """Kernels that disappeared and appeared between unchanged kernels, for kernels without a known operator."""
    placed = [{name for one in side for name in one.sites.get_column("name")} for side in (baseline, candidate)]
    for position, gone, new in _by_position(_pairs_of_steps(baseline[0].order, candidate[0].order)):
        old, other = (
            {name: n for name, n in side.items() if name not in known}
            for side, known in zip((gone, new), placed, strict=True)
        )
        yield Replaced(old, other, None, position, "position")


def _means(
    side: Sequence[Account], frames: Iterable[pl.DataFrame], *keys: str, of: str = "count"
) -> dict[tuple[str, ...], float]:
    """Return counts or times per iteration, averaged over the sessions."""
    rows = [
        frame.group_by(keys).agg((pl.col(of).sum() / one.steps).alias(of))
        for one, frame in zip(side, frames, strict=True)
    ]
    mean = pl.concat(rows).group_by(keys).agg(pl.col(of).sum() / len(side)).sort(keys)
    return {tuple(row[:-1]): row[-1] for row in mean.iter_rows()}


def _families(side: Iterable[Account]) -> dict[str, str]:
    """Return the family of each kernel by name; empty if unknown."""
    rows = pl.concat([one.groups.select("name", "family") for one in side]).unique("name")
    return dict(rows.with_columns(pl.col("family").fill_null("")).iter_rows())


def _per_iteration(side: Sequence[Account], of: str = "count") -> Counts:
    """Return counts or times of each kernel per iteration."""
    frames = [one.groups.filter(pl.col("category") != COPY) for one in side]
    return {name: mean for (name,), mean in _means(side, frames, "name", of=of).items()}


def _by_operator(
    baseline: Sequence[Account], candidate: Sequence[Account], level: str
) -> Iterator[tuple[str, Counts, Counts]]:
    """Return each operator with the kernels that disappeared and appeared at it, per iteration."""
    before, after = (_means(side, [one.sites for one in side], level, "name") for side in (baseline, candidate))
    gone: dict[str, Counts] = {}
    new: dict[str, Counts] = {}
    for operator, name in sorted({*before, *after}):
        change = after.get((operator, name), 0.0) - before.get((operator, name), 0.0)
        if change:
            (new if change > 0 else gone).setdefault(operator, {})[name] = abs(change)
    yield from ((operator, lost, new[operator]) for operator, lost in gone.items() if operator in new)


def _pairs_of_steps(before: Sequence[Step], after: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Return distinct pairs of steps to align: the n-th with the n-th if both sides have equally many.

    Otherwise the steps with the most distinct kernels are paired, because some steps may be incomplete.
    """
    if len(before) == len(after):
        return list(dict.fromkeys(zip(before, after, strict=True)))[:_MOST_STEPS]
    fullest = [max(steps, key=lambda step: len(set(step)), default=()) for steps in (before, after)]
    return [(fullest[0], fullest[1])]


def _by_position(pairs: Iterable[tuple[Step, Step]]) -> Iterator[tuple[int, Counts, Counts]]:
    """Find replacements by position: the first position in the baseline's step, and the counts before and after.

    Equal replacements in one step are counted together.
    """
    for before, after in pairs:
        found: dict[tuple[Step, Step], tuple[int, int]] = {}
        for at, gone, new in _blocks(before, after):
            first, times = found.get((gone, new), (at, 0))
            found[gone, new] = (first, times + 1)
        for (gone, new), (first, times) in found.items():
            yield first, _times(gone, times), _times(new, times)


def _times(names: tuple[str, ...], times: int) -> Counts:
    return {name: float(count * times) for name, count in Counter(names).items()}


def _blocks(before: Step, after: Step) -> Iterator[tuple[int, Step, Step]]:
    """Find differences of two steps between common kernels: position, names before, names after; none empty."""
    codes = {name: code for code, name in enumerate(sorted({*before, *after}))}
    a, b = (np.array([codes[name] for name in names], np.int64) for names in (before, after))
    if len(a) == len(b):
        # Steps of equal length are compared position by position.
        yield from ((at, (before[at],), (after[at],)) for at in np.flatnonzero(a != b).tolist())
        return
    shorter = min(len(a), len(b))
    differs = np.flatnonzero(a[:shorter] != b[:shorter])
    start = int(differs[0]) if len(differs) else shorter
    differs = np.flatnonzero(a[::-1][: shorter - start] != b[::-1][: shorter - start])
    tail = int(differs[0]) if len(differs) else shorter - start
    a, b = a[start : len(a) - tail], b[start : len(b) - tail]
    if not len(a) or not len(b) or max(len(a), len(b)) > _MOST_ALIGNED:
        return
    # The shorter step comes first, so that swapping the sides gives the same alignment.
    pairs = _common(a, b) if len(a) < len(b) else [(one, other) for other, one in _common(b, a)]
    last_a = last_b = 0
    for at, other in [*pairs, (len(a), len(b))]:
        if at > last_a and other > last_b:
            yield start + last_a, before[start + last_a : start + at], after[start + last_b : start + other]
        last_a, last_b = at + 1, other + 1


def _common(a: Codes, b: Codes) -> list[tuple[int, int]]:
    """Return the index pairs of a longest common subsequence, in O(len(a) len(b))."""
    length = np.zeros((len(a) + 1, len(b) + 1), np.int16)
    for i in range(len(a)):
        grown = np.maximum(length[i, 1:], length[i, :-1] + (b == a[i]))
        length[i + 1, 1:] = np.maximum.accumulate(grown)
    pairs, i, j = [], len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1] and length[i, j] == length[i - 1, j - 1] + 1:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif length[i - 1, j] >= length[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _operators(sessions: Iterable[Account]) -> dict[str, set[str]]:
    """The known operators of each kernel."""
    rows = pl.concat([one.sites.select("name", "operator") for one in sessions]).unique()
    return {name: set(own) for name, own in rows.group_by("name").agg("operator").iter_rows()}


def _alike_first(place: Replaced, keys: Mapping[str, str]) -> Iterator[Replaced]:
    """Split a replacement of several kernels: first kernels of the same code, then all."""
    if len(place.before) > 1 or len(place.after) > 1:
        alike = _alike(place.before, place.after, keys)
        yield from (replace(place, before=one.before, after=one.after) for one in alike)
    yield place


def _alike(left: Mapping[str, float], came: Mapping[str, float], keys: Mapping[str, str]) -> Iterator[Replaced]:
    """Replacements between kernels with the same key."""
    for one in sorted({keys[name] for name in (*left, *came)}):
        gone, new = ({name: n for name, n in side.items() if keys[name] == one} for side in (left, came))
        if gone and new:
            yield Replaced(gone, new, None, None, "normalized_name")


def _code_keys(sessions: Iterable[Account]) -> dict[str, str]:
    """The key of each kernel's code together with its number format."""
    rows = pl.concat([one.groups.select("name", "short_name", "dtype") for one in sessions]).unique("name")
    keys = code_keys(rows.get_column("name"), rows.get_column("short_name").cast(pl.String))
    made_for = pl.concat_str(keys.alias("key"), pl.col("dtype").cast(pl.String).fill_null(""), separator=" ")
    return dict(zip(rows.get_column("name"), rows.select(made_for).to_series(), strict=True))


def _united(replaced: Iterable[Replaced]) -> dict[str, tuple[str, str]]:
    """Return the set of each replaced kernel, named after its first kernel, and the kind of match."""
    set_of: dict[str, set[str]] = {}
    found_by: dict[str, str] = {}
    for one in replaced:
        together = set().union(*(set_of.get(name, {name}) for name in (*one.before, *one.after)))
        for name in together:
            set_of[name] = together
            found_by.setdefault(name, one.matched_by)
    return {name: (min(together), found_by[min(together)]) for name, together in set_of.items()}
