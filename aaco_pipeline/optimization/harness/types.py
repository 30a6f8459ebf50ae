"""C types of kernel parameters and the numpy types that have the same bits."""

import re
from typing import Any, Final

import numpy as np

_NUMPY: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "__half": "float16",
    "_Float16": "float16",
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "uint": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "long long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    **{f"int{bits}_t": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
#: A vector type is so many values of its element.
_VECTOR: Final = re.compile(r"(float|double|int|uint|short|char)[234]")
_QUALIFIERS: Final = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|std::)\b|[*&]|std::")


def numpy_type(written: str) -> "np.dtype[Any] | None":
    """The numpy type of a parameter's type as written in C, None where it is not known (a typedef, a template's)."""
    plain = " ".join(_QUALIFIERS.sub(" ", written).split())
    vector = _VECTOR.fullmatch(plain)
    name = _NUMPY.get(vector[1] if vector else plain)
    return None if name is None else np.dtype(name)
