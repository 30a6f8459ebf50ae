"""The causes of a change laid end to end, so that they add up before the reader's eyes; the same for every form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.words.units import counted

Row = Mapping[str, Any]

#: Causes that are shown one by one, and of those whose interval holds zero.
_SHOWN: Final = 12
_UNSURE: Final = 3
#: A cause below this part of the change is not shown by itself.
_LEAST: Final = 0.01


def steps(causes: Sequence[Row], begins_at: float = 0.0) -> list[dict[str, Any]]:
    """The causes that are in the sum in their order, the small and the unsure together, what is unexplained last.

    Each has kind (None of several), in_words without its figure, delta_ns, ci_low_ns, ci_high_ns, share_ratio,
    is_certain (False where its interval holds zero, None without one), and from_ns and then_ns: where the sum stood
    before and stands after it.
    """
    rows = [row for row in causes if row["in_sum"]]
    named = [row for row in rows if row["kind"] != "unexplained"]
    change = sum(row["delta_ns"] for row in rows)
    largest = sorted(named, key=_size, reverse=True)
    unsure = [row for row in largest if _is_certain(row) is False]
    chosen = [row for row in largest if row not in unsure[_UNSURE:]][:_SHOWN]
    rest = [row for row in named if row not in chosen or _size(row) < _LEAST * abs(change)]
    # One alone is shown as it is.
    shown = [_shown(row) for row in named if row not in rest or len(rest) == 1]
    if count := len(named) - len(shown):
        delta = sum(row["delta_ns"] for row in named) - sum(row["delta_ns"] for row in shown)
        what = "smaller or uncertain cause" if len(unsure) > _UNSURE else "smaller cause"
        told = {"in_words": f"{counted(count, what)} together", "delta_ns": delta}
        shown.append({**told, **dict.fromkeys(("kind", "ci_low_ns", "ci_high_ns", "is_certain"))})
    shown += [_shown(row) for row in rows if row["kind"] == "unexplained"]
    then = begins_at
    for row in shown:
        row["from_ns"] = then
        then += row["delta_ns"]
        row["then_ns"] = then
        row["share_ratio"] = row["delta_ns"] / change if change else None
    return shown


def of_change(ratio: float | None) -> str | None:
    """A part of the change as people say it; causes that work against each other have more than all of it."""
    return None if ratio is None else f"{round(100 * ratio):d} %".replace("-", "−")


# ---- inside ----------------------------------------------------------------------------------------------------------


def _shown(row: Row) -> dict[str, Any]:
    figures = {name: row[name] for name in ("kind", "delta_ns", "ci_low_ns", "ci_high_ns")}
    return {"in_words": row["in_words"].rsplit(": ", 1)[0], **figures, "is_certain": _is_certain(row)}


def _is_certain(row: Row) -> bool | None:
    low, high = row["ci_low_ns"], row["ci_high_ns"]
    return None if low is None else bool(low > 0 or high < 0)


def _size(row: Row) -> float:
    return abs(float(row["delta_ns"]))
