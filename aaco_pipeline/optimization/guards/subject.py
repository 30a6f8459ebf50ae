"""One kernel of a source as the guard of text sees it: its tokens, names and tree."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from aaco_pipeline.optimization.source.grammar import Node, declared, descend, text_of
from aaco_pipeline.optimization.source.parsing import Reading
from aaco_pipeline.optimization.source.parts import Part
from aaco_pipeline.optimization.source.tokens import Directive, Token
from aaco_pipeline.optimization.source.unit import Kernel


@dataclass(frozen=True)
class Subject:
    """A kernel with the tokens of its head and of its body, and the directives between them."""

    reading: Reading
    kernel: Kernel
    part: Part
    head: tuple[Token, ...]
    body: tuple[Token, ...]
    directives: tuple[Directive, ...]

    @property
    def source(self) -> bytes:
        """The whole source."""
        return self.reading.text.source

    def line(self, token: Token) -> int:
        """The line of a token."""
        return self.reading.text.line(token.start)

    def line_of(self, node: Node) -> int:
        """The line of a node of the body's tree."""
        return self.reading.text.line(node.start_byte + self.part.shift)

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of head and body."""
        return frozenset(token.text for token in (*self.head, *self.body) if token.kind == "word")

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the kernel's parameters."""
        return frozenset(parameter.name for parameter in self.kernel.parameters)

    @cached_property
    def locals(self) -> frozenset[str]:
        """The names that the body declares."""
        return frozenset(text_of(name) for node in descend(self.part.node) for name in declared_by(node))

    @cached_property
    def statements(self) -> tuple[tuple[str, ...], ...]:
        """The body's words and marks between semicolons and braces, in order."""
        pieces: list[tuple[str, ...]] = []
        piece: list[str] = []
        for token in self.body:
            if token.text in (";", "{", "}"):
                pieces.append(tuple(piece))
                piece = []
            else:
                piece.append(token.text)
        return (*pieces, tuple(piece))

    @cached_property
    def outer_names(self) -> frozenset[str]:
        """The names that the file declares outside functions: a local one that is the same would hide it."""
        facts = self.reading.facts
        names = {text_of(each) for node in _at_file_level(self.reading.outside.node) for each in declared_by(node)}
        return frozenset(names) | facts.types | frozenset(self.reading.macros) | frozenset(_functions(self.reading))


def subject_of(reading: Reading, name: str) -> Subject:
    """The kernel of that name in a reading. Refused, guard `kernel`, as `Unit.kernel` is."""
    kernel = reading.unit.kernel(name)
    index = reading.unit.kernels.index(kernel)
    directives = tuple(each for each in reading.text.directives if kernel.span.start <= each.start < kernel.span.end)
    return Subject(
        reading,
        kernel,
        reading.bodies[index],
        reading.text.within(kernel.span.start, kernel.body.start),
        reading.text.within(kernel.body.start, kernel.body.end),
        directives,
    )


def declared_by(node: Node) -> Iterator[Node]:
    """The names that a statement, a loop's header or a condition declares."""
    if node.type in ("declaration", "for_range_loop", "parameter_declaration", "field_declaration"):
        for each in node.children_by_field_name("declarator"):
            yield from declared(each)


def _at_file_level(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if node.type not in ("function_definition", "parameter_list", "compound_statement"):
            waiting.extend(node.children)


def _functions(reading: Reading) -> Iterator[str]:
    """The functions that the file defines or declares outside kernels, and its kernels."""
    for name, parts in reading.facts.functions.items():
        if any(part.shift == reading.outside.shift for part in parts):
            yield name
    yield from (kernel.name for kernel in reading.unit.kernels)
