"""Facts of a complete source: its names, functions and integer constants."""

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from aaco_pipeline.optimization.source.declarations import Care, Names, Operators, class_around
from aaco_pipeline.optimization.source.kernels import Span
from aaco_pipeline.optimization.source.tokens import Macros, Text, Token
from aaco_pipeline.optimization.source.tree import (
    DECLARING,
    Node,
    Part,
    all_nodes,
    declarators,
    declared,
    field,
    introduced,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS, UNSIGNED

_LITERAL: Final = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)([uU]?[lLzZ]{0,2}|[lL]{1,2}[uU])")
_LEVELS: Final = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
_APPLIED: Final[Mapping[str, Callable[[int, int], int]]] = {
    **{"|": operator.or_, "^": operator.xor, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift},
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod},
}
#: Limit of values that fit an `int`: beyond it the type of each literal would matter.
_LARGEST: Final = (1 << 31) - 1
#: Bounds the depth of the recursion below.
MOST_TOKENS: Final = 48


class Constant(NamedTuple):
    """A value of 31 bits; `unsigned` where the language would compare and subtract it without a sign."""

    value: int
    unsigned: bool


Lookup = Callable[[str], Constant | None]


class _NotConstant(Exception):
    """The expression contains more than literals, known names and integer arithmetic that no type can affect."""


def evaluate(tokens: Sequence[Token], names: Lookup) -> Constant | None:
    """Evaluate an integer expression; None if it is not a constant, or too long or large to be relevant."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        return None
    try:
        value, rest = _binary(list(tokens), names, 0)
    except _NotConstant:
        return None
    return value if not rest else None


def _binary(tokens: list[Token], names: Lookup, level: int) -> tuple[Constant, list[Token]]:
    if level == len(_LEVELS):
        return _unary(tokens, names)
    value, rest = _binary(tokens, names, level + 1)
    while rest and rest[0].text in _LEVELS[level]:
        sign = rest[0].text
        right, rest = _binary(rest[1:], names, level + 1)
        value = _applied(sign, value, right)
    return value, rest


def _applied(sign: str, first: Constant, second: Constant) -> Constant:
    left, right = first.value, second.value
    if (sign in ("/", "%") and (left < 0 or right <= 0)) or (sign in ("<<", ">>") and not 0 <= right < 31):
        raise _NotConstant
    return _checked(_APPLIED[sign](left, right), first.unsigned or second.unsigned)


def _checked(value: int, unsigned: bool) -> Constant:
    if abs(value) > _LARGEST or (unsigned and value < 0):
        raise _NotConstant
    return Constant(value, unsigned)


def _unary(tokens: list[Token], names: Lookup) -> tuple[Constant, list[Token]]:
    if not tokens:
        raise _NotConstant
    first, rest = tokens[0], tokens[1:]
    if first.text in ("-", "+"):
        (value, unsigned), rest = _unary(rest, names)
        return _checked(-value if first.text == "-" else value, unsigned), rest
    if first.text == "(":
        inner, rest = _binary(rest, names, 0)
        if not rest or rest[0].text != ")":
            raise _NotConstant
        return inner, rest[1:]
    if first.kind == "number" and (literal := _LITERAL.fullmatch(first.text.replace("'", ""))):
        digits, suffix = literal.groups()
        octal = digits.startswith("0") and digits.isdigit()
        if octal and not re.fullmatch("[0-7]+", digits):
            raise _NotConstant
        return _checked(int(digits, 8 if octal else 0), "u" in suffix.lower()), rest
    if first.kind == "word" and (known := names(first.text)) is not None:
        return known, rest
    raise _NotConstant


MOST_ROUNDS: Final = 16


@dataclass(frozen=True)
class Facts:
    """Names, functions and constants of a complete source.

    `functions` are the bodies of a name's overloads, lambdas among them; `operators` may run without being named.
    `variables` are the names that are declared as anything but a function, `objects` those among them that are of this
    file's own classes.
    """

    text: Text
    macros: Macros
    functions: Mapping[str, Sequence[Part]]
    operators: Operators
    declared: frozenset[str]
    variables: frozenset[str]
    types: frozenset[str]
    objects: frozenset[str]
    constants: Mapping[str, Constant]
    arrays: Mapping[str, Constant | None]
    virtual: frozenset[str]
    care: Care
    #: The kernel whose own names count in addition to those outside all kernels; None: every kernel's.
    kernel: int | None = None

    def within(self, kernel: int) -> "Facts":
        """Return the facts as one kernel sees them: without declarations inside other kernels."""
        return replace(self, kernel=kernel)

    @property
    def dynamic_lds(self) -> frozenset[str]:
        """Names of dynamic local data share, and of pointers into it."""
        return self.care.names("dynamic_lds", self.kernel)

    @property
    def volatile(self) -> frozenset[str]:
        """Names of volatile variables, and of pointers to them."""
        return self.care.names("volatile", self.kernel)

    @property
    def atomic(self) -> frozenset[str]:
        """Names of atomic variables, whose every use is an atomic operation, and of pointers to them."""
        return self.care.names("atomic", self.kernel)

    def constant(self, name: str) -> Constant | None:
        """Return the only value of a name in this file; None if it varies, is unknown or has several values."""
        return self.constants.get(name)


def facts_of(text: Text, macros: Macros, parts: Sequence[Part], kernels: Sequence[Span]) -> Facts:
    """Collect the facts of a source: `parts` are the code outside kernels, then each body of `kernels`, in order."""
    functions: dict[str, list[Part]] = defaultdict(list)
    implicit: list[tuple[Part, bool]] = []
    variables: Counter[str] = Counter()
    types: set[str] = set()
    for part, node in all_nodes(parts):
        here = Part(node, part.shift)
        for name, is_type in introduced(node):
            if is_type:
                types.add(name)
            else:
                variables[name] += 1
        for name in _function_names(node) if part.offset(node) >= part.start else ():
            is_operator, lifetime = name.startswith("operator"), name == class_around(node)
            if is_operator or lifetime:
                implicit.append((here, lifetime))
            if not is_operator:
                functions[name].append(here)
            variables.pop(name, None)
        if node.type in ("struct_specifier", "class_specifier") and field(node, "body"):
            functions[text_of(field(node, "name"))].append(here)
    constants = _constants(text, macros, parts, variables)
    care = Care(text, macros, parts, Names(frozenset(variables), frozenset(types)), kernels)
    return Facts(
        text,
        macros,
        dict(functions),
        Operators(macros, parts, kernels, implicit),
        frozenset(variables) | types | frozenset(functions) | frozenset(macros) | care.names("dynamic_lds", None),
        frozenset(variables),
        frozenset(types),
        _objects(parts, frozenset(functions)),
        constants,
        _arrays(text, parts, constants, variables),
        frozenset(name for _, node in all_nodes(parts) for name in _virtual_names(node)),
        care,
    )


def _objects(parts: Sequence[Part], classes: frozenset[str]) -> frozenset[str]:
    """Find the variables whose type is a class of this file in every declaration."""
    found: set[str] = set()
    others: set[str] = set()
    for _, node in all_nodes(parts):
        if node.type in DECLARING and (kind := field(node, "type")) is not None:
            own = kind.type in ("type_identifier", "template_type") and text_of(kind).split("<")[0] in classes
            for each in node.children_by_field_name("declarator"):
                (found if own else others).update(text_of(name) for name in declared(each))
    return frozenset(found - others)


def _function_names(node: Node) -> Iterator[str]:
    """Yield the name of a function definition, and of a variable that holds a lambda."""
    if node.type == "init_declarator":
        value = field(node, "value")
        if value is not None and value.type == "lambda_expression":
            yield from map(text_of, declared(field(node, "declarator")))
    if node.type != "function_definition":
        return
    current = field(node, "declarator")
    while current is not None and current.type in ("pointer_declarator", "reference_declarator", "function_declarator"):
        inner = field(current, "declarator")
        current = inner if inner is not None else next(iter(current.named_children), None)
    if current is not None:
        # In `Tile::load<4>` the last name counts; `operator+` and `operator float` begin with their keyword.
        written = text_of(current).split("<")[0] if current.type == "template_function" else text_of(current)
        plain = written.rsplit("::", 1)[-1].lstrip("~").strip()
        yield plain if plain.startswith("operator") or plain.isidentifier() else "operator of an unknown name"


def _virtual_names(node: Node) -> Iterator[str]:
    """Yield the name of a method that a derived class may replace."""
    if node.type == "function_definition":
        around = (child.type for each in node.children for child in (each, *each.children))
        yield from _function_names(node) if not {"virtual", "virtual_specifier"}.isdisjoint(around) else ()


def _constants(text: Text, macros: Macros, parts: Sequence[Part], variables: Counter[str]) -> dict[str, Constant]:
    """Evaluate macros, constants and enumerators that have one value wherever this file defines them."""
    written: dict[str, list[tuple[Token, ...]]] = defaultdict(list)
    unsigned: set[str] = set()
    for name, definitions in macros.items():
        if name not in variables:
            written[name].extend(each.body if each.parameters is None else () for each in definitions)
    counted: Counter[str] = Counter()
    for part, node in all_nodes(parts):
        for name, value, sign in _initialized(node):
            counted[name] += 1
            written[name].append(tokens_of(text, part, value))
            if not sign:
                unsigned.add(name)
    # An initialized declarator is counted both by itself and in its declaration.
    candidates = {
        name: bodies for name, bodies in written.items() if name in macros or 2 * counted[name] >= variables[name]
    }
    known: dict[str, Constant] = {}
    for _ in range(MOST_ROUNDS):
        new: dict[str, Constant] = {}
        for name, bodies in candidates.items():
            found, *others = {evaluate(body, known.get) for body in bodies} if name not in known else {None}
            if found is not None and not others and (found.value >= 0 or name not in unsigned):
                new[name] = Constant(found.value, found.unsigned or name in unsigned)
        if not new:
            break
        known |= new
    return known


def _initialized(node: Node) -> Iterator[tuple[str, Node, bool]]:
    """Yield integer constants that a node initializes, each with its value's node and whether its type is signed."""
    value = field(node, "value")
    if node.type == "enumerator" and value is not None:
        yield text_of(field(node, "name")), value, True
    if node.type != "declaration":
        return
    kind = " ".join(text_of(field(node, "type")).split())
    qualified = any(text_of(each) in ("const", "constexpr") for each in node.children if each.type == "type_qualifier")
    if not qualified or kind not in INTEGER_BITS:
        return
    for _, target, value in declarators(node):
        if target is not None and target.type == "identifier" and value is not None:
            yield text_of(target), value, kind not in UNSIGNED


def _arrays(
    text: Text, parts: Sequence[Part], constants: Mapping[str, Constant], variables: Counter[str]
) -> dict[str, Constant | None]:
    """Find arrays that are declared once, with their first extent if it is constant."""
    found: dict[str, Constant | None] = {}
    for part, node in all_nodes(parts):
        name = field(node, "declarator") if node.type == "array_declarator" else None
        within = node.parent.type if node.parent is not None else ""
        if name is None or name.type != "identifier" or within not in ("declaration", "init_declarator"):
            continue
        if variables[text_of(name)] <= 2:
            size = field(node, "size")
            value = evaluate(tokens_of(text, part, size), constants.get) if size is not None else _listed(node)
            found[text_of(name)] = value
    return found


def _listed(array: Node) -> Constant | None:
    """Return the extent that the list of initial values gives to an array of plain values."""
    around = array.parent
    values = around.child_by_field_name("value") if around is not None and around.type == "init_declarator" else None
    kind = around.parent.child_by_field_name("type") if around is not None and around.parent is not None else None
    if values is None or values.type != "initializer_list" or kind is None or kind.type != "primitive_type":
        return None
    plain = all(each.type not in ("initializer_pair", "parameter_pack_expansion") for each in values.named_children)
    return Constant(len(values.named_children), False) if plain else None
