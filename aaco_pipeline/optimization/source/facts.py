"""What a source says beyond one loop: names, functions, constants, and pointers into memory that needs care."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from aaco_pipeline.optimization.source.constants import Constant, evaluate
from aaco_pipeline.optimization.source.grammar import Node, declared, descend, text_of
from aaco_pipeline.optimization.source.preprocessor import Macros, expanded_words
from aaco_pipeline.optimization.source.tokens import Text, Token
from aaco_pipeline.optimization.source.vocabulary import ASSEMBLY, DYNAMIC_LDS, INTEGER_BITS, KEYWORDS, UNSIGNED, words

_DECLARING: Final = frozenset(
    words(
        "declaration parameter_declaration optional_parameter_declaration field_declaration for_range_loop"
        " type_definition function_definition init_declarator lambda_capture_initializer"
        " variadic_parameter_declaration"
    )
)
_NAMED_TYPES: Final = frozenset(
    words(
        "struct_specifier class_specifier union_specifier enum_specifier alias_declaration enumerator"
        " namespace_definition concept_definition"
    )
)
_TYPE_PARAMETERS: Final = frozenset(
    words(
        "type_parameter_declaration optional_type_parameter_declaration variadic_type_parameter_declaration"
        " template_template_parameter_declaration"
    )
)
MOST_ROUNDS: Final = 16


@dataclass(frozen=True)
class Part:
    """A tree of some of the source; a byte of the tree is `shift` bytes further on in the source.

    What is before the byte `start` of the source stands in the tree for something else than what is written there.
    """

    node: Node
    shift: int
    start: int = 0


@dataclass(frozen=True)
class Facts:
    """What is known of a whole source.

    `functions` are the bodies of a name's overloads, lambdas among them; `implicit` are operators and conversions,
    which code may call without naming them. `variables` are the names that are declared as anything but a function,
    `objects` those among them that are of this file's own classes.
    """

    text: Text
    macros: Macros
    functions: Mapping[str, Sequence[Part]]
    implicit: Sequence[Part]
    declared: frozenset[str]
    variables: frozenset[str]
    types: frozenset[str]
    objects: frozenset[str]
    constants: Mapping[str, Constant]
    arrays: Mapping[str, Constant | None]
    dynamic_lds: frozenset[str]
    volatile: frozenset[str]

    def constant(self, name: str) -> Constant | None:
        """What a name is always worth in this file; None of what varies, is unknown or has several values."""
        return self.constants.get(name)


def facts_of(text: Text, macros: Macros, parts: Sequence[Part]) -> Facts:
    """The facts of a source whose kernels' bodies, and all that is outside them, are `parts`."""
    functions: dict[str, list[Part]] = defaultdict(list)
    implicit: list[Part] = []
    variables: Counter[str] = Counter()
    types: set[str] = set()
    for part in parts:
        for node in descend(part.node):
            for name, is_type in _introduced(node):
                if is_type:
                    types.add(name)
                else:
                    variables[name] += 1
            for name in _function_names(node) if node.start_byte + part.shift >= part.start else ():
                (implicit if name.startswith("operator") else functions[name]).append(Part(node, part.shift))
                variables.pop(name, None)
            if node.type in ("struct_specifier", "class_specifier") and node.child_by_field_name("body"):
                functions[text_of(node.child_by_field_name("name"))].append(Part(node, part.shift))
    constants = _constants(text, macros, parts, variables)
    dynamic_lds = _dynamic_lds(text, macros)
    return Facts(
        text,
        macros,
        dict(functions),
        tuple(implicit),
        frozenset(variables) | types | frozenset(functions) | frozenset(macros) | dynamic_lds,
        frozenset(variables),
        frozenset(types),
        _objects(parts, frozenset(functions)),
        constants,
        _arrays(text, parts, constants, variables),
        _aliases(parts, dynamic_lds),
        _aliases(parts, _volatile(text, macros, frozenset(variables) | types)),
    )


def _objects(parts: Sequence[Part], classes: frozenset[str]) -> frozenset[str]:
    """The variables that are declared of a class of this file, wherever they are declared."""
    found: set[str] = set()
    others: set[str] = set()
    for part in parts:
        for node in descend(part.node):
            if node.type in _DECLARING and (kind := node.child_by_field_name("type")) is not None:
                own = kind.type in ("type_identifier", "template_type") and text_of(kind).split("<")[0] in classes
                for each in node.children_by_field_name("declarator"):
                    (found if own else others).update(text_of(name) for name in declared(each))
    return frozenset(found - others)


def _introduced(node: Node) -> Iterator[tuple[str, bool]]:
    """The names that a node declares, each with whether it is a type."""
    if node.type in _DECLARING:
        for each in node.children_by_field_name("declarator"):
            for name in declared(each):
                yield text_of(name), node.type == "type_definition"
        if node.type == "lambda_capture_initializer":
            yield text_of(node.child_by_field_name("left")), False
    elif node.type in _NAMED_TYPES:
        yield text_of(node.child_by_field_name("name")), node.type != "enumerator"
    elif node.type in _TYPE_PARAMETERS:
        for child in node.named_children:
            if child.type == "type_identifier":
                yield text_of(child), True


def _function_names(node: Node) -> Iterator[str]:
    """The name of a function definition, and of a variable that holds a lambda."""
    if node.type == "init_declarator":
        value = node.child_by_field_name("value")
        if value is not None and value.type == "lambda_expression":
            for name in declared(node.child_by_field_name("declarator")):
                yield text_of(name)
    if node.type != "function_definition":
        return
    current = node.child_by_field_name("declarator")
    while current is not None and current.type in ("pointer_declarator", "reference_declarator", "function_declarator"):
        inner = current.child_by_field_name("declarator")
        current = inner if inner is not None else next(iter(current.named_children), None)
    if current is not None:
        # Of `Tile::load<4>` the last name counts; `operator+` and `operator float` begin with their keyword.
        written = text_of(current).split("<")[0] if current.type == "template_function" else text_of(current)
        plain = written.rsplit("::", 1)[-1].lstrip("~").strip()
        yield plain if plain.startswith("operator") or plain.isidentifier() else "operator of an unknown name"


def tokens_of(text: Text, part: Part, node: Node) -> tuple[Token, ...]:
    """The tokens that a node of a part is written in."""
    return text.within(max(node.start_byte + part.shift, part.start), node.end_byte + part.shift)


def _constants(text: Text, macros: Macros, parts: Sequence[Part], variables: Counter[str]) -> dict[str, Constant]:
    """Macros, constants and enumerators that have one value wherever this file defines them."""
    written: dict[str, list[tuple[Token, ...]]] = defaultdict(list)
    unsigned: set[str] = set()
    for name, definitions in macros.items():
        if name not in variables:
            written[name].extend(each.body if each.parameters is None else () for each in definitions)
    counted: Counter[str] = Counter()
    for part in parts:
        for node in descend(part.node):
            for name, value, sign in _initialized(node):
                counted[name] += 1
                written[name].append(tokens_of(text, part, value))
                if not sign:
                    unsigned.add(name)
    # An initialized declarator is counted as a declarator of its own and of its declaration.
    candidates = {
        name: bodies for name, bodies in written.items() if name in macros or 2 * counted[name] >= variables[name]
    }
    known: dict[str, Constant] = {}
    for _ in range(MOST_ROUNDS):
        found = {
            name: values.pop()
            for name, bodies in candidates.items()
            if name not in known
            and len(values := {evaluate(body, known.get) for body in bodies}) == 1
            and None not in values
        }
        new = {
            name: Constant(value.value, value.unsigned or name in unsigned)
            for name, value in found.items()
            if value is not None and (value.value >= 0 or name not in unsigned)
        }
        if not new:
            break
        known |= new
    return known


def _initialized(node: Node) -> Iterator[tuple[str, Node, bool]]:
    """Integer constants that a node initializes, each with its value's node and whether its type has a sign."""
    value = node.child_by_field_name("value")
    if node.type == "enumerator" and value is not None:
        yield text_of(node.child_by_field_name("name")), value, True
    if node.type != "declaration":
        return
    kind = " ".join(text_of(node.child_by_field_name("type")).split())
    qualified = any(text_of(each) in ("const", "constexpr") for each in node.children if each.type == "type_qualifier")
    if not qualified or kind not in INTEGER_BITS:
        return
    for each in node.children_by_field_name("declarator"):
        target, value = each.child_by_field_name("declarator"), each.child_by_field_name("value")
        if each.type == "init_declarator" and target is not None and target.type == "identifier" and value is not None:
            yield text_of(target), value, kind not in UNSIGNED


def _arrays(
    text: Text, parts: Sequence[Part], constants: Mapping[str, Constant], variables: Counter[str]
) -> dict[str, Constant | None]:
    """Arrays that are declared once, with their first extent where it is constant."""
    found: dict[str, Constant | None] = {}
    for part in parts:
        for node in descend(part.node):
            name = node.child_by_field_name("declarator") if node.type == "array_declarator" else None
            if name is None or name.type != "identifier":
                continue
            within = node.parent.type if node.parent is not None else ""
            if within not in ("declaration", "init_declarator") or variables[text_of(name)] > 2:
                continue
            size = node.child_by_field_name("size")
            found[text_of(name)] = evaluate(tokens_of(text, part, size), constants.get) if size is not None else None
    return found


def _statements(tokens: Iterable[Token], ends: str = ";{}()") -> Iterator[list[Token]]:
    """Tokens between semicolons and braces; with round brackets among the ends, in these between commas."""
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
    """The words of tokens, and those that their macros bring."""
    plain = {token.text for token in tokens if token.kind == "word"}
    return plain.union(*(expanded_words(word, macros) for word in plain if word in macros))


def _dynamic_lds(text: Text, macros: Macros) -> frozenset[str]:
    """The arrays whose extent the launch gives: `extern __shared__ T name[]` and HIP_DYNAMIC_SHARED(T, name)."""
    found: set[str] = set()
    for piece in _statements(text.tokens, ";{}"):
        if {"extern", "__shared__"} <= _written(piece, macros):
            found |= {token.text for token, after in pairwise(piece) if token.kind == "word" and after.text == "["}
            if "[" not in {token.text for token in piece}:
                found |= {token.text for token in piece[-1:] if token.kind == "word"}
    for index, token in enumerate(text.tokens):
        if token.text in DYNAMIC_LDS:
            end = next((at for at in range(index, len(text.tokens)) if text.tokens[at].text == ")"), index + 1)
            found.add(text.tokens[end - 1].text)
    return frozenset(found)


def _volatile(text: Text, macros: Macros, names: frozenset[str]) -> frozenset[str]:
    """The names that are declared with `volatile`, or with a type that is."""
    found: set[str] = set()
    for _ in range(MOST_ROUNDS):
        before = len(found)
        for piece in _statements(text.tokens):
            head = piece[: next((index for index, token in enumerate(piece) if token.text == "="), len(piece))]
            alias = bool(piece) and piece[0].text == "using"
            said = _written(piece if alias else head, macros)
            types = found & {token.text for token in head[:-1]}
            if ("volatile" in said and not said & set(ASSEMBLY)) or (types and len(head) > 1):
                new = {token.text for token in head if token.kind == "word" and token.text in names}
                if "volatile" in said or head[0].text in types:
                    found |= new - KEYWORDS
        if len(found) == before:
            break
    return frozenset(found)


def _aliases(parts: Sequence[Part], names: frozenset[str]) -> frozenset[str]:
    """Names, and every name that is given a pointer or reference made of one of them."""
    found = set(names)
    if not found:
        return frozenset()
    links = [link for part in parts for node in descend(part.node) for link in _links(node)]
    for _ in range(MOST_ROUNDS):
        before = len(found)
        for target, pointer, mentioned in links:
            if any(name in found and (pointer or whole) for name, whole in mentioned):
                found.add(target)
        if len(found) == before:
            break
    return frozenset(found)


def _links(node: Node) -> Iterator[tuple[str, bool, list[tuple[str, bool]]]]:
    """What a node gives a value: a name, whether it surely may hold an address, and the names that the value mentions.

    A mentioned name is `whole` where it is neither subscripted nor dereferenced.
    """
    if node.type == "init_declarator":
        target, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
        kind = node.parent.child_by_field_name("type") if node.parent is not None else None
        pointer = target is not None and target.type != "identifier"
        pointer = pointer or (kind is not None and kind.type == "placeholder_type_specifier")
        pointer = pointer or (value is not None and value.type in ("argument_list", "initializer_list"))
        names = [text_of(each) for each in declared(target)]
    elif node.type == "assignment_expression":
        target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
        identifiers = [each for each in descend(target) if each.type == "identifier"] if target is not None else []
        # `float (*rows)[8] = …` is read as an assignment to an element of what a call returned.
        called = target is not None and any(each.type == "call_expression" for each in descend(target))
        pointer = called or (target is not None and target.type == "field_expression")
        stored = target is not None and target.type == "subscript_expression" and not called
        names = [text_of(each) for each in (identifiers if called else identifiers[:1])] if not stored else []
    else:
        return
    if value is None:
        return
    mentioned = [(text_of(each), _is_whole(each)) for each in descend(value) if each.type == "identifier"]
    for name in names:
        yield name, pointer, mentioned


def _is_whole(node: Node) -> bool:
    parent = node.parent
    if parent is None:
        return True
    if parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
        around = parent.parent
        return around is not None and around.type == "pointer_expression" and text_of(around).startswith("&")
    return not (parent.type == "pointer_expression" and text_of(parent).startswith("*"))
