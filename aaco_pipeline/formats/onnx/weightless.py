"""An ONNX model without its weights: the part of the file stored with a session and read for its graph.

`aaco_pipeline.formats.onnx` turns the graph into frames. Importing onnx takes a noticeable fraction of a second.
"""

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx

from aaco_pipeline.errors import ModelError

#: Attribute tensors up to this size are kept: shapes, axes and scalars that shape inference needs.
KEPT_BYTES: Final = 1024
_TENSOR_DATA: Final = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "string_data",
)
_ITEM_BYTES: Final = {"raw_data": 1, "float_data": 4, "int32_data": 4, "string_data": 16}  # 8 for the others
_LONG_LISTS: Final = ("floats", "ints", "strings")
_INTEGERS: Final = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


class NotOnnxError(ModelError):
    """The file is not an ONNX model."""


def graph_only(path: Path) -> bytes:
    """Serialize the model without weights: initializers keep name, dimensions and type, but no data.

    Tensors in attributes (values of Constant nodes) and integer initializers of at most one kilobyte are kept: shapes
    and axes. Larger lists and texts in attributes also lose their content, and all doc strings are dropped. External
    data is never opened, and inline data is skipped without being read, so memory use depends on the graph and not on
    the weights. The same model gives the same bytes. ModelError for anything but an ONNX model.
    """
    model = _slim(path)
    model.ClearField("doc_string")
    model.ClearField("training_info")
    _strip_graph(model.graph)
    for function in model.functions:
        function.ClearField("doc_string")
        _strip_nodes(function.node)
    stripped: bytes = model.SerializeToString(deterministic=True)
    return stripped


def external_files(path: Path) -> list[Path]:
    """List a model's external weight files, sorted. ModelError if one is outside the model's folder."""
    model = _slim(path)
    nodes = [node for function in model.functions for node in function.node]
    graphs, tensors = [model.graph], list[onnx.TensorProto]()
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            tensors += graph.initializer
            tensors += [one for sparse in graph.sparse_initializer for one in (sparse.values, sparse.indices)]
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            sparse_ones = (attribute.sparse_tensor, *attribute.sparse_tensors)
            tensors += (attribute.t, *attribute.tensors)
            tensors += [one for sparse in sparse_ones for one in (sparse.values, sparse.indices)]
            graphs += (attribute.g, *attribute.graphs)
    found = {Path(entry.value) for one in tensors for entry in one.external_data if entry.key == "location"}
    for one in sorted(found):
        if one.is_absolute() or ".." in one.parts or not one.parts:
            raise ModelError(f"{path}: keeps weights outside its folder ({one}); export the model again as one file")
    return [path.parent / one for one in sorted(found)]


def _slim(path: Path) -> onnx.ModelProto:
    """Read the model without tensor data above one kilobyte; external data is never opened."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            slim = _without_bulk(content)
    except (ValueError, IndexError) as error:  # an empty file cannot be mapped; a field extends beyond its message
        raise NotOnnxError(f"{path}: not an ONNX model: {error}; export or download the model again") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    return parsed(slim, str(path))


def parsed(content: bytes, source: str) -> onnx.ModelProto:
    """Parse a model; `source` names it in errors. Raises ModelError for anything but an ONNX model."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's own error class; the project does not depend on protobuf directly
        raise NotOnnxError(f"{source}: not an ONNX model: {error}; export or download the model again") from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise NotOnnxError(f"{source}: not an ONNX model: it holds no graph; export or download the model again")
    return model


# ---- the wire format: skipping bulk data without reading it ------------------------------------------------------

_Kind = Mapping[int, Any]
"""Field numbers of a message that hold others of a kind worth entering; a kind of None is bulk data, dropped."""

_TENSOR: Final[_Kind] = {4: None, 5: None, 6: None, 7: None, 9: None, 10: None, 11: None}
_SPARSE: Final[_Kind] = {1: _TENSOR, 2: _TENSOR}
_GRAPH: Final[dict[int, Any]] = {5: _TENSOR, 15: _SPARSE}
_ATTRIBUTE: Final[_Kind] = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE}
_NODE: Final[_Kind] = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE
_FUNCTION: Final[_Kind] = {7: _NODE}
_MODEL: Final[_Kind] = {7: _GRAPH, 20: None, 25: _FUNCTION}
_DEEPEST: Final = 200
"""Messages within messages; protobuf itself refuses more than 100."""


def _without_bulk(content: mmap.mmap) -> bytes:
    """Serialize the model without tensor data above one kilobyte. ValueError or IndexError if damaged."""
    return b"".join(_slim_message(content, 0, len(content), _MODEL, 0))


def _slim_message(content: mmap.mmap, start: int, end: int, kind: _Kind, depth: int) -> list[bytes]:
    """Return pieces of the message in [start, end) without bulk fields and with adjusted lengths."""
    if depth > _DEEPEST:
        raise ValueError("messages are nested too deeply")
    pieces: list[bytes] = []
    kept_from = at = start
    while at < end:
        field_start = at
        tag, at = _varint(content, at)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(content, at)
        elif wire == 2:
            length, at = _varint(content, at)
            field_end = at + length
            number = tag >> 3
            if length > KEPT_BYTES and field_end <= end and number in kind:
                pieces.append(content[kept_from:field_start])
                inner = kind[number]
                if inner is not None:
                    body = _slim_message(content, at, field_end, inner, depth + 1)
                    pieces += (_encoded(tag), _encoded(sum(map(len, body))), *body)
                kept_from = field_end
            at = field_end
        elif wire == 5:
            at += 4
        elif wire == 1:
            at += 8
        else:
            raise ValueError(f"unknown field type {wire} at byte {field_start}")
        if at > end:
            raise ValueError(f"the field at byte {field_start} reaches past its end")
    pieces.append(content[kept_from:end])
    return pieces


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    """Read the number at `at`, seven bits per byte, and return it with the position after it."""
    byte = content[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits before byte {at}")


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# ---- leaving weights and doc strings out ---------------------------------------------------------------------------


def _strip_graph(graph: onnx.GraphProto) -> None:
    graph.ClearField("doc_string")
    for initializer in graph.initializer:
        _strip_tensor(initializer, keep_small=initializer.data_type in _INTEGERS)
    for sparse in graph.sparse_initializer:
        _strip_tensor(sparse.values, keep_small=False)
        _strip_tensor(sparse.indices, keep_small=False)
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            if value.doc_string:
                value.ClearField("doc_string")
    _strip_nodes(graph.node)


def _strip_nodes(nodes: Sequence[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.doc_string:
            node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.doc_string:
                attribute.ClearField("doc_string")
            _strip_attribute(node, attribute)


def _strip_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    kind = attribute.type
    if kind in (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT):
        return
    if attribute.HasField("t"):
        _strip_tensor(attribute.t, keep_small=True)
    if attribute.HasField("g"):
        _strip_graph(attribute.g)
    for tensor in attribute.tensors:
        _strip_tensor(tensor, keep_small=True)
    for graph in attribute.graphs:
        _strip_graph(graph)
    single = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for sparse in (*single, *attribute.sparse_tensors):
        _strip_tensor(sparse.values, keep_small=True)
        _strip_tensor(sparse.indices, keep_small=True)
    if len(attribute.s) > KEPT_BYTES:
        attribute.s = b""
    for name in _LONG_LISTS:
        values = getattr(attribute, name)
        if values and _list_bytes(name, values) > KEPT_BYTES:
            _strip_list(node, attribute, name)


def _list_bytes(name: str, values: Sequence[Any]) -> int:
    return sum(map(len, values)) if name == "strings" else len(values) * (4 if name == "floats" else 8)


def _strip_list(node: onnx.NodeProto, attribute: onnx.AttributeProto, name: str) -> None:
    """Empty a long list; a constant's list becomes a tensor without data, which keeps its dimensions."""
    count = len(getattr(attribute, name))
    attribute.ClearField(name)
    if node.op_type == "Constant" and attribute.name in ("value_floats", "value_ints", "value_strings"):
        element = {"floats": onnx.TensorProto.FLOAT, "ints": onnx.TensorProto.INT64, "strings": onnx.TensorProto.STRING}
        attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
        attribute.t.data_type = element[name]
        attribute.t.dims.append(count)


def _strip_tensor(tensor: onnx.TensorProto, *, keep_small: bool) -> None:
    """Drop doc string, external data, and the data itself unless it is small and `keep_small`."""
    tensor.ClearField("doc_string")
    if tensor.HasField("data_location") or tensor.external_data:
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    for name in _TENSOR_DATA:
        values = getattr(tensor, name)
        if values and not (keep_small and len(values) * _ITEM_BYTES.get(name, 8) <= KEPT_BYTES):
            tensor.ClearField(name)
