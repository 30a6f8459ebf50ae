"""What every output holds before a call, so that an element that nobody wrote is recognized.

Floating-point numbers are NaN with a payload that no arithmetic makes; integers a number in no usual range. A target
may have a poison of its own, drawn for each call, and says so in `Execution.poison`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: The bits of one poisoned element, by the bytes it takes. The exponent is that of a quiet NaN in float16, 32 and 64.
_FLOATING: Final = {2: 0x7EA5, 4: 0x7FE5A5A5, 8: 0x7FFDA5A5A5A5A5A5}
_OTHER: Final = 0xA5A5A5A5A5A5A5A5


def poison(dtype: str, elements: int) -> NDArray[Any]:
    """`elements` values of the numpy type `dtype` that are all poison."""
    kind = np.dtype(dtype)
    return np.full(elements, _bits(kind), dtype=_unsigned(kind)).view(kind)


def untouched(values: NDArray[Any], element: bytes | None = None) -> NDArray[np.bool_]:
    """Which elements still are poison, bit by bit: the bytes `element`, or what `poison` gives."""
    held = _bits(values.dtype) if element is None else np.frombuffer(element, _unsigned(values.dtype))
    return np.asarray(bits(values) == held)


def bits(values: NDArray[Any]) -> NDArray[Any]:
    """`values` as unsigned integers of the same bits."""
    return np.ascontiguousarray(values).view(_unsigned(values.dtype))


def _bits(kind: np.dtype[Any]) -> int:
    return _FLOATING[kind.itemsize] if kind.kind == "f" else _OTHER >> (64 - 8 * kind.itemsize)


def _unsigned(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{kind.itemsize}")
