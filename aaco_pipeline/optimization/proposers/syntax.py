"""A kernel's syntax tree for the rewriting proposers: types, names, and whether evaluation has side effects.

`aaco_pipeline.optimization.source` finds the loops and decides which may be unrolled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused, Task
from aaco_pipeline.optimization.source import Kernel, Loop, Unit, parse
from aaco_pipeline.optimization.source.tokens import Directive, Macro, Token, code_alone, macros_of, read
from aaco_pipeline.optimization.source.tree import (
    Node,
    declarators,
    descend,
    field,
    is_broken,
    stripped,
    surroundings,
    text_of,
    tree_of,
)
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS, PURE_CALLS, UNSIGNED, words

_BUILT_IN: Final = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})
#: Nodes that do more than compute a value; the grammar parses inline assembly as a call.
_EFFECTS: Final = words("""
    assignment_expression update_expression lambda_expression new_expression delete_expression comma_expression
    gnu_asm_expression co_await_expression throw_statement kernel_call_expression
""")
_TYPE_NODES: Final = ("primitive_type", "sized_type_specifier", "type_identifier", "qualified_identifier")


class Otherwise(Exception):
    """A precondition of a change does not hold; the sentence says which."""


@dataclass(frozen=True)
class Subject:
    """A task's kernel with its tree, in which comments and directives are blanked and byte offsets are unchanged.

    `types` are those of parameters, of locals that are declared once, and of the file's own constants: as written, a
    pointer's without const. `macros` are the names that the file defines as more than an integer, whose names are
    `numbers`; `tokens`, `directives` and `words` are of the whole source.
    """

    task: Task
    unit: Unit
    kernel: Kernel
    body: Node
    types: Mapping[str, str]
    macros: frozenset[str]
    numbers: Mapping[str, int]
    tokens: tuple[Token, ...]
    directives: tuple[Directive, ...]
    words: frozenset[str]

    def line(self, node: Node) -> int:
        """The line of the source, from 1, on which a node begins."""
        return self.task.source.count(b"\n", 0, node.start_byte) + 1

    def statement(self, loop: Loop) -> Node | None:
        """Return the node of a loop; None if the tree has no such node."""
        node = self.body.descendant_for_byte_range(*loop.span)
        around = () if node is None else (node, *surroundings(node))
        return next((one for one in around if (one.start_byte, one.end_byte) == loop.span), None)

    def fresh(self, wanted: str) -> str:
        """Return a name that the source does not use: `wanted` if that is free."""
        name = wanted
        while name in self.words:
            name += "x"  # an additional underscore could create a name reserved for compilers
        return name

    def is_signed(self, node: Node) -> bool | None:
        """Return whether a 32-bit integer expression is signed; None for other or unknown types.

        A number without suffix is signed; next to another operand it takes that operand's signedness.
        """
        if self.is_number(node):
            return True
        match node.type:
            case "identifier":
                written = self.types.get(text_of(node), "")
            case "parenthesized_expression" if node.named_child_count == 1:
                return self.is_signed(stripped(node))
            case "field_expression" if text_of(field(node, "argument")) in _BUILT_IN:
                written = "unsigned"
            case "number_literal" if text_of(node)[:-1].isdigit() and text_of(node)[-1] in "uU":
                written = "unsigned"
            case "subscript_expression":
                written = self.element(node)
            case "binary_expression":
                sides = filter(None, (field(node, "left"), field(node, "right")))
                signs = {self.is_signed(side) for side in sides if not self.is_number(side)}
                return signs.pop() if len(signs) == 1 else (None if signs else True)
            case _:
                written = ""
        return written not in UNSIGNED if INTEGER_BITS.get(written) == 32 else None

    def element(self, subscript: Node) -> str:
        """Return the element type of an indexed pointer; empty if unknown."""
        written = self.types.get(text_of(field(subscript, "argument")), "")
        return written.removesuffix("*") if written.endswith("*") else ""

    def is_number(self, node: Node) -> bool:
        """Return whether an expression is an integer literal, or the file's name for one."""
        text = text_of(node)
        return text.isdigit() if node.type == "number_literal" else node.type == "identifier" and text in self.numbers

    def require_value(self, node: Node, what: str) -> None:
        """Raise Otherwise if evaluating an expression may have side effects; `what` begins the sentence."""
        for one in descend(node):
            where = f"{what}: line {self.line(one)}"
            if one.type in _EFFECTS or is_broken(one):
                raise Otherwise(f"{where} does more than compute a value")
            if one.type == "call_expression":
                called = field(one, "function")
                is_template = called is not None and called.type == "template_function"
                name = text_of(called)
                if (name.split("<")[0] if is_template else name) not in PURE_CALLS:
                    raise Otherwise(f"{where} calls {name}, of which it is not known that it only computes")
            if one.type in ("identifier", "type_identifier") and text_of(one) in self.macros:
                raise Otherwise(f"{where} holds the macro {text_of(one)}")


def subject_of(task: Task) -> Subject:
    """Read the task's kernel. Refused if the source is unreadable or the kernel is missing or damaged."""
    unit = parse(task.source)
    kernel = unit.kernel(task.kernel)
    if kernel.damaged:
        raise Refused("parse", f"line {kernel.damaged[0]} of the kernel is not understood")
    text = read(task.source)
    macros = macros_of(text)
    root = tree_of(code_alone(text, macros))
    body = root.descendant_for_byte_range(*kernel.body)
    if body is None or (body.start_byte, body.end_byte) != kernel.body:
        raise Refused("parse", "the kernel's body is not understood as one block")
    types: dict[str, str] = {}
    parameters = [(one.name, one.type.removeprefix("const ")) for one in kernel.parameters]
    for name, written in (*parameters, *_declared(body)):
        types[name] = "" if name in types else written
    outside = (node for node in root.children if node.type == "declaration")
    constants = {name: written for node in outside for name, written in _declared(node)}
    numbers = {name: number for name, each in macros.items() if (number := _number(each)) is not None}
    defined = (token.text for each in macros.values() for macro in each for token in macro.body)
    known = {name: written for name, written in {**constants, **types}.items() if written}
    others = frozenset(macros) - set(numbers)
    words = frozenset({*(token.text for token in text.tokens), *defined, *macros})
    return Subject(task, unit, kernel, body, known, others, numbers, text.tokens, text.directives, words)


def names(node: Node, name: str) -> list[Node]:
    """Find every position in `node` at which `name` is a variable."""
    return [one for one in descend(node) if one.type == "identifier" and text_of(one) == name]


def replaced(source: bytes, changes: list[tuple[int, int, str]]) -> bytes:
    """Replace the bytes `start` to `end` of each change in a source; changes do not overlap."""
    for start, end, text in sorted(changes, reverse=True):
        source = source[:start] + text.encode() + source[end:]
    return source


def place_of(loop: Loop) -> dict[str, int | str]:
    """Name a loop among the parameters of a candidate."""
    return {"loop": loop.identifier, "line": loop.line}


def indent(source: bytes, offset: int) -> str:
    """Return the white space before `offset` if nothing else precedes it on its line."""
    before = source[source.rfind(b"\n", 0, offset) + 1 : offset]
    return "" if before.strip() else before.decode()


def _number(definitions: Sequence[Macro]) -> int | None:
    """Return the integer that a macro stands for, if all its definitions agree."""
    bodies = {"".join(token.text for token in one.body) for one in definitions if one.parameters is None}
    body = bodies.pop() if len(bodies) == 1 and all(one.parameters is None for one in definitions) else ""
    return int(body) if body.isascii() and body.isdigit() and len(body) < 10 else None


def _declared(top: Node) -> Iterator[tuple[str, str]]:
    """Yield every variable declared in `top` with its type; the type is empty unless it is a plain value or pointer."""
    for node in descend(top):
        if node.type != "declaration":
            continue
        written = " ".join(text_of(child) for child in node.children if child.type in _TYPE_NODES)
        specifiers = [child for child in node.children if child.type in ("type_qualifier", "storage_class_specifier")]
        plain = all(text_of(child) in ("const", "constexpr", "static") for child in specifiers)
        for declarator, target, _ in declarators(node):
            named = next((one for one in descend(target or declarator) if one.type == "identifier"), None)
            if named is None or target is None:
                continue
            star = target.type == "pointer_declarator" and field(target, "declarator") == named
            yield text_of(named), f"{written}{'*' if star else ''}" if plain and (star or target == named) else ""
