"""Facts of a whole source: its names, functions and integer constants."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from aaco_pipeline.optimization.source.declarations import Care, Operators, class_around
from aaco_pipeline.optimization.source.declarations import Names as Names_declarations
from aaco_pipeline.optimization.source.kernels import Span
from aaco_pipeline.optimization.source.tokens import Macros, Text, Token
from aaco_pipeline.optimization.source.tree import (
    DECLARING,
    Node,
    Part,
    declared,
    descend,
    introduced,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS, UNSIGNED

_LITERAL: Final = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)([uU]?[lLzZ]{0,2}|[lL]{1,2}[uU])")
_LEVELS: Final = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
#: What fits an `int`: beyond it the type of each literal would matter.
_LARGEST: Final = (1 << 31) - 1
#: Bounds the depth of the recursion below.
MOST_TOKENS: Final = 48


class Constant(NamedTuple):
    """A value of 31 bits; `unsigned` where the language would compare and subtract it without a sign."""

    value: int
    unsigned: bool


Names = Callable[[str], Constant | None]


class _NotConstant(Exception):
    """The expression is more than literals, known names and integer arithmetic that no type can change."""


def evaluate(tokens: Sequence[Token], names: Names) -> Constant | None:
    """The value of an integer expression, None where it is no constant, or too long or large to be one of interest."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        return None
    try:
        value, rest = _binary(list(tokens), names, 0)
    except _NotConstant:
        return None
    return value if not rest else None


def _binary(tokens: list[Token], names: Names, level: int) -> tuple[Constant, list[Token]]:
    if level == len(_LEVELS):
        return _unary(tokens, names)
    value, rest = _binary(tokens, names, level + 1)
    while rest and rest[0].text in _LEVELS[level]:
        operator = rest[0].text
        right, rest = _binary(rest[1:], names, level + 1)
        value = _applied(operator, value, right)
    return value, rest


def _applied(operator: str, first: Constant, second: Constant) -> Constant:
    left, right = first.value, second.value
    if (operator in ("/", "%") and (left < 0 or right <= 0)) or (operator in ("<<", ">>") and not 0 <= right < 31):
        raise _NotConstant
    value = {
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "&": lambda: left & right,
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left // right,
        "%": lambda: left % right,
    }[operator]()
    return _checked(value, first.unsigned or second.unsigned)


def _checked(value: int, unsigned: bool) -> Constant:
    if abs(value) > _LARGEST or (unsigned and value < 0):
        raise _NotConstant
    return Constant(value, unsigned)


def _unary(tokens: list[Token], names: Names) -> tuple[Constant, list[Token]]:
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
    """What is known of a whole source.

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
    #: The kernel whose own names count beside those outside all kernels; None: every kernel's.
    kernel: int | None = None

    def within(self, kernel: int) -> "Facts":
        """The facts as they are in one kernel: what another one declares in itself is not seen."""
        return replace(self, kernel=kernel)

    @property
    def dynamic_lds(self) -> frozenset[str]:
        """Names of dynamic local data share, and of pointers into it."""
        return self.care.names("dynamic_lds", self.kernel)

    @property
    def volatile(self) -> frozenset[str]:
        """Names of what is volatile, and of pointers to it."""
        return self.care.names("volatile", self.kernel)

    @property
    def atomic(self) -> frozenset[str]:
        """Names of what is of an atomic type, whose every use is an atomic operation, and of pointers to it."""
        return self.care.names("atomic", self.kernel)

    def constant(self, name: str) -> Constant | None:
        """What a name is always worth in this file; None of what varies, is unknown or has several values."""
        return self.constants.get(name)


def facts_of(text: Text, macros: Macros, parts: Sequence[Part], kernels: Sequence[Span]) -> Facts:
    """The facts of a source: `parts` are all outside its kernels' bodies, and each body; `kernels` run beside these."""
    functions: dict[str, list[Part]] = defaultdict(list)
    implicit: list[tuple[Part, bool]] = []
    variables: Counter[str] = Counter()
    types: set[str] = set()
    for part in parts:
        for node in descend(part.node):
            for name, is_type in introduced(node):
                if is_type:
                    types.add(name)
                else:
                    variables[name] += 1
            for name in _function_names(node) if node.start_byte + part.shift >= part.start else ():
                operator, lifetime = name.startswith("operator"), name == class_around(node)
                if operator or lifetime:
                    implicit.append((Part(node, part.shift), lifetime))
                if not operator:
                    functions[name].append(Part(node, part.shift))
                variables.pop(name, None)
            if node.type in ("struct_specifier", "class_specifier") and node.child_by_field_name("body"):
                functions[text_of(node.child_by_field_name("name"))].append(Part(node, part.shift))
    constants = _constants(text, macros, parts, variables)
    care = Care(text, macros, parts, Names_declarations(frozenset(variables), frozenset(types)), kernels)
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
        frozenset(name for part in parts for node in descend(part.node) for name in _virtual_names(node)),
        care,
    )


def _objects(parts: Sequence[Part], classes: frozenset[str]) -> frozenset[str]:
    """The variables that are declared of a class of this file, wherever they are declared."""
    found: set[str] = set()
    others: set[str] = set()
    for part in parts:
        for node in descend(part.node):
            if node.type in DECLARING and (kind := node.child_by_field_name("type")) is not None:
                own = kind.type in ("type_identifier", "template_type") and text_of(kind).split("<")[0] in classes
                for each in node.children_by_field_name("declarator"):
                    (found if own else others).update(text_of(name) for name in declared(each))
    return frozenset(found - others)


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


def _virtual_names(node: Node) -> Iterator[str]:
    """The name of a method that a derived class may replace."""
    if node.type == "function_definition":
        replaced = any(
            child.type in ("virtual", "virtual_specifier") for each in node.children for child in (each, *each.children)
        )
        yield from _function_names(node) if replaced else ()


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
            found[text_of(name)] = (
                evaluate(tokens_of(text, part, size), constants.get) if size is not None else _listed(node)
            )
    return found


def _listed(array: Node) -> Constant | None:
    """The extent of an array of plain values that its list of them gives."""
    around = array.parent
    values = around.child_by_field_name("value") if around is not None and around.type == "init_declarator" else None
    kind = around.parent.child_by_field_name("type") if around is not None and around.parent is not None else None
    if values is None or values.type != "initializer_list" or kind is None or kind.type != "primitive_type":
        return None
    plain = all(each.type not in ("initializer_pair", "parameter_pack_expansion") for each in values.named_children)
    return Constant(len(values.named_children), False) if plain else None
