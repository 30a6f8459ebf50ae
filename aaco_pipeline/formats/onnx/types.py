"""Element types and extents of ONNX tensors, as Python values."""

from typing import Final

import onnx

TensorType = tuple[str | None, tuple[int | None, ...] | None]
"""Element type and extents of a tensor; None where the model does not say."""

UNKNOWN: Final[TensorType] = (None, None)


def _dtype_names() -> dict[int, str]:
    """Element types by ONNX's number, named as NumPy and ml_dtypes do: float32, bfloat16, int4, float8e4m3fn."""
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    del names[onnx.TensorProto.UNDEFINED]
    return {**names, onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}


DTYPES: Final = _dtype_names()
DTYPE_NUMBERS: Final = {name: number for number, name in DTYPES.items()}


def type_of(declared: onnx.TypeProto) -> TensorType:
    """Element type and extents of a dense or sparse tensor; nothing for a sequence, map or optional."""
    kind = declared.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return UNKNOWN
    tensor = getattr(declared, kind)
    dtype = DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple([_extent(dim) for dim in tensor.shape.dim])


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
