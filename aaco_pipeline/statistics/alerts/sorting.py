"""What a finding is held to be before code is blamed for it.

Four explanations go before the code: how it was measured changed, what it ran on, what was selected, or chance.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

REAL: Final = "real"
METHOD_CHANGED: Final = "method changed"
HARDWARE_DIFFERS: Final = "hardware differs"
SELECTION_CHANGED: Final = "selection changed"
NOISE: Final = "noise"

Row = Mapping[str, Any]


def sorted_as(now: Row, before: Row | None) -> tuple[str, str | None]:
    """What the finding of a campaign is, and why; the first explanation that holds.

    Parameters
    ----------
    now : the campaign's row of `night.SIGHTINGS`.
    before : that of the benchmark's campaign before it; None when there is none.

    Returns
    -------
    `hardware differs`, `method changed`, `noise`, `selection changed` or `real`, and a sentence; None for `real`.

    Notes
    -----
    The order is that of what would mislead most: arms on unlike hardware compare nothing; under another method the
    difference may always have been there; where identical code moves, the host did it. A change of selection is
    a cause, told before any other because the code itself need not have changed. It lies where a fact that differs was
    not recorded.
    """
    return next(_explanations(now, before), (REAL, None))


def _explanations(now: Row, before: Row | None) -> Iterator[tuple[str, str]]:
    if now["verdict"] == HARDWARE_DIFFERS:
        yield HARDWARE_DIFFERS, "the sessions of its arms ran on unlike hardware"
    changed = [] if before is None else method_changes(before, now)
    if changed:
        yield METHOD_CHANGED, f"measured otherwise than before: {', '.join(changed)}"
    if now["is_identical"]:
        yield NOISE, "both arms are the same file, measured in the same way"
    if now["placebo_verdict"] in ("regressed", "improved"):
        yield NOISE, f"the placebo, which is the baseline once more, {now['placebo_verdict']} as well"
    if now["selections"]:
        yield SELECTION_CHANGED, f"something else was selected: {now['selections'][0]}"


def method_changes(before: Row, now: Row) -> list[str]:
    """In what two campaigns of a benchmark were measured differently, as `key: before → now`.

    A fact that either of them did not record is passed over.
    """
    earlier, later = (dict(one["method"]) for one in (before, now))
    shared = sorted(earlier.keys() & later.keys())
    return [f"{key}: {earlier[key]} → {later[key]}" for key in shared if earlier[key] != later[key]]
