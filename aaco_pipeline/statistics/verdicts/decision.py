"""Decide verdicts from a comparison's figures, with thresholds from comparisons of identical code."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.verdicts.effects import (
    LEAST_BLOCKS,
    LEAST_BLOCKS_FOR_FLIPS,
    LEVEL,
    MOST_BLOCKS_FOR_FLIPS,
    blocks_needed,
    sign_flip_p,
)

#: Comparisons with equal values in these columns have the same noise.
DESIGN: Final = ("workload", "host", "metric", "design", "blocks", "sessions_per_block")
#: Minimum numbers of comparisons of identical code for a floor, and for a confidence of 0.95.
LEAST_FOR_FLOOR: Final = 100
LEAST_FOR_CONFIDENCE: Final = 19
_FLOOR_QUANTILE: Final = 0.95


def ledger_rows(verdicts: pl.DataFrame, designs: pl.DataFrame) -> pl.DataFrame:
    """Rows of `aa_ledger` with campaign_id, from the verdicts of comparisons of identical code.

    Parameters
    ----------
    verdicts : rows of `comparison.compare` with campaign_id; those without a p value give no row.
    designs : campaign_id and the columns of DESIGN that a verdict lacks: workload, host, blocks (all that ran),
        sessions_per_block.
    """
    judged = verdicts.filter(pl.col("p_value").is_not_null() & pl.col("level").is_not_null()).drop("blocks")
    columns = {"campaign_id": pl.String, **polars_types("aa_ledger")}
    return judged.join(designs, on="campaign_id").select(columns.keys()).cast(columns)  # type: ignore[arg-type]


def floors(ledger: pl.DataFrame) -> pl.DataFrame:
    """Floor of each design: columns of DESIGN, comparisons (their number), floor_ratio, p_values (sorted).

    floor_ratio is the 95 % quantile of the difference from 1 in either direction (observed, the higher of two); null
    with fewer than 100 comparisons. It is valid only while the host and its neighbours stay the same.
    """
    size = pl.col("effect_ratio").log().abs().quantile(_FLOOR_QUANTILE, "higher").exp() - 1
    return ledger.group_by(DESIGN, maintain_order=True).agg(
        comparisons=pl.len().cast(pl.Int64),
        floor_ratio=pl.when(pl.len() >= LEAST_FOR_FLOOR).then(size),
        p_values=pl.col("p_value").sort(),
    )


def confidence(p_value: float, known: Sequence[float]) -> tuple[float | None, str | None]:
    """The measured confidence that identical code does not differ as clearly, and a sentence on its source.

    Parameters
    ----------
    p_value : the p value of a comparison.
    known : p values of comparisons of identical code of the same design.

    Returns
    -------
    1 less the share of `known` at or below p_value, at most 1 - 1/(m + 1) for m of them, with a sentence that gives m
    and the upper 95 % limit of the share (Clopper and Pearson, The use of confidence or fiducial limits, 1934); both
    None with fewer than 19, which cannot show 0.95.

    Notes
    -----
    This is a measured rate of false alarms, not the probability that this alarm is true, which depends on how often
    code gets slower. It is too high when the ledger's nights were quieter than this one.
    """
    count = len(known)
    if count < LEAST_FOR_CONFIDENCE:
        return None, None
    from scipy.special import betaincinv

    reaching = sum(known_p <= p_value for known_p in known)
    upper = float(betaincinv(reaching + 1, count - reaching, 0.975)) if reaching < count else 1.0
    source = f"{reaching} of {count} comparisons of identical code differ as clearly (at most {upper:.1%} of such)"
    return 1 - max(reaching / count, 1 / (count + 1)), source


INTERLEAVED: Final = "interleaved"
STORED_BASELINE: Final = "stored baseline"

REGRESSED: Final = "regressed"
IMPROVED: Final = "improved"
EQUIVALENT: Final = "equivalent"
INCONCLUSIVE: Final = "inconclusive"
HARDWARE_DIFFERS: Final = "hardware differs"
WITHHELD: Final = "withheld"

#: Minimum number of sessions in each arm for a verdict.
LEAST_SESSIONS: Final = 3
#: Facts that all sessions of a comparison must share, by the column with the number of distinct values.
_HARDWARE: Final = {"host_count": "hosts", "device_count": "devices", "fingerprint_count": "environments"}
_MOST_NAMED: Final = 3

Row = Mapping[str, Any]


def decided(row: Row, policy_ratio: float, looks: tuple[int, ...]) -> dict[str, Any]:
    """Build a row of `verdicts` from the figures of one comparison; the first rule that applies decides.

    There is no verdict on different hardware, on mixed cache states or with fewer than three sessions in an arm. The
    verdict is inconclusive on a host that slows processes of both arms, without a baseline in the same blocks, with
    fewer than five blocks, and between the planned looks.
    """
    threshold = max(policy_ratio, row["floor_ratio"] or 0.0)
    verdict, reason, recommendation = next(_obstacles(row, looks), None) or _by_interval(row, threshold, looks)
    differs = verdict in (REGRESSED, IMPROVED)
    trust, source = confidence(row["p_value"], row["p_values"] or []) if differs else (None, None)
    # Equal block numbers of a stored baseline do not mean the same block.
    paired = row["design"] != STORED_BASELINE
    shown = paired and verdict not in (HARDWARE_DIFFERS, WITHHELD)
    return {
        **{name: row[name] for name in _COPIED},
        **{name: row[name] if shown else None for name in ("p_value", "minimum_detectable_ratio")},
        "verdict": verdict,
        "effect_ratio": None if verdict == HARDWARE_DIFFERS else ratio_of(_mean(row, paired)),
        "ci_low": ratio_of(row["low"]) if shown else None,
        "ci_high": ratio_of(row["high"]) if shown else None,
        "threshold_ratio": threshold,
        "blocks": row["paired"] if paired else 0,
        "sessions_needed": _sessions_needed(row, threshold) if shown else None,
        "confidence": trust,
        "confidence_source": source,
        "alert_grade": grade(row["boots"]) if verdict == REGRESSED else None,
        "excluded_sessions": row["excluded_sessions"] or [],
        "slow_sessions": row["slow_sessions"] or [],
        "recommendation": recommendation,
        "reasons": [reason, *_remarks(row, policy_ratio)],
    }


_COPIED: Final = ("campaign_id", "metric", "design", "sessions_baseline", "sessions_candidate", "level", "floor_ratio")


def _mean(row: Row, paired: bool) -> float | None:
    """Return the mean log ratio of blocks, or of the arms' means if there are no pairs."""
    mean: float | None = row["mean"] if paired and row["mean"] is not None else row["unpaired_mean"]
    return mean


def withheld(verdicts: pl.DataFrame, reason: str) -> pl.DataFrame:
    """Rows of `verdicts` for arms that cannot be compared: withheld, without figures."""
    figures = ("effect_ratio", "ci_low", "ci_high", "p_value", "minimum_detectable_ratio", "sessions_needed")
    no_longer = (*figures, "confidence", "confidence_source", "alert_grade", "recommendation")
    return verdicts.with_columns(
        pl.lit(WITHHELD).alias("verdict"),
        pl.lit([reason]).alias("reasons"),
        *(pl.lit(None, verdicts.schema[name]).alias(name) for name in no_longer),
    )


def unjudged(row: Row) -> Iterator[tuple[str, str, str]]:
    """Reasons against any comparison, most serious first: verdict, reason, recommendation."""
    differing = [f"{row[name]} {words}" for name, words in _HARDWARE.items() if row[name] > 1]
    if differing:
        what = f"the sessions ran on {' and in '.join(differing)}"
        yield HARDWARE_DIFFERS, what, "run both arms on one device in one environment"
    if row["cache_state_count"] > 1:
        yield WITHHELD, "sessions with cold and with warm caches are mixed", "run both arms with caches in one state"
    entered = [row["sessions_baseline"], row["sessions_candidate"]]
    if min(entered) < LEAST_SESSIONS:
        what = f"{entered[0]} sessions of the baseline and {entered[1]} of the candidate have a {_quantile(row)}"
        # Further sessions like the omitted ones would be omitted as well.
        again = "see why sessions were left out, then run both arms again"
        advice = again if row["excluded_sessions"] else "run more sessions of both arms"
        yield WITHHELD, f"{what}, and three of each are the least", advice


def _obstacles(row: Row, looks: tuple[int, ...]) -> Iterator[tuple[str, str, str]]:
    """Reasons against a decision by the interval, in the format of `unjudged`."""
    yield from unjudged(row)
    yield from busy_host(row)
    blocks = looks[-1]
    if row["design"] == STORED_BASELINE or not row["paired"]:
        what = "the baseline was not run again in the same blocks, so what the host did meanwhile counts as change"
        yield INCONCLUSIVE, what, f"run {blocks} blocks with both arms in random order on one device"
    if row["paired"] < LEAST_BLOCKS:
        what = f"{row['paired']} blocks hold both arms, an interval needs {LEAST_BLOCKS}"
        yield INCONCLUSIVE, what, f"run {max(blocks, LEAST_BLOCKS)} blocks with both arms"
    if row["level"] is None:
        what = f"{row['blocks']} blocks were run, and the plan takes its verdicts at {_listed(looks)}"
        following = [look for look in looks if look > row["blocks"]]
        advice = f"go on to {following[0]} blocks" if following else "plan a new campaign: looks are fixed beforehand"
        yield INCONCLUSIVE, what, advice


def busy_host(row: Row) -> Iterator[tuple[str, str, str]]:
    """Report slow sessions in several arms, which are then caused by the host."""
    if len(row["slow_arms"] or []) > 1:
        what = f"a busy host: sessions of {' and '.join(row['slow_arms'])} ran slower throughout ({_slow(row)})"
        yield INCONCLUSIVE, what, "run the campaign again on a host without other work"


def _by_interval(row: Row, threshold: float, looks: tuple[int, ...]) -> tuple[str, str, str | None]:
    """Verdict, reason and recommendation from the interval and the threshold."""
    upper, lower = float(np.log1p(threshold)), float(np.log1p(-threshold))
    interval = f"{ratio_of(row['low']):.4f} to {ratio_of(row['high']):.4f}"
    matters = f"a difference of {percent(threshold)}"
    ratios = np.array(row["log_ratios"])
    for verdict, beyond, against, quiet in (
        (REGRESSED, row["low"] > upper, ratios - upper, (row["low_quiet"] or 0.0) > upper),
        (IMPROVED, row["high"] < lower, lower - ratios, (row["high_quiet"] or 0.0) < lower),
    ):
        if beyond and not quiet:
            what = f"the interval, {interval}, lies beyond {matters}, but not without slow sessions: {_slow(row)}"
            return INCONCLUSIVE, what, "run it again; where they recur, look at what the slow sessions selected"
        if beyond and _flips_agree(against, row["level"]):
            return verdict, f"the whole interval, {interval}, lies beyond {matters}", None
        if beyond:
            what = f"the interval, {interval}, lies beyond {matters}, but flipped signs reach as far by chance"
            return INCONCLUSIVE, what, _more(row, threshold, looks)
    if row["narrow_low"] > lower and row["narrow_high"] < upper:
        narrow = f"{ratio_of(row['narrow_low']):.4f} to {ratio_of(row['narrow_high']):.4f}"
        return EQUIVALENT, f"the whole 90 % interval, {narrow}, lies within {matters}", None
    what = f"the interval, {interval}, holds differences of less and of more than {percent(threshold)}"
    return INCONCLUSIVE, what, _more(row, threshold, looks)


def _flips_agree(ratios: np.ndarray[Any, np.dtype[np.float64]], level: float) -> bool:
    """Return whether exact sign flips support a mean above 0; untested for too few or too many blocks."""
    count = len(ratios)
    can_tell = LEAST_BLOCKS_FOR_FLIPS <= count <= MOST_BLOCKS_FOR_FLIPS and 2.0**-count <= level / 2
    return not can_tell or sign_flip_p(ratios) <= level / 2


def _more(row: Row, threshold: float, looks: tuple[int, ...]) -> str:
    following = [look for look in looks if look > row["blocks"]]
    if following:
        return f"go on to the plan's next look, at {following[0]} blocks"
    needed = blocks_needed(row["deviation"], threshold, row["level"])
    if needed <= row["paired"]:
        return "the difference lies near the threshold: choose another threshold, more sessions decide little"
    return f"plan a campaign of {max(needed, LEAST_BLOCKS)} blocks, or look for what makes sessions differ"


def _sessions_needed(row: Row, threshold: float) -> int | None:
    if row["deviation"] is None:
        return None
    needed = blocks_needed(row["deviation"], threshold, row["level"] or LEVEL)
    return max(needed, LEAST_BLOCKS) * int(row["sessions_per_block"])


def _remarks(row: Row, policy_ratio: float) -> Iterator[str]:
    """Remarks after the deciding reason."""
    excluded = len(row["excluded_sessions"] or [])
    if excluded:
        why = ", ".join(f"{each['count']} {each['why']}" for each in row["why"])
        subject = "1 session is" if excluded == 1 else f"{excluded} sessions are"
        yield f"{subject} left out of the {_quantile(row)}: {why}"
    if row["slow_sessions"] and len(row["slow_arms"]) == 1:
        yield f"sessions of one arm ran slower throughout: {_slow(row)}"
    known = row["comparisons"] or 0
    if row["floor_ratio"] is None:
        yield f"the threshold is the policy alone: {known} of {LEAST_FOR_FLOOR} comparisons of identical code are known"
    elif row["floor_ratio"] > policy_ratio:
        yield f"the threshold is the floor that {known} comparisons of identical code set"


def _quantile(row: Row) -> str:
    """Name the metric: `P99`, `trimmed mean`."""
    name = str(row["metric"]).removeprefix("latency_").replace("_", " ")
    return name.upper() if name[1:].isdigit() else name


def _slow(row: Row) -> str:
    named = zip(row["slow_sessions"], row["times_slower"], strict=True)
    words = [f"{session} {times:.2f} times" for session, times in named]
    rest = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def grade(boots: int | None) -> str | None:
    """Grade a regression by the number of boots; None if a boot was not recorded."""
    return None if boots is None else "one boot" if boots == 1 else "two boots"


def percent(ratio: float) -> str:
    """Format a ratio as a percentage: `1 %`."""
    return f"{100 * ratio:.3g} %"


def ratio_of(log: float | None) -> float | None:
    """The ratio of a log ratio."""
    return None if log is None else float(np.exp(log))


def _listed(looks: tuple[int, ...]) -> str:
    return ", ".join(str(look) for look in looks) + " blocks"


def false_discoveries(verdicts: pl.DataFrame) -> pl.DataFrame:
    """Return the verdicts of one night with q_value, corrected for the number of comparisons.

    Parameters
    ----------
    verdicts : the rows of all comparisons of one night from `comparison.compare`.

    Returns
    -------
    The same rows, sorted by campaign and metric. q_value is null when p_value is. Regressed and improved rows with a q
    above 0.05 become inconclusive, with the reason first.

    Notes
    -----
    Benjamini and Hochberg, Controlling the false discovery rate, 1995: at most one in twenty of the remaining
    differences is expected to be false, for independent or positively correlated benchmarks. Primary and supporting
    metrics are separate families, so that adding a supporting metric does not affect the primary ones. Comparisons must
    not be omitted because of their result.
    """
    from scipy.stats import false_discovery_control

    families = []
    for family in verdicts.partition_by("role", maintain_order=True):
        tested = family.filter(pl.col("p_value").is_not_null())
        untested = family.filter(pl.col("p_value").is_null())
        adjusted = false_discovery_control(tested.get_column("p_value").to_numpy())
        families.append(pl.concat([tested.with_columns(q_value=pl.Series(adjusted, dtype=pl.Float64)), untested]))
    table = pl.concat(families) if families else verdicts
    taken_back = pl.col("verdict").is_in([REGRESSED, IMPROVED]) & (pl.col("q_value") > LEVEL)
    compared = pl.col("p_value").count().over("role")
    reason = pl.format("among the night's {} comparisons a difference as clear as this is no rarity", compared)
    return table.with_columns(
        verdict=pl.when(taken_back).then(pl.lit(INCONCLUSIVE)).otherwise("verdict"),
        reasons=pl.when(taken_back).then(pl.concat_list(reason, "reasons")).otherwise("reasons"),
        **{name: pl.when(~taken_back).then(name) for name in ("confidence", "confidence_source", "alert_grade")},
    ).sort("campaign_id", "metric")
