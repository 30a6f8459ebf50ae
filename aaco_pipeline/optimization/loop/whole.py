"""Several accepted changes timed as a whole, and which figure a search reports.

Each change was held against the source with those before it. The product of their gains is a figure that nobody has
measured, so the last accepted source is timed against the first one, under the rule of every confirmation: built in an
empty folder, in fresh processes, in layouts that no search and no other confirmation has seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, Final, Literal

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.loop.attempt import Held, sha256
from aaco_pipeline.optimization.loop.decisions import Decision, Stop, decide_whole
from aaco_pipeline.optimization.loop.means import Builder, Means, Ruling

GainOf = Literal["confirmation", "whole", "product"]
"""What a reported gain is: one change's confirmation, that of several as a whole, or the product of confirmations."""

_FIGURES: Final = ("speedup_ratio", "ci_low", "ci_high")


@dataclass(frozen=True)
class Gain:
    """How many times as fast the accepted source is as the first one, with the ends of its interval."""

    of: GainOf
    speedup_ratio: float
    ci_low: float
    ci_high: float


def time_whole(
    means: Means, held: Held, builder: Builder, *, accepted: Sequence[int], seed: int
) -> tuple[Decision, dict[str, Any]]:
    """Time the accepted source against the one as it was: the decision, and its line of the journal.

    `accepted` are the numbers of the attempts it is made of, `builder` builds in an empty folder, `seed` is drawn for
    this alone.
    """
    version = replace(held.version, bit_exact=held.is_exact)
    ruling: Ruling | None = None
    timings, stop = dict[str, Any](), None
    try:
        evidence = means.timer.measure("confirmation", builder, (held.original, version), seed)
        ruling = means.timer.decide("confirmation", evidence)
        timings["confirmation"] = {"evidence": dict(evidence), "ruling": asdict(ruling)}
    except Refused as refused:
        stop = Stop("whole", refused.guard, refused.reason)
    except UsageError as error:  # an input was drawn on which the source as it was fails
        stop = Stop("whole", "baseline", str(error))
    decision = decide_whole(stop, ruling)
    record = {
        "kind": "whole",
        "attempts": list(accepted),
        "baseline_sha256": sha256(held.original.source),
        "source_sha256": sha256(version.source),
        "block": None if version.block is None else list(version.block),
        "bit_exact": version.bit_exact,
        "seed": seed,
        "timings": timings,
        "stop": None if stop is None else asdict(stop),
        **asdict(decision),
    }
    return decision, record


def is_kept(decision: str | None, guard: str | None) -> bool:
    """Whether accepted changes are handed on, by what was decided of them as a whole; null where that was not asked.

    They are where the whole was confirmed, and where only time was lacking: each of them was proved by itself. Whatever
    else spoke against the whole leaves the source as it was.
    """
    return decision in (None, "accepted") or guard == "budget"


def gain_of(accepted: Sequence[Mapping[str, Any]], whole: Mapping[str, Any] | None) -> Gain | None:
    """The gain that a search reports, of its journal's lines; null where nothing was accepted, or the whole fell.

    The ends of a product are the products of the ends. A larger batch of a model is another question: what it gains for
    each item is no part of what an iteration gained.
    """
    accepted = [line for line in accepted if line.get("ratio_of") != "item"]
    if not accepted or (whole is not None and not is_kept(whole["decision"], whole["guard"])):
        return None
    if whole is not None and whole["decision"] == "accepted":
        return Gain("whole", *(whole[name] for name in _FIGURES))
    of: GainOf = "product" if len(accepted) > 1 else "confirmation"
    return Gain(of, *(prod(line[name] for line in accepted) for name in _FIGURES))
