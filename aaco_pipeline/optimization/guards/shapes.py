"""Check the constructs of a rewritten kernel: direct calls by name, and vector views of a single buffer."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.memory import check_arrays
from aaco_pipeline.optimization.guards.words import Subject
from aaco_pipeline.optimization.source.tree import (
    Node,
    declarators,
    declared,
    descend,
    field,
    operands,
    outermost,
    plain_text,
    stripped,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import VECTOR_TYPES, is_type

#: Constructs that a rewrite may only keep from the baseline, each with a name.
_ONLY_THE_BASELINES: Final = {
    "lambda_expression": "a lambda",
    "function_definition": "a function or an unknown macro inside the kernel",
    "function_declarator": "a declaration of a function",
    "labeled_statement": "a label",
    "goto_statement": "a jump",
    **dict.fromkeys(("asm_statement", "gnu_asm_expression"), "assembly"),
    **dict.fromkeys(("attribute_declaration", "attribute_specifier"), "an attribute"),
    **dict.fromkeys(("struct_specifier", "class_specifier", "union_specifier", "enum_specifier"), "a type"),
    "initializer_pair": "a designated initializer",
    "kernel_call_syntax": "a launch",
    "fold_expression": "a fold expression",
    "delete_expression": "a deletion",
    "new_expression": "an allocation",
    **dict.fromkeys(("try_statement", "throw_statement"), "an exception"),
    "preproc_call": "a directive",
}
_LARGEST_STEP: Final = 1 << 16
_MOST_ALIGNMENT: Final = 128
_CASTS: Final = ("static_cast", "reinterpret_cast")


@dataclass(frozen=True)
class _Type:
    """The type of a cast: its words without qualifiers, whether it is constant, its stars and ampersand."""

    name: str
    const: bool
    stars: int
    reference: bool


def check_shapes(old: Subject, new: Subject) -> None:
    """Refuse, guard `calls`, the first construct that a rewrite of the baseline's kernel does not need."""
    known = _Known(old)
    if _pairs(new) - _pairs(old):
        raise Refused("calls", "an attribute `[[` or a statement inside an expression `({` that the baseline has not")
    for node in new.nodes:
        # The tree's first declarator belongs to the placeholder head that replaces the kernel's own.
        if new.part.offset(node) < new.kernel.body.start or known.has(node):
            continue
        if (what := _ONLY_THE_BASELINES.get(node.type)) is not None:
            raise new.refused(node, f"{what} that the baseline's kernel has not")
        _check_node(known, new, node)
    views = _Views(new)
    _check_casts(known, views, new)
    _check_pointers(known, views, new)
    check_arrays(old, new)


def _pairs(subject: Subject) -> Counter[str]:
    """Count how often two brackets open together, with or without a space between."""
    texts = (first.text + second.text for first, second in pairwise(subject.body))
    return Counter(text for text in texts if text in ("[[", "({"))


class _Known:
    """Return the constructs of the baseline's kernel, ignoring spaces."""

    def __init__(self, old: Subject) -> None:
        self._texts = frozenset((node.type, plain_text(node)) for node in old.nodes)
        #: Call targets: names, and values if the baseline's kernel calls through one.
        self.calls = {plain_text(field(node, "function")) for node in old.nodes if node.type == "call_expression"}

    def has(self, node: Node) -> bool:
        """Return whether the baseline's kernel has the same construct, word for word."""
        return (node.type, plain_text(node)) in self._texts


def _check_node(known: _Known, new: Subject, node: Node) -> None:
    if node.type == "comma_expression":
        if not _is_in_an_update(node):
            raise new.refused(node, "a comma outside a loop's update")
    elif node.type == "call_expression":
        _check_call(known, new, node)
    elif node.type == "pointer_expression" and text_of(node).startswith("&"):
        target = field(node, "argument")
        if target is None or target.type != "subscript_expression":
            raise new.refused(node, "the address of something that is no element of a buffer")
    elif node.type in ("subscript_expression", "pointer_expression"):
        _check_step(new, node)


def _is_in_an_update(node: Node) -> bool:
    child, parent = outermost(node, ("comma_expression",))
    return parent is not None and parent.type == "for_statement" and field(parent, "update") == child


def _check_call(known: _Known, new: Subject, node: Node) -> None:
    """Allow calls by name; through a value only if the baseline's kernel contains the same call."""
    function = field(node, "function")
    if function is None or function.type == "primitive_type":
        return
    name = plain_text(function)
    if function.type == "template_function":
        allowed = text_of(field(function, "name")) in (*_CASTS, "min", "max")
    elif function.type == "qualified_identifier":
        allowed = name.startswith(("std::", "::")) and name.count("::") == 1
    else:
        allowed = function.type == "identifier" and name not in new.locals
    if not allowed and name not in known.calls:
        raise new.refused(node, "a call that the baseline's kernel does not make")


def _check_step(new: Subject, node: Node) -> None:
    """Refuse an index or a pointer step by a constant so large that it leaves every test buffer."""
    for each in descend(node):
        if each.type == "number_literal":
            digits = text_of(each).replace("'", "").strip("+-uUlL")
            if digits.isdigit() and int(digits) >= _LARGEST_STEP:
                raise new.refused(node, f"an address {digits} elements away")


def _check_pointers(known: _Known, views: "_Views", new: Subject) -> None:
    """Refuse a pointer that does not start in a buffer: from zero or uninitialized, it could be moved anywhere."""
    for node in new.nodes:
        if known.has(node):
            continue
        if node.type == "binary_expression" and views.is_address(node):
            _check_step(new, node)
        elif node.type == "declaration":
            for each, target, value in declarators(node):
                if each.type == "pointer_declarator":
                    raise new.refused(node, "a pointer without a value, or an array of pointers")
                starred = each != target and target is not None and target.type == "pointer_declarator"
                if starred and (value is None or not views.begins_in_buffer(value)):
                    raise new.refused(node, "a pointer that begins outside the kernel's buffers")
        elif node.type == "assignment_expression":
            left, assigns, value = operands(node)
            is_set = left is not None and value is not None and assigns == "=" and views.is_pointer(left)
            if is_set and value is not None and not views.begins_in_buffer(value):
                raise new.refused(node, "a pointer that leaves the kernel's buffers")


def _check_casts(known: _Known, views: "_Views", new: Subject) -> None:
    for node in new.nodes:
        target, value, word = _cast(node)
        if target is None or value is None or known.has(node):
            continue
        made = _type_of(text_of(target))
        if made.stars or made.reference:
            _check_view(views, new, made, (node, value), static=word == "static_cast")
        elif views.is_address(value) and not _tests_alignment(new, node):
            raise new.refused(node, "an address made a number")
        elif word == "reinterpret_cast" and not views.is_address(value):
            raise new.refused(node, "a reinterpretation of a value")


def _cast(node: Node) -> tuple[Node | None, Node | None, str]:
    """Return type, value and word of a cast in any notation, or None."""
    if node.type == "cast_expression":
        return field(node, "type"), field(node, "value"), ""
    function, arguments = field(node, "function"), field(node, "arguments")
    if node.type != "call_expression" or function is None or arguments is None:
        return None, None, ""
    value = arguments.named_children[0] if len(arguments.named_children) == 1 else None
    word = text_of(field(function, "name")) if function.type == "template_function" else ""
    if word in _CASTS:
        types = field(function, "arguments")
        return next(iter(types.named_children), None) if types is not None else None, value, word
    if function.type == "primitive_type" or is_type(text_of(function)):
        return function, value, ""
    return None, None, ""


def _type_of(written: str, qualifiers: tuple[str, ...] = ("const", "__restrict__")) -> _Type:
    plain = written.replace("*", " ").replace("&", " ").split()
    name = " ".join(word for word in plain if word not in qualifiers)
    return _Type(_element(name), "const" in plain, written.count("*"), "&" in written)


_SAME_TYPES: Final = {"unsigned": "unsigned int", "uint": "unsigned int", "uint32_t": "unsigned int", "int32_t": "int"}


def _element(name: str) -> str:
    """Return the element of a vector type, with one name for all notations of an unsigned integer."""
    name = name.rstrip("1234") if name in VECTOR_TYPES else name
    return _SAME_TYPES.get(name, name)


class _Views:
    """The pointers and arrays of a kernel with their element types."""

    def __init__(self, new: Subject) -> None:
        self.types: dict[str, _Type] = {}
        self.own_arrays: set[str] = set()
        for parameter in new.kernel.parameters:
            if parameter.pointer:
                self.types[parameter.name] = replace(_type_of(parameter.type, ("const", "volatile")), reference=False)
        for node in new.nodes:
            if node.type == "declaration":
                self._declare(node)

    def _declare(self, node: Node) -> None:
        kind = text_of(field(node, "type"))
        qualifiers = {text_of(each) for each in node.children if each.type == "type_qualifier"}
        for _, target, _ in declarators(node):
            if target is None or target.type not in ("pointer_declarator", "array_declarator"):
                continue
            made = _Type(_element(kind), "const" in qualifiers, text_of(target).count("*"), False)
            for name in declared(target):
                self.types[text_of(name)] = made
                if target.type == "array_declarator" and "__shared__" not in qualifiers:
                    self.own_arrays.add(text_of(name))

    def is_address(self, node: Node) -> bool:
        """Return whether the value of an expression may be an address."""
        if node.type == "identifier":
            return text_of(node) in self.types
        if node.type == "pointer_expression":
            return text_of(node).startswith("&")
        if node.type == "cast_expression":
            return "*" in text_of(field(node, "type"))
        if node.type == "call_expression":
            return "*" in text_of(field(node, "function"))
        if node.type in ("binary_expression", "parenthesized_expression", "conditional_expression", "comma_expression"):
            comparison = operands(node)[1] in ("<", ">", "<=", ">=", "==", "!=", "&&", "||")
            return not comparison and any(map(self.is_address, node.named_children))
        changes = node.type in ("update_expression", "assignment_expression")
        return changes and any(map(self.is_address, node.named_children))

    def is_pointer(self, node: Node) -> bool:
        """Return whether a name is a pointer that can be assigned."""
        return node.type == "identifier" and text_of(node) in self.types and text_of(node) not in self.own_arrays

    def begins_in_buffer(self, node: Node) -> bool:
        """Return whether an expression's address is certainly in a buffer; for a condition, both of its values."""
        node = stripped(node)
        if node.type == "conditional_expression":
            values = (field(node, "consequence"), field(node, "alternative"))
            return all(value is not None and self.begins_in_buffer(value) for value in values)
        return self.is_address(node)

    def buffer(self, node: Node, *, element: bool) -> str | None:
        """Return the buffer that `p`, `p + i` or `&p[i]` points into (or that holds `p[i]`), or None."""
        node = stripped(node)
        if node.type == "pointer_expression" and text_of(node).startswith("&") and not element:
            inner = field(node, "argument")
            return None if inner is None else self.buffer(inner, element=True)
        if element:
            base = field(node, "argument") if node.type == "subscript_expression" else None
            while base is not None and base.type == "subscript_expression":
                base = field(base, "argument")
            return text_of(base) if text_of(base) in self.types else None
        left, sign, right = operands(node)
        if node.type == "binary_expression" and sign in ("+", "-"):
            if left is None or right is None or self.is_address(right):
                return None
            return self.buffer(left, element=False)
        return text_of(node) if node.type == "identifier" and text_of(node) in self.types else None


def _check_view(views: _Views, new: Subject, made: _Type, cast: tuple[Node, Node], *, static: bool) -> None:
    """Allow the cast of a pointer to vectors of its elements, or back; it keeps `const`."""
    node, value = cast
    name = views.buffer(value, element=made.reference)
    source = views.types.get(name or "")
    if name is None or source is None:
        raise new.refused(node, "a pointer that is made from something else than a buffer of the kernel")
    volatile = new.reading.facts.volatile & new.words
    if made.stars + made.reference != 1 or source.stars > 1 or static or volatile:
        raise new.refused(node, "a cast that no view of a buffer needs")
    if made.name != source.name:
        raise new.refused(node, f"a view of {source.name} as {made.name}")
    if source.const and not made.const:
        raise new.refused(node, f"a view of {name} that may be written")
    if name in views.own_arrays:
        raise new.refused(node, f"an address in the local array {name}")


def _tests_alignment(new: Subject, node: Node) -> bool:
    """Return whether an address is converted to a number only to test its alignment to a small power of two."""
    current, parent = node, node.parent
    while parent is not None and (
        parent.type == "parenthesized_expression" or (parent.type == "binary_expression" and operands(parent)[1] == "|")
    ):
        current, parent = parent, parent.parent
    if parent is None or parent.type != "binary_expression":
        return False
    left, sign, right = operands(parent)
    if sign not in ("&", "%") or left != current or not _is_compared_with_zero(parent):
        return False
    mask = [token.text for token in tokens_of(new.reading.text, new.part, right)] if right is not None else []
    digits = mask[0].rstrip("uUlL") if len(mask) == 1 else ""
    return digits.isdigit() and int(digits) < _MOST_ALIGNMENT


def _is_compared_with_zero(node: Node) -> bool:
    current, parent = outermost(node, ("parenthesized_expression",))
    if parent is None or parent.type != "binary_expression":
        return False
    left, sign, right = operands(parent)
    return sign in ("==", "!=") and left == current and text_of(right) == "0"
