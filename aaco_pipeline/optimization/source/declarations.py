"""Declarations that need care: volatile and atomic memory, dynamic LDS, and implicitly called operators."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from aaco_pipeline.optimization.source.kernels import Span
from aaco_pipeline.optimization.source.tokens import Macros, Memo, Text, Token, expanded_words, words_in
from aaco_pipeline.optimization.source.tree import (
    DECLARING,
    Node,
    Part,
    all_nodes,
    declared,
    descend,
    field,
    introduced,
    is_broken,
    is_seen,
    operands,
    surroundings,
    text_of,
)
from aaco_pipeline.optimization.source.vocabulary import ASSEMBLY, DYNAMIC_LDS, KEYWORDS, hazard_of, is_type

CareKind = Literal["dynamic_lds", "volatile", "atomic"]
MOST_ROUNDS: Final = 16

#: Declared names of one kind, each with the byte range in which it is visible.
_Where = dict[str, set[int]]


class Names(NamedTuple):
    """The variables and types that a source declares."""

    variables: frozenset[str]
    types: frozenset[str]


class _Link(NamedTuple):
    """An assignment to a name: whether it may hold an address, and the names in the assigned value.

    A mentioned name is whole where it is neither subscripted nor dereferenced.
    """

    target: str
    pointer: bool
    mentioned: list[tuple[str, bool]]


class Care:
    """The names of a source that need care; `parts` are the code outside the kernels' bodies, then each body."""

    def __init__(
        self, text: Text, macros: Macros, parts: Sequence[Part], names: Names, kernels: Sequence[Span]
    ) -> None:
        self._where: dict[CareKind, _Where] = {
            "dynamic_lds": _dynamic_lds(text, macros),
            "volatile": _volatile(text, macros, names),
            "atomic": _atomic(parts),
        }
        self._kernels = kernels
        self._links = [[link for node in descend(part.node) for link in _links(node)] for part in parts]
        self._own = [{name for node in descend(part.node) for name, _ in introduced(node)} for part in parts[1:]]
        outside = [node for node in descend(parts[0].node) if node.type == "declaration" and not _is_local(node)]
        self._globals = frozenset(name for node in outside for name, _ in introduced(node))
        self._found: Memo[tuple[CareKind, int | None], frozenset[str]] = Memo(lambda key: self._names(*key))
        fields = [node for _, node in all_nodes(parts) if node.type == "field_declaration"]
        self.members = frozenset(name for node in fields for name, _ in introduced(node))

    def names(self, kind: CareKind, kernel: int | None) -> frozenset[str]:
        """Return the names of a kind, and every name that is assigned a pointer or reference to one of them.

        For a kernel, names declared outside all other kernels; for None, all names.
        """
        return self._found[kind, kernel]

    def _names(self, kind: CareKind, kernel: int | None) -> frozenset[str]:
        places = [(name, offset) for name, offsets in self._where[kind].items() for offset in offsets]
        found = {name for name, offset in places if is_seen(offset, kernel, self._kernels)}
        if kernel is not None:
            # A value that another kernel stores in a file-level variable is visible here.
            found |= self.names(kind, None) & self._globals
        if not found:
            return frozenset()
        links = [link for index, each in enumerate(self._links) for link in each if self._counts(index, link, kernel)]
        for _ in range(MOST_ROUNDS):
            before = len(found)
            for target, pointer, mentioned in links:
                if any(name in found and (pointer or whole) for name, whole in mentioned):
                    found.add(target)
            if len(found) == before:
                break
        return frozenset(found)

    def _counts(self, part: int, link: _Link, kernel: int | None) -> bool:
        return kernel is None or part in (0, kernel + 1) or link.target not in self._own[part - 1]


def _is_local(node: Node) -> bool:
    return any(around.type in ("function_definition", "lambda_expression") for around in surroundings(node))


def _statements(tokens: Iterable[Token], ends: str = ";{}()") -> Iterator[list[Token]]:
    """Split tokens at semicolons and braces; if round brackets are among the ends, also at commas inside them."""
    piece: list[Token] = []
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text in tuple(ends) or (token.text == "," and depth > 0 and "(" in ends):
            yield piece
            piece = []
        else:
            piece.append(token)
    yield piece


def _written(tokens: Iterable[Token], macros: Macros) -> set[str]:
    """Return the words among tokens, and those from their macros."""
    plain = words_in(tokens)
    return plain.union(*(expanded_words(word, macros) for word in plain if word in macros))


def _dynamic_lds(text: Text, macros: Macros) -> _Where:
    """Find the arrays whose size the launch sets: `extern __shared__ T name[]`, HIP_DYNAMIC_SHARED(T, name)."""
    found: _Where = defaultdict(set)
    for piece in _statements(text.tokens, ";{}"):
        if {"extern", "__shared__"} <= _written(piece, macros):
            for token, after in pairwise(piece):
                if token.kind == "word" and after.text == "[":
                    found[token.text].add(token.start)
            if "[" not in {token.text for token in piece} and piece[-1].kind == "word":
                found[piece[-1].text].add(piece[-1].start)
    for index, token in enumerate(text.tokens):
        if token.text in DYNAMIC_LDS:
            end = next((at for at in range(index, len(text.tokens)) if text.tokens[at].text == ")"), index + 1)
            found[text.tokens[end - 1].text].add(token.start)
    return found


def _volatile(text: Text, macros: Macros, names: Names) -> _Where:
    """Find the names that are declared `volatile`, or with a volatile type."""
    found: _Where = defaultdict(set)
    types: set[str] = set()
    pieces = [piece for piece in _statements(text.tokens) if piece]
    while True:
        for piece in pieces:
            for token in _declared_volatile(piece, macros, names, types):
                found[token.text].add(token.start)
        if not (new := found.keys() & names.types - types):
            return found
        types |= new


def _declared_volatile(piece: Sequence[Token], macros: Macros, names: Names, types: set[str]) -> Iterator[Token]:
    """Yield the names of one declaration in which `volatile` or one of these types precedes any variable's name."""
    alias = piece[0].text == "using"
    head = piece[: next((index for index, token in enumerate(piece) if token.text == "="), len(piece))]
    whole = piece if alias else head
    said = [(token, _written([token], macros)) for token in whole if token.kind == "word"]
    own = [(token, "volatile" in brought and brought.isdisjoint(ASSEMBLY)) for token, brought in said]
    marks = [token.start for token, is_volatile in own if is_volatile or token.text in types]
    if not marks or {token.text for token in head} & set(ASSEMBLY):
        return
    named = [token for token in head if token.kind == "word" and token.text in names.variables | names.types]
    first = next((token.start for token in named if token.text not in names.types), marks[0])
    if alias or marks[0] <= first:
        yield from (token for token in named if token.text not in KEYWORDS and (token.start > marks[0] or alias))


def _atomic(parts: Sequence[Part]) -> _Where:
    """Find the names that are declared with an atomic type, `std::atomic<int>` or one that contains it."""
    found: _Where = defaultdict(set)
    declarations = [each for part, node in all_nodes(parts) for each in _typed(node, part)]
    while True:
        before = len(found)
        for words, name, offset in declarations:
            if any(hazard_of(word) == "atomic" or word in found for word in words):
                found[name].add(offset)
        if len(found) == before:
            return found


def _typed(node: Node, part: Part) -> Iterator[tuple[frozenset[str], str, int]]:
    """Yield the words of the type of a declaration, with each name that it declares and where."""
    words = frozenset(re.findall(r"[A-Za-z_]\w*", text_of(field(node, "type"))))
    if not words:
        return
    if node.type == "alias_declaration":
        yield words, text_of(field(node, "name")), part.offset(node)
    elif node.type in DECLARING and node.type != "function_definition":
        for each in node.children_by_field_name("declarator"):
            for name in declared(each):
                yield words, text_of(name), part.offset(name)


def _links(node: Node) -> Iterator[_Link]:
    """Yield the names that a node assigns to."""
    if node.type == "init_declarator":
        target, value = field(node, "declarator"), field(node, "value")
        kind = field(node.parent, "type") if node.parent is not None else None
        pointer = (
            (target is not None and target.type != "identifier")
            or (kind is not None and kind.type == "placeholder_type_specifier")
            or (value is not None and value.type in ("argument_list", "initializer_list"))
        )
        names = [text_of(each) for each in declared(target)]
    elif node.type == "assignment_expression":
        target, _, value = operands(node)
        kind_of_target = "" if target is None else target.type
        # `float (*rows)[8] = …` is parsed as an assignment to an element of a call's result.
        called = any(each.type == "call_expression" for each in descend(target))
        pointer = called or kind_of_target == "field_expression"
        names = [text_of(each) for each in descend(target) if each.type == "identifier"][: None if called else 1]
        if kind_of_target == "subscript_expression" and not called:
            return
    else:
        return
    if value is None:
        return
    mentioned = [(text_of(each), _is_whole(each)) for each in descend(value) if each.type == "identifier"]
    yield from (_Link(name, pointer, mentioned) for name in names)


def _is_whole(node: Node) -> bool:
    parent = node.parent
    if parent is None:
        return True
    if parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
        around = parent.parent
        return around is not None and around.type == "pointer_expression" and text_of(around).startswith("&")
    return not (parent.type == "pointer_expression" and text_of(parent).startswith("*"))


_WORD: Final = re.compile(r"[A-Za-z_$][\w$]*")
_CLASSES: Final = ("struct_specifier", "class_specifier", "union_specifier")
#: Stands for every type that is passed to a template.
_GENERIC: Final = "<>"


@dataclass(frozen=True)
class Operator:
    """A function that an expression may call implicitly if it uses one of the function's classes.

    Without owners, any expression may call it. A `lifetime` is a constructor or destructor.
    """

    part: Part
    lifetime: bool
    owners: frozenset[str]


class _Declared(NamedTuple):
    """A name with the words that determine its type."""

    offset: int
    name: str
    words: frozenset[str]


class Operators:
    """The operators of a source; `parts` are the code outside the kernels' bodies, then each body."""

    def __init__(
        self, macros: Macros, parts: Sequence[Part], kernels: Sequence[Span], found: Iterable[tuple[Part, bool]]
    ) -> None:
        readable = not any(is_broken(node) for _, node in all_nodes(parts))
        self._kernels = kernels
        self._all = [Operator(part, life, _owners(part.node) if readable else frozenset()) for part, life in found]
        self._declared = list(_made_of(parts, macros)) if self._all else []
        self._carriers: Memo[tuple[frozenset[str], int | None], frozenset[str]] = Memo(lambda key: self._carried(*key))

    def __bool__(self) -> bool:
        return bool(self._all)

    def running(self, words: Collection[str], kernel: int | None) -> list[Operator]:
        """Return the operators that code with these words may run in a kernel; names of other kernels are ignored."""
        return [
            each for each in self._all if not each.owners or not self._carriers[each.owners, kernel].isdisjoint(words)
        ]

    def _carried(self, owners: frozenset[str], kernel: int | None) -> frozenset[str]:
        """Return the names through which code may use an object of these classes."""
        seen = [each for each in self._declared if is_seen(each.offset, kernel, self._kernels)]
        found = set(owners)
        while new := {each.name for each in seen if each.name not in found and not found.isdisjoint(each.words)}:
            found |= new
        return frozenset(found)


def class_around(node: Node) -> str | None:
    """Return the name of the class around a method, if there is one."""
    around = next((around for around in surroundings(node) if around.type in _CLASSES), None)
    return None if around is None else _class_name(around)


def _class_name(node: Node) -> str:
    return text_of(field(node, "name")).split("<")[0]


def _words(node: Node | None) -> frozenset[str]:
    return frozenset(_WORD.findall(text_of(node)))


def _owners(operator: Node) -> frozenset[str]:
    """Return the classes of this file that an operator works on; empty if it names none."""
    if (around := class_around(operator)) is not None:
        return frozenset({around} - {""})
    head = text_of(field(operator, "declarator"))
    if "::" in (qualifiers := head.split("operator")[0]):
        return frozenset(_WORD.findall(qualifiers))
    top = [operator, *surroundings(operator)][-1]
    return frozenset(_WORD.findall(head)) & {_class_name(node) for node in descend(top) if node.type in _CLASSES}


def _made_of(parts: Sequence[Part], macros: Macros) -> Iterator[_Declared]:
    """Yield each declared name with the words of its types, and of its value where that decides its type."""
    for name, definitions in macros.items():
        yield _Declared(-1, name, frozenset(token.text for macro in definitions for token in macro.body))
    templates = {name for node in descend(parts[0].node) for name in _templates(node)}
    for part, node in all_nodes(parts):
        offset = part.offset(node)
        yield from (_Declared(offset, name, made) for name, made in _declared_of(node))
        deduced = part is parts[0] and node.type == "call_expression" and not templates.isdisjoint(_words(node))
        if deduced or node.type == "template_argument_list":
            yield _Declared(offset, _GENERIC, _words(node))


def _templates(node: Node) -> Iterator[str]:
    if node.type == "template_declaration":
        for each in node.children:
            if each.type == "function_definition":
                yield from _WORD.findall(text_of(each.child_by_field_name("declarator")).split("(")[0])[-1:]


def _declared_of(node: Node) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the names that a node declares, each with the words that its type depends on."""
    kind = field(node, "type")
    if node.type in _CLASSES:
        body = field(node, "body")
        made = [_words(field(each, "type")) for each in (body.children if body is not None else ())]
        made += [_words(each) for each in node.children if each.type == "base_class_clause"]
        yield _class_name(node), frozenset().union(*made)
    elif node.type == "alias_declaration":
        yield text_of(field(node, "name")), _words(kind)
    elif node.type.endswith("type_parameter_declaration"):
        types = [each for each in descend(node) if each.type == "type_identifier"]
        yield from ((text_of(each), frozenset({_GENERIC})) for each in types)
    elif node.type == "lambda_capture_initializer":
        yield text_of(field(node, "left")), _words(field(node, "right"))
    elif node.type in DECLARING and kind is not None:
        yield from _typed_names(node, kind)


def _typed_names(node: Node, kind: Node) -> Iterator[tuple[str, frozenset[str]]]:
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
            made |= _words(field(node, "right"))
        elif any(inner.type == "function_declarator" for inner in descend(each)):
            made |= _words(each)
        for name in declared(each):
            yield text_of(name), made
        if "::" in text_of(each):
            yield from ((word, made) for word in _WORD.findall(text_of(each).split("(")[0])[-1:])
