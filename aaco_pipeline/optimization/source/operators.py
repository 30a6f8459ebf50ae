"""Operators, conversions, constructors and destructors: what runs without being named, and in which code."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aaco_pipeline.optimization.source.grammar import Node, declared, descend, is_broken, text_of
from aaco_pipeline.optimization.source.parts import DECLARING, Part, is_seen
from aaco_pipeline.optimization.source.preprocessor import Macros
from aaco_pipeline.optimization.source.unit import Span
from aaco_pipeline.optimization.source.vocabulary import is_type

_WORD: Final = re.compile(r"[A-Za-z_$][\w$]*")
_CLASSES: Final = ("struct_specifier", "class_specifier", "union_specifier")
#: Stands among words for every type that a template is given.
_GENERIC: Final = "<>"


@dataclass(frozen=True)
class Operator:
    """A function that an expression calls unnamed, where it has something of one of the function's classes.

    No class: of what it is cannot be told. A `lifetime` is a constructor or destructor.
    """

    part: Part
    lifetime: bool
    owners: frozenset[str]


class _Declared(NamedTuple):
    """A name with the words that say of what type it is."""

    offset: int
    name: str
    words: frozenset[str]


class Operators:
    """The operators of a source; `parts` are all outside the kernels' bodies, and each body."""

    def __init__(
        self, macros: Macros, parts: Sequence[Part], kernels: Sequence[Span], found: Iterable[tuple[Part, bool]]
    ) -> None:
        readable = not any(is_broken(node) for part in parts for node in descend(part.node))
        self._kernels = kernels
        self._all = [Operator(part, life, _owners(part.node) if readable else frozenset()) for part, life in found]
        self._declared = list(_made_of(parts, macros)) if self._all else []
        self._carriers: dict[tuple[frozenset[str], int | None], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def running(self, words: Collection[str], kernel: int | None) -> list[Operator]:
        """The operators that code of these words may run, in one kernel: another one's own names are not seen."""
        return [
            each for each in self._all if not each.owners or not self._carried(each.owners, kernel).isdisjoint(words)
        ]

    def _carried(self, owners: frozenset[str], kernel: int | None) -> frozenset[str]:
        """The names by which code may have a thing of these classes."""
        key = (owners, kernel)
        if key not in self._carriers:
            seen = [each for each in self._declared if is_seen(each.offset, kernel, self._kernels)]
            found = set(owners)
            while new := {each.name for each in seen if each.name not in found and not found.isdisjoint(each.words)}:
                found |= new
            self._carriers[key] = frozenset(found)
        return self._carriers[key]


def class_around(node: Node) -> str | None:
    """The name of the class that a method is written in."""
    around = node.parent
    while around is not None and around.type not in _CLASSES:
        around = around.parent
    return None if around is None else text_of(around.child_by_field_name("name")).split("<")[0]


def _words(node: Node | None) -> frozenset[str]:
    return frozenset(_WORD.findall(text_of(node)))


def _owners(operator: Node) -> frozenset[str]:
    """The classes of this file whose things an operator works on; empty where none is named."""
    around = class_around(operator)
    if around is not None:
        return frozenset({around}) if around else frozenset()
    head = text_of(operator.child_by_field_name("declarator"))
    if "::" in (qualifiers := head.split("operator")[0]):
        return frozenset(_WORD.findall(qualifiers))
    top = operator
    while top.parent is not None:
        top = top.parent
    classes = {
        text_of(node.child_by_field_name("name")).split("<")[0] for node in descend(top) if node.type in _CLASSES
    }
    return frozenset(_WORD.findall(head)) & classes


def _made_of(parts: Sequence[Part], macros: Macros) -> Iterator[_Declared]:
    """Each name that is declared, with the words of its types, and of its value where that decides its type."""
    for name, definitions in macros.items():
        yield _Declared(-1, name, frozenset(token.text for macro in definitions for token in macro.body))
    templates = {name for node in descend(parts[0].node) for name in _templates(node)}
    for index, part in enumerate(parts):
        for node in descend(part.node):
            offset = node.start_byte + part.shift
            yield from (_Declared(offset, name, made) for name, made in _declared_of(node))
            deduced = index == 0 and node.type == "call_expression" and not templates.isdisjoint(_words(node))
            if deduced or node.type == "template_argument_list":
                yield _Declared(offset, _GENERIC, _words(node))


def _templates(node: Node) -> Iterator[str]:
    if node.type == "template_declaration":
        for each in node.children:
            if each.type == "function_definition":
                yield from _WORD.findall(text_of(each.child_by_field_name("declarator")).split("(")[0])[-1:]


def _declared_of(node: Node) -> Iterator[tuple[str, frozenset[str]]]:
    """The names that a node declares, each with the words that say of what type they are."""
    kind = node.child_by_field_name("type")
    if node.type in _CLASSES:
        body = node.child_by_field_name("body")
        made = [_words(each.child_by_field_name("type")) for each in (body.children if body is not None else ())]
        made += [_words(each) for each in node.children if each.type == "base_class_clause"]
        yield text_of(node.child_by_field_name("name")).split("<")[0], frozenset().union(*made)
    elif node.type == "alias_declaration":
        yield text_of(node.child_by_field_name("name")), _words(kind)
    elif node.type.endswith("type_parameter_declaration"):
        for each in descend(node):
            if each.type == "type_identifier":
                yield text_of(each), frozenset({_GENERIC})
    elif node.type == "lambda_capture_initializer":
        yield text_of(node.child_by_field_name("left")), _words(node.child_by_field_name("right"))
    elif node.type in DECLARING and kind is not None:
        yield from _typed(node, kind)


def _typed(node: Node, kind: Node) -> Iterator[tuple[str, frozenset[str]]]:
    deduced = kind.type in ("placeholder_type_specifier", "decltype")
    types = _words(kind) | ({_GENERIC} if deduced else frozenset())
    valued = deduced or not (kind.type == "primitive_type" or is_type(text_of(kind)))
    for each in node.children_by_field_name("declarator"):
        made = types
        if each.type == "init_declarator":
            made |= _words(each) if valued else frozenset()
        elif node.type == "function_definition" and deduced:
            made |= _words(node)
        elif node.type == "for_range_loop" and valued:
            made |= _words(node.child_by_field_name("right"))
        elif any(inner.type == "function_declarator" for inner in descend(each)):
            made |= _words(each)
        for name in declared(each):
            yield text_of(name), made
        if "::" in text_of(each):
            for word in _WORD.findall(text_of(each).split("(")[0])[-1:]:
                yield word, made
