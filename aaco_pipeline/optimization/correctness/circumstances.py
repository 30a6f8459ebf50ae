"""Under which circumstances a candidate is called: what differs from use to use, drawn from the check's seed.

A right answer depends on none of it: not on the order in which work-items happen to run, not on where buffers lie or on
what outputs and local data share held before. Each call of a pair has the other half: another order, the other places,
old values where the first had poison.
"""

from collections.abc import Mapping

import numpy as np

from aaco_pipeline.optimization.calls import (
    ASCENDING,
    DESCENDING,
    MOST_ORDER,
    Buffer,
    Call,
    Circumstances,
    Content,
)

#: Of integers that an output held before: as many values as a count or an index often has.
_MOST_OLD_INTEGER = 1000


def draw_pair(
    call: Call, earlier: Mapping[str, Content] | None, rng: np.random.Generator
) -> tuple[Circumstances, Circumstances]:
    """The circumstances of two calls with the same inputs.

    `earlier` are the outputs of a call with other inputs, null where there was none: an output's old values are those,
    all finite, or numbers that are as likely as any.
    """
    some = int(rng.integers(DESCENDING + 1, MOST_ORDER, endpoint=True))
    orders = rng.permutation([ASCENDING, DESCENDING, some])
    aligned, keeps, poisoned = (bool(one) for one in rng.random(3) < 0.5)
    old = {
        one.name: _old(one, None if earlier is None else earlier.get(one.name), rng)
        for one in call.arguments
        if isinstance(one, Buffer) and one.role == "out"
    }
    return (
        Circumstances(int(orders[0]), aligned, keeps, {} if poisoned else old),
        Circumstances(int(orders[1]), not aligned, not keeps, old if poisoned else {}),
    )


def told(circumstances: Circumstances) -> str:
    """In words what the call was like, empty where it was as every other."""
    order = {ASCENDING: None, DESCENDING: "work-items in descending order"}
    words = (
        order.get(circumstances.order, "work-items in a random order"),
        "buffers at multiples of 256 bytes" if circumstances.is_aligned else None,
        "local data share as it was left" if circumstances.keeps_lds else None,
        "outputs with old values" if circumstances.before else None,
    )
    return ", ".join(word for word in words if word is not None)


def _old(buffer: Buffer, earlier: Content | None, rng: np.random.Generator) -> Content:
    kind = np.dtype(buffer.dtype)
    if earlier is not None:
        if kind.kind != "f":
            return earlier
        return np.nan_to_num(earlier, nan=1.0, posinf=2.0, neginf=-2.0)
    if kind.kind == "f":
        return rng.standard_normal(buffer.elements).astype(kind)
    most = 1 if kind.kind == "b" else min(_MOST_OLD_INTEGER, int(np.iinfo(kind).max))
    return rng.integers(0, most, buffer.elements, endpoint=True).astype(kind)
