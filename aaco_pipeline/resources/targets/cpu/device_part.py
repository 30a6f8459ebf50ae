"""A HIP source as a CPU's compiler can take it: its device part, with every line where it was.

What runs on the host is left out (`main`, functions without `__device__` or `__global__`, their headers): it is never
run here, and what it would bring along (streams, containers, constructors) no kernel may have.
"""

import re
from collections.abc import Iterator
from typing import Final

import tree_sitter
import tree_sitter_cuda

from aaco_pipeline.optimization.candidates import Refused

_PARSER: Final = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
#: Headers whose names a kernel may use; all others belong to the host.
_HEADERS: Final = re.compile(
    rb"<(hip/\w+\.h|c?math|math\.h|cstdint|stdint\.h|cstddef|stddef\.h|cfloat|float\.h|climits|limits\.h|limits"
    rb"|type_traits|utility)>"
)
_WRAPPED: Final = ("template_declaration", "linkage_specification")
_OF_DEVICE: Final = re.compile(rb"__(global|device)__|\bconstexpr\b")
_NUMBER: Final = re.compile(rb"\s*(?:\(\s*(\w+)\s*\)|(\w+))?\s*(?://.*|/\*.*)?")
#: What `#pragma unroll` without a factor asks for: a loop of known length is unrolled wholly up to that.
_WHOLE: Final = b"16"


def device_part(source: bytes, *, for_gcc: bool) -> bytes:
    """The device part of a HIP source; as many lines as it had. Refused (guard `parse`) for zero bytes in it."""
    if b"\0" in source:
        raise Refused("parse", "the source holds a zero byte")
    root = _PARSER.parse(source).root_node
    numbers = dict(_numbers(root, source))
    marks = _device_macros(root, source)
    changes: list[tuple[int, int, bytes]] = []
    for node in _host_nodes(root, source, marks):
        changes.append((node.start_byte, node.end_byte, _blank(source[node.start_byte : node.end_byte])))
    if for_gcc:
        changes += _unrolling(root, source, numbers)
    return _changed(source, changes)


def kernel_names(source: bytes) -> tuple[str, ...]:
    """The names of all functions that are declared `__global__`."""
    found = re.findall(rb"__global__[^;{}=]*?(\w+)\s*\((?!\s*\d)[^;{}]*?\)\s*[;{]", source)
    return tuple(sorted({name.decode() for name in found}))


def _host_nodes(node: tree_sitter.Node, source: bytes, marks: re.Pattern[bytes]) -> Iterator[tree_sitter.Node]:
    """What is to be left out of the top level: in namespaces and conditional parts too, never in a class."""
    for child in node.children:
        text = source[child.start_byte : child.end_byte]
        if child.type == "preproc_include":
            if not _HEADERS.search(text) and not child.has_error:
                yield child
        elif child.type in ("function_definition", "template_declaration"):
            head = text[: _body_start(child) - child.start_byte]
            if _is_function(child) and not marks.search(head):
                yield child
        elif child.type in ("namespace_definition", "linkage_specification", "declaration_list") or (
            child.type.startswith("preproc_") and child.type not in ("preproc_def", "preproc_function_def")
        ):
            if child.type == "linkage_specification" and _only_function(child):
                if not marks.search(text[: _body_start(child) - child.start_byte]):
                    yield child
            else:
                yield from _host_nodes(child, source, marks)
        elif child.type == "declaration" and _declares_function(child) and not marks.search(text):
            yield child


def _is_function(node: tree_sitter.Node) -> bool:
    return node.type == "function_definition" or any(child.type == "function_definition" for child in node.children)


def _only_function(node: tree_sitter.Node) -> bool:
    return any(child.type == "function_definition" for child in node.children)


def _declares_function(node: tree_sitter.Node) -> bool:
    return any(child.type == "function_declarator" for child in node.children)


def _body_start(node: tree_sitter.Node) -> int:
    inner = node
    while inner.type in _WRAPPED:
        inner = next((child for child in inner.children if child.type in (*_WRAPPED, "function_definition")), inner)
        if inner.type in _WRAPPED and not _is_function(inner):
            break
    body = inner.child_by_field_name("body")
    return body.start_byte if body is not None else node.end_byte


def _device_macros(root: tree_sitter.Node, source: bytes) -> re.Pattern[bytes]:
    """What marks a function as the device's: HIP's words, and macros of this file that stand for them."""
    names = [
        source[name.start_byte : name.end_byte]
        for node in _all(root, "preproc_def")
        if (name := node.child_by_field_name("name")) is not None
        and _OF_DEVICE.search(source[name.end_byte : node.end_byte])
    ]
    return re.compile(b"|".join([_OF_DEVICE.pattern, *(rb"\b" + re.escape(name) + rb"\b" for name in names)]))


def _numbers(root: tree_sitter.Node, source: bytes) -> Iterator[tuple[bytes, bytes]]:
    for node in _all(root, "preproc_def"):
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None and value is not None:
            text = source[value.start_byte : value.end_byte].split(b"//")[0].strip()
            if text.isdigit():
                yield source[name.start_byte : name.end_byte], text


def _unrolling(root: tree_sitter.Node, source: bytes, numbers: dict[bytes, bytes]) -> Iterator[tuple[int, int, bytes]]:
    """`#pragma unroll` as g++ reads it, which passes over HIP's own word."""
    for node in _all(root, "preproc_call"):
        text = source[node.start_byte : node.end_byte]
        match = re.fullmatch(rb"\s*#\s*pragma\s+(unroll|nounroll)\b(.*?)\s*", text, re.DOTALL)
        if match is None:
            continue
        given = _NUMBER.fullmatch(match[2])
        word = b"" if given is None else given[1] or given[2] or b""
        factor = b"1" if match[1] == b"nounroll" else numbers.get(word, word) or _WHOLE
        written = b"#pragma GCC unroll " + factor if factor.isdigit() else b""
        yield node.start_byte, node.end_byte, written + b"\n" * text.count(b"\n")


def _all(node: tree_sitter.Node, kind: str) -> Iterator[tree_sitter.Node]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.type == kind:
            yield one
        waiting.extend(one.children)


def _blank(text: bytes) -> bytes:
    return b"\n" * text.count(b"\n")


def _changed(source: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for start, end, text in sorted(changes):
        if start < at:
            continue  # lies in what is left out already
        pieces += [source[at:start], text]
        at = end
    return b"".join([*pieces, source[at:]])
