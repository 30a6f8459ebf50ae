"""Which constructs a rewritten kernel may have: plain calls by name, and views of one buffer as its vectors."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.memory import check_arrays
from aaco_pipeline.optimization.guards.words import Subject
from aaco_pipeline.optimization.source.tree import Node, declared, descend, text_of, tokens_of
from aaco_pipeline.optimization.source.vocabulary import VECTOR_TYPES, is_type

#: Constructs of which a rewrite may have the baseline's own alone, with what each is called.
_ONLY_THE_BASELINES: Final = {
    "lambda_expression": "a lambda",
    "function_definition": "a function or an unknown macro inside the kernel",
    "function_declarator": "a declaration of a function",
    "labeled_statement": "a label",
    "goto_statement": "a jump",
    "asm_statement": "assembly",
    "gnu_asm_expression": "assembly",
    "attribute_declaration": "an attribute",
    "attribute_specifier": "an attribute",
    "struct_specifier": "a type",
    "class_specifier": "a type",
    "union_specifier": "a type",
    "enum_specifier": "a type",
    "initializer_pair": "a designated initializer",
    "kernel_call_syntax": "a launch",
    "fold_expression": "a fold expression",
    "delete_expression": "a deletion",
    "new_expression": "an allocation",
    "try_statement": "an exception",
    "throw_statement": "an exception",
    "preproc_call": "a directive",
}
_LARGEST_STEP: Final = 1 << 16
_MOST_ALIGNMENT: Final = 128
_CASTS: Final = ("static_cast", "reinterpret_cast")


@dataclass(frozen=True)
class _Type:
    """What a cast makes: the words of the type without qualifiers, whether it is constant, its stars and ampersand."""

    name: str
    const: bool
    stars: int
    reference: bool


def check_shapes(old: Subject, new: Subject) -> None:
    """Refused, guard `calls`, at the first construct that a rewrite of the baseline's kernel does not need."""
    known = _Known(old)
    if _pairs(new) - _pairs(old):
        raise Refused("calls", "an attribute `[[` or a statement inside an expression `({` that the baseline has not")
    for node in descend(new.part.node):
        # The tree's first declarator is that of the head that stands in for the kernel's own.
        if node.start_byte + new.part.shift < new.kernel.body.start:
            continue
        what = _ONLY_THE_BASELINES.get(node.type)
        if what is not None and not known.has(node):
            raise _refused(new, node, f"{what} that the baseline's kernel has not")
        _check_node(known, new, node)
    views = _Views(new)
    _check_casts(known, views, new)
    _check_pointers(known, views, new)
    check_arrays(old, new)


def _pairs(subject: Subject) -> Counter[str]:
    """How often two brackets open together, with or without a space between."""
    texts = (first.text + second.text for first, second in pairwise(subject.body))
    return Counter(text for text in texts if text in ("[[", "({"))


class _Known:
    """The constructs of the baseline's kernel, spaces aside."""

    def __init__(self, old: Subject) -> None:
        self._old = old

    @cached_property
    def calls(self) -> frozenset[str]:
        """What is called: names, and values where the baseline's kernel calls through one."""
        nodes = (node for node in descend(self._old.part.node) if node.type == "call_expression")
        return frozenset(_plain(function) for node in nodes if (function := node.child_by_field_name("function")))

    @cached_property
    def _texts(self) -> frozenset[tuple[str, str]]:
        return frozenset((node.type, _plain(node)) for node in descend(self._old.part.node))

    def has(self, node: Node) -> bool:
        """Whether the baseline's kernel has the same construct, word for word."""
        return (node.type, _plain(node)) in self._texts


def _plain(node: Node) -> str:
    return "".join(text_of(node).split())


def _refused(new: Subject, node: Node, what: str) -> Refused:
    return Refused("calls", f"line {new.line_of(node)}: {what}: `{' '.join(text_of(node).split())[:80]}`")


def _check_node(known: _Known, new: Subject, node: Node) -> None:
    if known.has(node):
        return
    if node.type == "comma_expression":
        if not _is_in_an_update(node):
            raise _refused(new, node, "a comma outside a loop's update")
    elif node.type == "call_expression":
        _check_call(known, new, node)
    elif node.type == "pointer_expression" and text_of(node).startswith("&"):
        target = node.child_by_field_name("argument")
        if target is None or target.type != "subscript_expression":
            raise _refused(new, node, "the address of something that is no element of a buffer")
    elif node.type in ("subscript_expression", "pointer_expression"):
        _check_step(new, node)


def _is_in_an_update(node: Node) -> bool:
    child, parent = node, node.parent
    while parent is not None and parent.type == "comma_expression":
        child, parent = parent, parent.parent
    return parent is not None and parent.type == "for_statement" and parent.child_by_field_name("update") == child


def _check_call(known: _Known, new: Subject, node: Node) -> None:
    """A call by name of what the words allow; through a value only where the baseline's kernel does the same."""
    function = node.child_by_field_name("function")
    if function is None or function.type == "primitive_type":
        return
    name = _plain(function)
    if function.type == "template_function":
        inner = _plain_name(function)
        allowed = inner in _CASTS or inner in ("min", "max")
    elif function.type == "qualified_identifier":
        allowed = name.startswith(("std::", "::")) and name.count("::") == 1
    else:
        allowed = function.type == "identifier" and name not in new.locals
    if not allowed and name not in known.calls:
        raise _refused(new, node, "a call that the baseline's kernel does not make")


def _plain_name(function: Node) -> str:
    return text_of(function.child_by_field_name("name"))


def _check_step(new: Subject, node: Node) -> None:
    """No index and no step of a pointer by a constant so large that it leaves every buffer of a test."""
    for each in descend(node):
        if each.type == "number_literal":
            digits = text_of(each).replace("'", "").strip("+-uUlL")
            if digits.isdigit() and int(digits) >= _LARGEST_STEP:
                raise _refused(new, node, f"an address {digits} elements away")


def _check_pointers(known: _Known, views: "_Views", new: Subject) -> None:
    """A pointer begins in a buffer: one that begins at zero, or at nothing, could be moved anywhere."""
    for node in descend(new.part.node):
        if known.has(node):
            continue
        if node.type == "binary_expression" and views.is_address(node):
            _check_step(new, node)
        elif node.type == "declaration":
            for each in node.children_by_field_name("declarator"):
                if each.type == "pointer_declarator":
                    raise _refused(new, node, "a pointer without a value, or an array of pointers")
                target, value = each.child_by_field_name("declarator"), each.child_by_field_name("value")
                starred = target is not None and target.type == "pointer_declarator"
                if each.type == "init_declarator" and starred and (value is None or not views.begins_in_buffer(value)):
                    raise _refused(new, node, "a pointer that begins outside the kernel's buffers")
        elif node.type == "assignment_expression":
            left, value = node.child_by_field_name("left"), node.child_by_field_name("right")
            moved = text_of(node.child_by_field_name("operator")) != "="
            if left is None or value is None or moved or not views.is_pointer(left):
                continue
            if not views.begins_in_buffer(value):
                raise _refused(new, node, "a pointer that leaves the kernel's buffers")


def _check_casts(known: _Known, views: "_Views", new: Subject) -> None:
    for node in descend(new.part.node):
        target, value, word = _cast(node)
        if target is None or value is None or known.has(node):
            continue
        made = _type_of(target)
        if made.stars or made.reference:
            _check_view(views, new, made, (node, value), static=word == "static_cast")
        elif views.is_address(value) and not _tests_alignment(new, node):
            raise _refused(new, node, "an address made a number")
        elif word == "reinterpret_cast" and not views.is_address(value):
            raise _refused(new, node, "a reinterpretation of a value")


def _cast(node: Node) -> tuple[Node | None, Node | None, str]:
    """The type, the value and the word of a cast, whichever way it is written; None of what is none."""
    if node.type == "cast_expression":
        return node.child_by_field_name("type"), node.child_by_field_name("value"), ""
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if node.type != "call_expression" or function is None or arguments is None:
        return None, None, ""
    value = arguments.named_children[0] if len(arguments.named_children) == 1 else None
    if function.type == "template_function" and _plain_name(function) in _CASTS:
        types = function.child_by_field_name("arguments")
        return (
            types.named_children[0] if types is not None and types.named_children else None,
            value,
            _plain_name(function),
        )
    if function.type == "primitive_type" or is_type(text_of(function)):
        return function, value, ""
    return None, None, ""


def _type_of(node: Node) -> _Type:
    written = text_of(node)
    plain = written.replace("*", " ").replace("&", " ").split()
    return _Type(
        _element(" ".join(word for word in plain if word not in ("const", "__restrict__"))),
        "const" in plain,
        written.count("*"),
        "&" in written,
    )


def _element(name: str) -> str:
    """The element of a vector type, and one name for the ways to write an unsigned integer."""
    if name in VECTOR_TYPES:
        name = name.rstrip("1234")
    return {"unsigned": "unsigned int", "uint": "unsigned int", "uint32_t": "unsigned int", "int32_t": "int"}.get(
        name, name
    )


class _Views:
    """The pointers and arrays of a kernel, by what they point at."""

    def __init__(self, new: Subject) -> None:
        self.types: dict[str, _Type] = {}
        self.own_arrays: set[str] = set()
        for parameter in new.kernel.parameters:
            if parameter.pointer:
                self.types[parameter.name] = _of_text(parameter.type)
        for node in descend(new.part.node):
            if node.type == "declaration":
                self._declare(node)

    def _declare(self, node: Node) -> None:
        kind = text_of(node.child_by_field_name("type"))
        qualifiers = {text_of(each) for each in node.children if each.type == "type_qualifier"}
        for each in node.children_by_field_name("declarator"):
            target = each.child_by_field_name("declarator") if each.type == "init_declarator" else each
            if target is None or target.type not in ("pointer_declarator", "array_declarator"):
                continue
            for name in declared(target):
                self.types[text_of(name)] = _Type(
                    _element(kind), "const" in qualifiers, text_of(target).count("*"), False
                )
                if target.type == "array_declarator" and "__shared__" not in qualifiers:
                    self.own_arrays.add(text_of(name))

    def is_address(self, node: Node) -> bool:
        """Whether an expression may have an address for its value."""
        if node.type == "identifier":
            return text_of(node) in self.types
        if node.type == "pointer_expression":
            return text_of(node).startswith("&")
        if node.type == "cast_expression":
            return "*" in text_of(node.child_by_field_name("type"))
        if node.type == "call_expression":
            return "*" in text_of(node.child_by_field_name("function"))
        if node.type in ("binary_expression", "parenthesized_expression", "conditional_expression", "comma_expression"):
            comparison = text_of(node.child_by_field_name("operator")) in ("<", ">", "<=", ">=", "==", "!=", "&&", "||")
            return not comparison and any(self.is_address(each) for each in node.named_children)
        return node.type in ("update_expression", "assignment_expression") and any(
            self.is_address(each) for each in node.named_children
        )

    def is_pointer(self, node: Node) -> bool:
        """Whether a name is of a pointer that may be given another value."""
        return node.type == "identifier" and text_of(node) in self.types and text_of(node) not in self.own_arrays

    def begins_in_buffer(self, node: Node) -> bool:
        """Whether an expression's address is surely one of a buffer: both of a condition's values are."""
        if node.type == "conditional_expression":
            values = (node.child_by_field_name(field) for field in ("consequence", "alternative"))
            return all(value is not None and self.begins_in_buffer(value) for value in values)
        if node.type == "parenthesized_expression" and node.named_child_count == 1:
            return self.begins_in_buffer(node.named_children[0])
        return self.is_address(node)

    def buffer(self, node: Node, *, element: bool) -> str | None:
        """The buffer that `p`, `p + i` or `&p[i]` points into (or `p[i]` is of); None of every other expression."""
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
        if node.type == "pointer_expression" and text_of(node).startswith("&") and not element:
            inner = node.child_by_field_name("argument")
            return None if inner is None else self.buffer(inner, element=True)
        if element:
            base = node.child_by_field_name("argument") if node.type == "subscript_expression" else None
            while base is not None and base.type == "subscript_expression":
                base = base.child_by_field_name("argument")
            return text_of(base) if base is not None and text_of(base) in self.types else None
        if node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in ("+", "-"):
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is None or right is None or self.is_address(right):
                return None
            return self.buffer(left, element=False)
        return text_of(node) if node.type == "identifier" and text_of(node) in self.types else None


def _of_text(written: str) -> _Type:
    plain = written.replace("*", " ").replace("&", " ").split()
    name = " ".join(word for word in plain if word not in ("const", "volatile"))
    return _Type(_element(name), "const" in plain, written.count("*"), False)


def _check_view(views: _Views, new: Subject, made: _Type, cast: tuple[Node, Node], *, static: bool) -> None:
    """A pointer may be looked at as one to vectors of its elements, or back; it keeps `const`, and is of no number."""
    node, value = cast
    name = views.buffer(value, element=made.reference)
    source = views.types.get(name or "")
    if name is None or source is None:
        raise _refused(new, node, "a pointer that is made of something else than a buffer of the kernel")
    volatile = new.reading.facts.volatile & new.words
    if made.stars + made.reference != 1 or source.stars > 1 or static or volatile:
        raise _refused(new, node, "a cast that no view of a buffer needs")
    if made.name != source.name:
        raise _refused(new, node, f"a view of {source.name} as {made.name}")
    if source.const and not made.const:
        raise _refused(new, node, f"a view of {name} that may be written")
    if name in views.own_arrays:
        raise _refused(new, node, f"an address in the local array {name}")


def _tests_alignment(new: Subject, node: Node) -> bool:
    """Whether a number made of an address serves only to ask whether that is a multiple of a small power of two."""
    current, parent = node, node.parent
    while parent is not None and (
        parent.type == "parenthesized_expression"
        or (parent.type == "binary_expression" and text_of(parent.child_by_field_name("operator")) == "|")
    ):
        current, parent = parent, parent.parent
    if parent is None or parent.type != "binary_expression":
        return False
    if (
        text_of(parent.child_by_field_name("operator")) not in ("&", "%")
        or parent.child_by_field_name("left") != current
    ):
        return False
    if not _is_compared_with_zero(parent):
        return False
    right = parent.child_by_field_name("right")
    mask = [token.text for token in tokens_of(new.reading.text, new.part, right)] if right is not None else []
    digits = mask[0].rstrip("uUlL") if len(mask) == 1 else ""
    return digits.isdigit() and int(digits) < _MOST_ALIGNMENT


def _is_compared_with_zero(node: Node) -> bool:
    current, parent = node, node.parent
    while parent is not None and parent.type == "parenthesized_expression":
        current, parent = parent, parent.parent
    if parent is None or parent.type != "binary_expression":
        return False
    right = parent.child_by_field_name("right")
    operator = text_of(parent.child_by_field_name("operator"))
    return operator in ("==", "!=") and parent.child_by_field_name("left") == current and text_of(right) == "0"
