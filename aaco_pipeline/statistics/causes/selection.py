"""Find different selections of two arms: provider, graph replay, kernel, library, format, shape, cache, inputs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.causes.accounts import COPY, Account
from aaco_pipeline.statistics.causes.arms import Arm, facts
from aaco_pipeline.statistics.causes.matching import LEAST_COUNT, Replaced

SCHEMA: Final = polars_types(
    "selections",
    *("what", "from_value", "to_value", "operator", "position", "count", "baseline_ns", "candidate_ns"),
    *("matched_by", "evidence"),
)
Row = dict[str, Any]


def selected(what: str, was: str, became: str, evidence: str, **more: Any) -> Row:
    return {**dict.fromkeys(SCHEMA), "what": what, "from_value": was, "to_value": became, "evidence": evidence, **more}


def few(names: Sequence[str], most: int = 3) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:most]) + (f" and {len(distinct) - most} more" if len(distinct) > most else "")


def other_inputs(before: Sequence[Account], after: Sequence[Account]) -> tuple[set[str], list[Row]]:
    """Find operators with an unchanged number of calls but different input shapes or types.

    Return the operators with changed types, and rows: one for each pair of types and one for all changed shapes.
    """
    sides = []
    for side in (before, after):
        rows = pl.concat([one.inputs.with_columns(pl.col("count") / (one.steps * len(side))) for one in side])
        sides.append(rows.group_by("operator", "shapes", "types").agg(pl.col("count").sum()))
    keys = ("operator", "shapes", "types")
    both = (
        sides[0]
        .join(sides[1], on=keys, how="full", coalesce=True, suffix="_after")
        .with_columns(pl.col("count", "count_after").fill_null(0.0))
    )
    change = pl.col("count_after") - pl.col("count")
    totals = pl.col("count").sum().over("operator"), pl.col("count_after").sum().over("operator")
    moved = both.filter((totals[0] - totals[1]).abs() < LEAST_COUNT).with_columns(change=change)
    moved = moved.filter(pl.col("change").abs() >= LEAST_COUNT).sort("operator", "change", "shapes", "types")
    found: dict[tuple[str, str, str], list[Row]] = {}
    for (operator,), rows in moved.group_by("operator", maintain_order=True):
        gone, came = rows.filter(pl.col("change") < 0), rows.filter(pl.col("change") > 0)
        change_of = _other_inputs(gone, came) if gone.height and came.height else None
        if change_of is not None:
            what, was, became = change_of
            row = {"operator": str(operator), "was": was, "became": became, "count": came.get_column("change").sum()}
            # Types usually change in the same way at many operators, shapes differently at each one.
            found.setdefault(change_of if what == "datatype" else (what, "", ""), []).append(row)
    retyped = {row["operator"] for (what, *_), places in found.items() if what == "datatype" for row in places}
    return retyped, [_of_inputs(what, places) for (what, *_), places in found.items()]


def _other_inputs(gone: pl.DataFrame, came: pl.DataFrame) -> tuple[str, str, str] | None:
    """Describe the change of an operator's inputs: the types, or else the shapes; None for another overload."""
    types = [list(dict.fromkeys(rows.get_column("types"))) for rows in (gone, came)]
    if set(types[0]) == set(types[1]):
        return "input_shape", few(sorted(gone.get_column("shapes"))), few(sorted(came.get_column("shapes")))
    pairs = set()
    for was, became in zip(*map(sorted, types), strict=False):
        lists = [one.strip("[]").split(",") for one in (was, became)]
        if len(lists[0]) != len(lists[1]):
            return None
        # Unknown types do not count as differences.
        pairs |= {
            pair for pair in zip(*lists, strict=True) if pair[0] != pair[1] and all(one.strip('" ') for one in pair)
        }
    if len(types[0]) != len(types[1]) or not pairs:
        return None
    was, became = (few(sorted({pair[side].strip('" ') for pair in pairs})) for side in (0, 1))
    return "datatype", was, became


def _of_inputs(what: str, places: Sequence[Row]) -> Row:
    """Build one row for all these operators; operator and shapes are the most frequent one's."""
    places = sorted(places, key=lambda row: (-row["count"], row["operator"]))
    return selected(
        what,
        places[0]["was"],
        places[0]["became"],
        f"operator_inputs.{'shapes' if what == 'input_shape' else 'types'}",
        operator=few([row["operator"] for row in places], most=1),
        count=float(sum(row["count"] for row in places)),
        matched_by="operator",
    )


def copy_paths(before: Sequence[Account], after: Sequence[Account]) -> Iterator[Row]:
    """Find copies of one direction that use another kind of host memory."""
    sides = []
    for side in (before, after):
        rows = pl.concat(
            [one.copies.with_columns(pl.col("count", "busy_ns") / (one.steps * len(side))) for one in side]
        )
        kinds = pl.col("host_memory").unique().sort().str.join(" and ")
        sides.append(rows.group_by("direction").agg(kinds, pl.col("count").sum(), pl.col("busy_ns").sum()))
    both = sides[0].join(sides[1], on="direction", suffix="_after").sort("direction")
    for row in both.filter(pl.col("host_memory") != pl.col("host_memory_after")).iter_rows(named=True):
        yield selected(
            "copy_path",
            f"{row['host_memory']} memory",
            f"{row['host_memory_after']} memory",
            "memory_copies.host_memory",
            operator=row["direction"].replace("_", " ") + " copies",
            count=row["count_after"],
            baseline_ns=round(row["busy_ns"]),
            candidate_ns=round(row["busy_ns_after"]),
            matched_by="name",
        )


#: Selections of complete sessions.
OF_SESSIONS: Final = ("execution_provider", "backend", "precision")
GRAPH_REPLAY: Final = "graph_replay"
COMPILATION: Final = "compilation"
#: Kernels that replace other kernels at many operators: the selection, a name pattern, the minimum number of such
#: kernels (an optimizer's step has several, copying its tensors takes one), and the names of both alternatives.
_MADE_FOR_MANY: Final = (
    (
        COMPILATION,
        r"^triton_(?:poi|per|red|tem|for|split_scan)_fused_",
        2,
        "eager kernels",
        "torch.compile, kernels written by Inductor",
    ),
    ("fusion", r"\bmulti_tensor_apply_kernel\b", 3, "a kernel for each tensor", "kernels over many tensors at once"),
    (
        "fusion",
        r"Fused(?:Adam|Sgd|Adagrad)\w*Functor",
        1,
        "an optimizer in several kernels",
        "an optimizer in one kernel",
    ),
)
#: Kernels that convert the layout of images.
_LAYOUTS: Final = re.compile(r"(?i)nchw_?(?:to_?|2)\w?nhwc|nhwc_?(?:to_?|2)\w?nchw|cnhw|batched_transpose")
#: Minimum difference in the fraction of dispatches that graphs replay.
_GRAPH_DIFFERENCE: Final = 0.5
#: Minimum relative change of the launch count due to fusion.
_FUSED: Final = 0.1
#: Part of the names of compiled kernels that do the work of several kernels.
_FUSED_BY_NAME: Final = "_fused_"
_ATTENTION: Final = "attention"
_ATTENTION_BACKEND: Final = "attention_backend"
_SOFTMAX: Final = "softmax"
_PRODUCTS: Final = {"gemm", "conv", "attention", "linear attention"}
_UNFUSED: Final = "products and a softmax"
_GEMM: Final = "gemm"
_ORT: Final = "onnxruntime "
#: Packages and libraries that provide or select kernels.
_RUNTIMES: Final = re.compile(
    r"onnxruntime|torch|triton|migraphx|aiter|vllm|sglang|jax|tensorflow|rocm|hip|cuda|cudnn|cublas|cutlass|miopen|rccl"
    r"|nccl|flash|composable|tensile|xformers"
)
_LIBRARIES: Final = ("library", "rocm", "package", "provider")
_CACHE: Final = "cache"
_OF_A_CACHE: Final = re.compile(r"_(?:files|digest)$")


def selections(baseline: Arm, candidate: Arm, replaced: Iterable[Replaced]) -> pl.DataFrame:
    """Return one row for each selection that differs, most important first.

    Columns: what (`execution_provider`, `backend`, `precision`, `graph_replay`, `compilation`, `attention_backend`,
    `gemm_backend`, `node_placement`, `library`, `data_layout`, `datatype`, `fusion`, `kernel`, `copy_path`,
    `input_shape`, `cache`, `library_version`), from_value and to_value, operator and position (null when not known or
    not specific), count (in an iteration), baseline_ns and candidate_ns (time at these places in an iteration; null
    when it cannot be separated), matched_by, evidence (the table with the evidence). Selections of the whole session
    come first, then the others by the change of their time, then those without time.
    """
    if not baseline.accounts or not candidate.accounts:
        whole, places = list(_of_sessions(baseline, candidate)), []
    else:
        sides = baseline.accounts, candidate.accounts
        known = _kernels(sides[0]), _kernels(sides[1])
        whole = [*_of_sessions(baseline, candidate), *_graph_replay(*sides), *_one_sided(*known)]
        retyped, inputs = other_inputs(*sides)
        places = [_replacement(one, *known, *sides) for one in replaced]
        # Kernels of another format follow from inputs of that format and are not listed separately.
        places = [row for row in places if row["what"] != "datatype" or row["operator"] not in retyped]
        whole += [row for row in inputs if row["what"] == "datatype"]
        places += [*_same_name(*known), *copy_paths(*sides), *(row for row in inputs if row["what"] != "datatype")]
        places += [] if any(one["what"] == _ATTENTION_BACKEND for one in places) else _attention(*known)
        places.sort(key=lambda row: (-abs((row["candidate_ns"] or 0) - (row["baseline_ns"] or 0)), row["from_value"]))
    rows = [*whole, *places, *_of_environment(baseline, candidate)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _of_sessions(baseline: Arm, candidate: Arm) -> Iterator[Row]:
    columns = {"execution_provider": "provider", "backend": "backend", "precision": "precision"}
    for what in OF_SESSIONS:
        before, after = (_distinct(side.sessions.get_column(columns[what])) for side in (baseline, candidate))
        if before and after and before != after:
            yield selected(what, before, after, f"sessions.{columns[what]}")


def _distinct(values: pl.Series) -> str:
    return " | ".join(sorted(set(values.cast(pl.String).drop_nulls())))


def _graph_replay(before: Sequence[Account], after: Sequence[Account]) -> Iterator[Row]:
    """Return a row if a captured graph replays kernels on only one side."""
    ratios = [[one.graph_ratio for one in side if one.graph_ratio is not None] for side in (before, after)]
    if not all(ratios):
        return
    first, second = (sum(known) / len(known) for known in ratios)
    if abs(second - first) >= _GRAPH_DIFFERENCE:
        names = ("single launches", "graph replay")
        count = sum(one.groups.filter(pl.col("category") != COPY)["count"].sum() / one.steps for one in after)
        time = [round(sum(one.time_ns / one.steps for one in side) / len(side)) for side in (before, after)]
        yield selected(
            GRAPH_REPLAY,
            names[first > second],
            names[second > first],
            f"dispatches.graph_node_id: {first:.0%} and {second:.0%} of dispatches replayed",
            count=count / len(after),
            baseline_ns=time[0],
            candidate_ns=time[1],
        )


def _one_sided(before: Mapping[str, Row], after: Mapping[str, Row]) -> Iterator[Row]:
    """Return a row if a framework compiled or batched kernels on only one side.

    Such kernels replace those of many operators under an operator of their own, so they match at no position.
    """
    for what, pattern, least, plain, other in _MADE_FOR_MANY:
        made = [{name for name in side if re.search(pattern, name)} for side in (before, after)]
        if bool(made[0]) == bool(made[1]) or len(made[0] | made[1]) < least:
            continue
        # If no kernel disappeared, the new ones are additional work.
        if not (before.keys() - after.keys() and after.keys() - before.keys()):
            continue
        # It is unknown which kernels they replace, so there are no times.
        yield selected(
            what,
            other if made[0] else plain,
            other if made[1] else plain,
            "kernels.name",
            count=sum(side[name]["count"] for side, one in zip((before, after), made, strict=True) for name in one),
        )
        return  # compilation implies the other cases


def _attention(before: Mapping[str, Row], after: Mapping[str, Row]) -> Iterator[Row]:
    """Return a row if one side has an attention kernel, and the other products and a softmax."""
    own = [{name: one for name, one in side.items() if one["family"] == _ATTENTION} for side in (before, after)]
    if bool(own[0]) == bool(own[1]):
        return
    plain = {
        name: one
        for side, other in ((before, after), (after, before))
        if not any(one["family"] == _ATTENTION for one in side.values())
        for name, one in side.items()
        if one["family"] == _SOFTMAX and name not in other
    }
    if not plain:
        return
    names = (", ".join(sorted({one["short_name"] or name for name, one in (own[0] or own[1]).items()})), _UNFUSED)
    yield selected(
        _ATTENTION_BACKEND,
        names[0] if own[0] else names[1],
        names[1] if own[0] else names[0],
        "kernels.family",
        count=sum(one["count"] for one in plain.values()),
    )


def _kernels(side: Sequence[Account]) -> dict[str, Row]:
    """Return the columns of each kernel of a side by name, with its time and count per iteration."""
    rows = pl.concat([one.groups.with_columns(steps=pl.lit(one.steps)) for one in side], how="diagonal_relaxed")
    facts_of = [pl.col(one).drop_nulls().first() for one in ("short_name", "family", "library", "dtype", "tile")]
    per = [(pl.col(one) / pl.col("steps")).sum() / len(side) for one in ("count", "busy_ns")]
    found = rows.filter(pl.col("category") != COPY).group_by("name").agg(*facts_of, *per).sort("name")
    return {row["name"]: row for row in found.iter_rows(named=True)}


def _replacement(
    one: Replaced,
    known_before: Mapping[str, Row],
    known_after: Mapping[str, Row],
    before: Sequence[Account],
    after: Sequence[Account],
) -> Row:
    """Return the row of a replacement, classified by the kernels' families, libraries, formats and counts."""
    old = [known_before[name] for name in one.before]
    new = [known_after[name] for name in one.after]
    what = _what(old, new, sum(one.before.values()), sum(one.after.values()))
    was, became = _names(one.before, known_before), _names(one.after, known_after)
    if what == "datatype":
        was, became = f"{_formats(old)}, {was}", f"{_formats(new)}, {became}"
    return selected(
        what,
        was,
        became,
        "operator_kernels" if one.matched_by == "operator" else "dispatches",
        operator=one.operator,
        position=one.position,
        count=max(sum(one.before.values()), sum(one.after.values())),
        baseline_ns=_time(one.before, known_before, one.operator, before),
        candidate_ns=_time(one.after, known_after, one.operator, after),
        matched_by=one.matched_by,
    )


def _what(old: Sequence[Row], new: Sequence[Row], count_before: float, count_after: float) -> str:
    turned = [[bool(_LAYOUTS.search(row["name"])) for row in side] for side in (old, new)]
    # Layout conversions belong to other kernels, which determine the class.
    other_layout = any(turned[0]) != any(turned[1]) and not any(all(side) for side in turned)
    if other_layout:
        old, new = (
            [row for row, turns in zip(side, own, strict=True) if not turns]
            for side, own in zip((old, new), turned, strict=True)
        )
    families, libraries, formats = (
        tuple({row[key] for row in side if row[key] is not None} for side in (old, new))
        for key in ("family", "library", "dtype")
    )
    # Each side has a library that the other lacks.
    other_library = bool(libraries[0] - libraries[1] and libraries[1] - libraries[0])
    if other_library and all(name.startswith(_ORT) for name in libraries[0] | libraries[1]):
        return "node_placement"
    attention = [_ATTENTION in side for side in families]
    # An unknown attention library counts as different from a known one.
    if attention[0] != attention[1] or (all(attention) and libraries[0].isdisjoint(libraries[1]) and any(libraries)):
        return _ATTENTION_BACKEND
    if other_library:
        return "gemm_backend" if _GEMM in families[0] & families[1] else "library"
    if other_layout:
        return "data_layout"
    if _is_fusion(old, new, count_before, count_after):
        return "fusion"
    return "datatype" if all(formats) and formats[0].isdisjoint(formats[1]) else "kernel"


def _is_fusion(old: Sequence[Row], new: Sequence[Row], count_before: float, count_after: float) -> bool:
    """Return whether one side fuses kernels of the other, by kernel names or counts."""
    fused = [any(_FUSED_BY_NAME in row["name"] for row in side) for side in (old, new)]
    if fused[0] != fused[1] and len(new if fused[0] else old) > 1:
        return True
    # A product that is split into several kernels is not a fusion.
    is_product = {row["family"] for row in (*old, *new) if row["family"] is not None} <= _PRODUCTS
    merged = (len(old) - len(new)) * (count_before - count_after) > 0
    return merged and abs(count_after - count_before) > _FUSED * count_before and not is_product


def _formats(side: Sequence[Row]) -> str:
    return " + ".join(sorted({row["dtype"] for row in side if row["dtype"] is not None}))


def _names(counts: Mapping[str, float], known: Mapping[str, Row]) -> str:
    """Return the kernels' names, most frequent first; if there are several, the short names."""
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return " + ".join(ordered if len(ordered) == 1 else [known[name]["short_name"] or name for name in ordered])


def _time(
    counts: Mapping[str, float], known: Mapping[str, Row], operator: str | None, side: Sequence[Account]
) -> int | None:
    """Return the time of these kernel counts per iteration, at the operator if it is known.

    None if a kernel runs more often at that position, because the times of the relevant runs are then unknown.
    """
    ran = {name: (one["count"], one["busy_ns"]) for name, one in known.items()}
    if operator is not None:
        rows = pl.concat([one.sites.with_columns(pl.col("count", "busy_ns") / (one.steps * len(side))) for one in side])
        own = rows.filter((pl.col("operator") == operator) | (pl.col("outermost_operator") == operator))
        there = own.group_by("name").agg(pl.col("count", "busy_ns").sum()).sort("name")
        ran |= {name: (count, busy) for name, count, busy in there.iter_rows()}
    total = 0.0
    for name, count in counts.items():
        times, busy = ran[name]
        if times - count >= LEAST_COUNT:
            return None
        total += busy * count / times
    return round(total)


def _same_name(known_before: Mapping[str, Row], known_after: Mapping[str, Row]) -> Iterator[Row]:
    """Find kernels and operators with the same name but another library or number format."""
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(known_before.keys() & known_after.keys()):
        old, new = known_before[name], known_after[name]
        for key, what in (("library", "library"), ("dtype", "datatype")):
            if old[key] is not None and new[key] is not None and old[key] != new[key]:
                placed = key == "library" and old[key].startswith(_ORT) and new[key].startswith(_ORT)
                changed.setdefault(("node_placement" if placed else what, old[key], new[key]), []).append(name)
    for (what, was, became), names in changed.items():
        count = sum(known_after[name]["count"] for name in names)
        yield selected(
            what,
            was,
            became,
            f"kernels.{'dtype' if what == 'datatype' else 'library'} of {few(names)}",
            operator=few([known_after[name]["short_name"] or name for name in names]),
            count=count,
            baseline_ns=round(sum(known_before[name]["busy_ns"] for name in names)),
            candidate_ns=round(sum(known_after[name]["busy_ns"] for name in names)),
            matched_by="name",
        )


def _of_environment(baseline: Arm, candidate: Arm) -> Iterator[Row]:
    """Return rows of caches in another state, then of libraries in another version."""
    sides = [
        {(category, key): value for category, key, value in rows.iter_rows()}
        for rows in (
            facts(side)
            .drop_nulls("value")
            .group_by("category", "key")
            .agg(pl.col("value").unique().sort().str.join(" | "))
            for side in (baseline, candidate)
        )
    ]
    changed = sorted(key for key in sides[0].keys() & sides[1].keys() if sides[0][key] != sides[1][key])
    caches = dict.fromkeys(_OF_A_CACHE.sub("", key) for category, key in changed if category == _CACHE)
    for cache in caches:
        was, became = (_cache_state(side, cache) for side in sides)
        yield selected("cache", f"{cache}: {was}", f"{cache}: {became}", "environment", matched_by="name")
    for category, key in changed:
        if category in _LIBRARIES and (category != "package" or _RUNTIMES.search(key.lower())):
            was, became = (side[category, key] for side in sides)
            yield selected("library_version", f"{key} {was}", f"{key} {became}", "environment", matched_by="name")


def _cache_state(side: Mapping[tuple[str, str], str], cache: str) -> str:
    state = side.get((_CACHE, cache), "unknown")
    count, digest = (side.get((_CACHE, f"{cache}_{one}")) for one in ("files", "digest"))
    more = ", ".join(text for text in (count and f"{count} files", digest and f"digest {digest[:12]}") if text)
    return f"{state} ({more})" if more else state
