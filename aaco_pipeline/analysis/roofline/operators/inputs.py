"""Recorded inputs of an operator by position, and the work that a formula derives from them.

`formulas` assigns the formula to each operator. Types are spelled as in PyTorch's profiler, for either compiler; lists
of tensors are recorded without their types.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from aaco_pipeline.analysis.model import product_formulas

#: Number format and element size in bytes, by the profiler's type name.
_TYPES: Final = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e4m3fnuz"), ("fp8", 1)),
    **dict.fromkeys(("c10::Float8_e5m2", "c10::Float8_e5m2fnuz"), ("fp8", 1)),
    "c10::Float4_e2m1fn_x2": ("fp4x2", 1),
    **dict.fromkeys(("long int", "long"), ("int64", 8)),
    "int": ("int32", 4),
    **dict.fromkeys(("short int", "short"), ("int16", 2)),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
}
_FLOATS: Final = ("fp64", "fp32", "fp16", "bf16", "fp8")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
#: A larger dimension means damaged data.
_MOST_ELEMENTS: Final = 2**60
Value = bool | int | float | tuple["Value", ...]


class Unstated(Exception):
    """An input required by a formula is not recorded or does not fit the operator; the message names it."""


@dataclass(frozen=True)
class Tensor:
    """Extents, number format, bytes per element, and strides in elements where they are recorded."""

    """Extents, number format, bytes of an element, and strides in elements where they are recorded."""

    shape: tuple[int, ...]
    dtype: str
    element_bytes: int
    strides: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def stored(self) -> int:
        """Elements in memory; a dimension of stride zero, which repeats one element, counts once."""
        if self.strides is None:
            return self.count
        return math.prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride or not size)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.stored * self.element_bytes

    @property
    def is_float(self) -> bool:
        """Return whether the elements are floating-point numbers."""
        return self.dtype in _FLOATS

    @property
    def of_model(self) -> product_formulas.Tensor:
        """The tensor in the form used by the formulas for nodes of a model."""
        return product_formulas.Tensor(self.dtype, self.shape)


@dataclass(frozen=True)
class Work:
    """Work of one call: operations, and minimum bytes, with inputs read once and outputs written once.

    `dtype` is the number format of the operations; `is_product` marks sums of products, which matrix units compute.
    `detail` is a description that distinguishes calls of the same shapes. Unknown figures are None, and `lacking` gives
    the reason.
    """

    flops: float | None
    least_bytes: float | None
    dtype: str | None
    is_product: bool = False
    detail: str = ""
    lacking: str | None = None


class Inputs:
    """Recorded inputs of one call. Each reader raises Unstated if no matching input is recorded."""

    def __init__(self, shapes: str, types: str, strides: str | None = None, values: str | None = None) -> None:
        self.dims, self.types = _list(shapes), [one if isinstance(one, str) else "" for one in _list(types)]
        self._strides = _list(strides) if strides is not None else []
        self._values = _list(values) if values is not None else None

    def __len__(self) -> int:
        return min(len(self.dims), len(self.types))

    def tensor(self, at: int) -> Tensor:
        """The tensor at a position."""
        if not 0 <= at < len(self):
            raise Unstated(f"input {at} is not recorded")
        known = _TYPES.get(self.types[at])
        if known is None:
            raise Unstated(f"input {at} is recorded as {self.types[at] or 'nothing'}, not as a tensor of a known type")
        shape = _extents(self.dims[at], f"the shape of input {at}")
        return Tensor(shape, *known, self._strides_of(at, len(shape)))

    def given(self, at: int) -> bool:
        """Return whether there is a tensor at a position."""
        return at < len(self) and self.types[at] in _TYPES

    def tensors(self) -> list[Tensor]:
        """Return all tensors in order. Raises Unstated if they include a list or a tensor of unknown type."""
        for at, name in enumerate(self.types[: len(self)]):
            if name == "TensorList":
                raise Unstated("the types of a list's tensors are not recorded")
            if self.dims[at] and name not in _TYPES:
                raise Unstated(f"input {at} is of the type {name or 'nothing'}, whose size is not known")
        return [self.tensor(at) for at in range(len(self)) if self.given(at)]

    def value(self, at: int) -> Value:
        """Return the value of a non-tensor input."""
        if self._values is None:
            raise Unstated("the trace did not record the values of inputs")
        text = self._values[at] if at < len(self._values) else ""
        found = _value(text) if isinstance(text, str) else None
        if found is None:
            raise Unstated(f"the value of input {at} is not recorded")
        return found

    def flag(self, at: int) -> bool:
        """A Boolean value."""
        found = self.value(at)
        if not isinstance(found, bool):
            raise Unstated(f"input {at} is neither true nor false")
        return found

    def integer(self, at: int) -> int:
        """An integer value."""
        found = self.value(at)
        if isinstance(found, bool) or not isinstance(found, int):
            raise Unstated(f"input {at} is no whole number")
        return found

    def integers(self, at: int) -> tuple[int, ...]:
        """A list of integers."""
        found = self.value(at)
        if not isinstance(found, tuple) or any(isinstance(one, bool) or not isinstance(one, int) for one in found):
            raise Unstated(f"input {at} is no list of whole numbers")
        return tuple(int(one) for one in found if isinstance(one, int))

    def flags(self, at: int) -> tuple[bool, ...]:
        """A list of Booleans."""
        found = self.value(at)
        if not isinstance(found, tuple) or not all(isinstance(one, bool) for one in found):
            raise Unstated(f"input {at} is no list of true and false")
        return tuple(bool(one) for one in found)

    def _strides_of(self, at: int, rank: int) -> tuple[int, ...] | None:
        found = self._strides[at] if at < len(self._strides) else None
        fits = isinstance(found, list) and len(found) == rank and all(type(one) is int for one in found)
        return tuple(found) if fits and isinstance(found, list) else None


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape by PyTorch's rules."""

    try:
        return product_formulas.broadcast(*shapes)
    except product_formulas.Unknown:
        raise Unstated("the inputs' shapes do not fit each other") from None


def _list(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Unstated("the recorded inputs cannot be read") from None
    if not isinstance(found, list):
        raise Unstated("the recorded inputs cannot be read")
    return found


def _extents(found: object, what: str) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(one) is int and one >= 0 for one in found):
        raise Unstated(f"{what} is no list of sizes")
    if math.prod(found) > _MOST_ELEMENTS:
        raise Unstated(f"{what} is larger than any memory")
    return tuple(found)


def _value(text: str) -> Value | None:
    """Parse a value written by the profiler; None for anything but numbers, Booleans and lists of these."""
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("[") and text.endswith("]"):
        parts = [_value(part.strip()) for part in text[1:-1].split(",")] if text[1:-1].strip() else []
        known = tuple(part for part in parts if part is not None and not isinstance(part, tuple))
        return known if len(known) == len(parts) else None
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)
