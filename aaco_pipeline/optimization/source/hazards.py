"""What in a piece of code forbids unrolling it, followed through macros and functions of the same file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from aaco_pipeline.optimization.source.facts import Facts
from aaco_pipeline.optimization.source.tokens import Macro, Token, closing, is_specifier
from aaco_pipeline.optimization.source.tree import (
    DECLARING,
    Node,
    Part,
    declared,
    descend,
    is_broken,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import (
    ASSEMBLY,
    BUILTIN_NAMES,
    KEYWORDS,
    PURE_CALLS,
    SPECIFIERS,
    hazard_of,
    is_type,
    words,
)

CHANGES: Final = ("assignment_expression", "update_expression")
_MARKS: Final = frozenset(words("= += -= *= /= %= <<= >>= &= |= ^= ++ --"))
#: Operators that are written as a change are seen where they are written.
_WRITTEN: Final = frozenset(f"operator{mark}" for mark in _MARKS)


def changing_calls(facts: Facts, part: Part, expression: Node) -> Iterator[str]:
    """The functions, macros and operators of this file by which an expression may change a value unseen."""
    called = {token.text for token in tokens_of(facts.text, part, expression) if token.kind == "word"}
    yield from sorted(name for name in called if _changes(facts, name, set()))
    kinds = {node.type for node in descend(expression)}
    for operator in facts.operators.running(called, facts.kernel):
        if operator.lifetime:
            continue
        name = "".join(text_of(operator.part.node.child_by_field_name("declarator")).split())
        unused = ("operator()" in name and "call_expression" not in kinds) or (
            "operator[]" in name and "subscript_expression" not in kinds
        )
        written = any(name.startswith(f"{each}(") for each in _WRITTEN)
        if not unused and not written and _body_changes(facts, operator.part, set()):
            yield "an operator"


def _changes(facts: Facts, name: str, seen: set[str]) -> bool:
    """Whether a macro or function of this file, or what it uses, changes more than its own variables."""
    if name in seen:
        return False
    seen.add(name)
    for macro in facts.macros.get(name, ()):
        brought = {token.text for token in macro.body}
        if brought & _MARKS or any(_changes(facts, word, seen) for word in brought):
            return True
    return any(_body_changes(facts, part, seen) for part in facts.functions.get(name, ()))


def _body_changes(facts: Facts, part: Part, seen: set[str]) -> bool:
    own = {name for node in descend(part.node) for name in _own_names(node)}
    for node in descend(part.node):
        if node.type in CHANGES and _root(node) not in own:
            return True
    used = {token.text for token in tokens_of(facts.text, part, part.node) if token.kind == "word"}
    return any(_changes(facts, word, seen) for word in used)


def _own_names(node: Node) -> Iterator[str]:
    """What a node declares as a value of its own: no pointer, reference, member or static."""
    if node.type not in DECLARING or node.type in ("field_declaration", "function_definition", "type_definition"):
        return
    if "static" in {text_of(child) for child in node.children}:
        return
    for each in node.children_by_field_name("declarator"):
        target = each
        while target.type in ("init_declarator", "array_declarator"):
            inner = target.child_by_field_name("declarator")
            if inner is None:
                return
            target = inner
        if target.type == "identifier":
            yield from (text_of(name) for name in declared(target))


def _root(change: Node) -> str | None:
    """The name of the value that a change is made to; None where it is reached through a pointer or a call."""
    target = change.child_by_field_name("argument") or change.child_by_field_name("left")
    while target is not None and target.type in (
        "parenthesized_expression",
        "subscript_expression",
        "field_expression",
    ):
        if "->" in [child.type for child in target.children]:
            return None
        if target.type == "parenthesized_expression":
            target = target.named_children[0] if target.named_children else None
        else:
            target = target.child_by_field_name("argument")
    return text_of(target) if target is not None and target.type == "identifier" else None


HazardKind = Literal[
    "damaged",
    "barrier",
    "cross_lane",
    "atomic",
    "volatile",
    "dynamic_lds",
    "assembly",
    "exit",
    "header",
    "unknown",
    "pragma",
]
#: The order in which one of several is named.
ORDER: Final[tuple[HazardKind, ...]] = (
    "damaged",
    "barrier",
    "cross_lane",
    "atomic",
    "volatile",
    "dynamic_lds",
    "assembly",
    "exit",
    "header",
    "unknown",
    "pragma",
)
_SAID: Final[dict[str, HazardKind]] = {"barrier": "barrier", "cross_lane": "cross_lane", "atomic": "atomic"}
_WHAT: Final = {"barrier": "a barrier", "cross_lane": "an operation across lanes", "atomic": "an atomic operation"}
MOST_DEPTH: Final = 24
_EXITS: Final = frozenset(words("break continue return goto throw try catch co_await co_return co_yield"))
_LOOPS: Final = frozenset(("for", "while", "do"))
_STANDARD: Final = frozenset(words("numeric_limits infinity lowest epsilon quiet_NaN min max array size_t ptrdiff_t"))
_MEMORY: Final = frozenset(words("__shared__ __constant__ __managed__ __grid_constant__"))


@dataclass(frozen=True)
class Hazard:
    """Something that forbids unrolling: its kind, its byte in the source, and what it is, in words."""

    kind: HazardKind
    offset: int
    text: str


class Hazards:
    """Finds hazards in the code of one source. Functions and macros are each looked into once, `MOST_DEPTH` deep."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[str, tuple[Hazard, ...]] = {}
        self._macros: dict[str, tuple[Hazard, ...]] = {}
        self._words: dict[str, frozenset[str]] = {}
        self._depth = 0

    def of(self, part: Part, node: Node) -> tuple[Hazard, ...]:
        """The hazards of a piece of code, in the order of the source. What leaves a loop is not among them."""
        found = (
            *self._of_nodes(part, node),
            *self._of_tokens(tokens_of(self._facts.text, part, node), frozenset()),
            *self._of_directives(node.start_byte + part.shift, node.end_byte + part.shift),
        )
        return tuple(sorted(found, key=lambda hazard: (hazard.offset, ORDER.index(hazard.kind))))

    def implicit(self, part: Part, node: Node) -> tuple[Hazard, ...]:
        """The hazards of operators, conversions and lifetimes of this file that a piece of code may call unnamed."""
        if not self._facts.operators:
            return ()
        reached = self._reached(self._named(tokens_of(self._facts.text, part, node)))
        run: dict[int, Part] = {}
        while new := [
            each.part
            for each in self._facts.operators.running(reached, self._facts.kernel)
            if each.part.node.id not in run
        ]:
            for each in new:
                run[each.node.id] = each
                reached |= self._reached(self._named(tokens_of(self._facts.text, each, each.node)))
        return tuple(
            self._through("an operator", found.offset, found)
            for identity, each in run.items()
            for found in self._function(f"operator {identity}", [each])
        )

    def _named(self, tokens: Sequence[Token]) -> set[str]:
        """The words of tokens, without members that no class of this file has."""
        facts = self._facts
        return {
            token.text
            for token, before in zip(tokens, (None, *tokens), strict=False)
            if token.kind == "word"
            and (
                before is None
                or before.text not in (".", "->")
                or token.text in facts.care.members | facts.functions.keys()
            )
        }

    def _reached(self, words: set[str]) -> set[str]:
        """Words, and those of all macros and functions of this file that they lead to."""
        reached, waiting = set(words), set(words)
        while waiting:
            found = self._led_to(waiting.pop())
            waiting |= found - reached
            reached |= found
        return reached

    def _led_to(self, name: str) -> frozenset[str]:
        if name not in self._words:
            facts = self._facts
            found = {token.text for macro in facts.macros.get(name, ()) for token in macro.body}
            for part in facts.functions.get(name, ()):
                found |= self._named(tokens_of(facts.text, part, part.node))
            self._words[name] = frozenset(found)
        return self._words[name]

    def _of_nodes(self, part: Part, top: Node) -> Iterator[Hazard]:
        for node in descend(top):
            offset = node.start_byte + part.shift
            if is_broken(node):
                yield Hazard("damaged", offset, "the grammar does not understand this line")
            elif node.type == "function_definition" and node != top and _in_a_body(node):
                yield Hazard("damaged", offset, "a macro that stands for a statement is not understood")
            elif node.type in ("labeled_statement", "goto_statement"):
                yield Hazard("exit", offset, "a jump by goto")
            elif node.type in ("new_expression", "delete_expression"):
                yield Hazard("unknown", offset, "memory is allocated or freed")
            elif node.type == "kernel_call_syntax":
                yield Hazard("unknown", offset, "a kernel is launched")
            elif node.type == "call_expression":
                yield from self._of_call(node.child_by_field_name("function"), offset)

    def _of_directives(self, start: int, end: int) -> Iterator[Hazard]:
        """Pragmas in a stretch of the source that say more than how to unroll."""
        for directive in self._facts.text.directives:
            words = [token.text for token in directive.tokens[:2]]
            unrolls = words[:1] in (["unroll"], ["nounroll"]) or words in (["GCC", "unroll"], ["clang", "loop"])
            if start <= directive.start < end and directive.name == "pragma" and not unrolls:
                yield Hazard("pragma", directive.start, f"the pragma {' '.join(words)}")

    def _of_call(self, function: Node | None, offset: int) -> Iterator[Hazard]:
        while function is not None and function.type in (
            "qualified_identifier",
            "template_function",
            "field_expression",
        ):
            inner = function.child_by_field_name("field" if function.type == "field_expression" else "name")
            if inner is not None and inner.type in ("dependent_name", "template_method"):
                inner = next((each for each in descend(inner) if each.type in ("identifier", "field_identifier")), None)
            function = inner
        if function is None or function.type in ("lambda_expression", "primitive_type", "sized_type_specifier"):
            return
        if function.type not in ("identifier", "field_identifier", "type_identifier"):
            yield Hazard("unknown", offset, "a function is called through a value")
        elif text_of(function) in self._facts.virtual:
            yield Hazard("unknown", offset, f"{text_of(function)} is virtual, so what is called is not known")
        elif not self._is_known_call(text_of(function)):
            yield Hazard("unknown", offset, f"{text_of(function)} is called, which is not known to be free of barriers")

    def _is_known_call(self, name: str) -> bool:
        facts = self._facts
        if name in facts.macros or name in facts.functions or hazard_of(name) is not None:
            return True
        if name in facts.variables:
            # Of an object the file's own operator is called, and those are all looked into.
            return name in facts.objects
        return name in PURE_CALLS or is_type(name) or name in facts.types or name in _STANDARD

    def _of_tokens(self, tokens: Sequence[Token], parameters: frozenset[str]) -> Iterator[Hazard]:
        attribute = 0
        for index, token in enumerate(tokens):
            if token.text == "[" and tokens[index + 1 : index + 2] and tokens[index + 1].text == "[":
                # In brackets of two an attribute stands, which is no code.
                attribute = max(attribute, closing(tokens, index))
            if token.kind != "word" or token.text in parameters or index < attribute:
                continue
            before = tokens[index - 1].text if index else ""
            after = tokens[index + 1].text if index + 1 < len(tokens) else ""
            if token.text == "_Pragma":
                argument = tokens[index + 2].text if index + 2 < len(tokens) else ""
                if "unroll" not in argument:
                    yield Hazard("pragma", token.start, f"the pragma {argument}")
            else:
                yield from self._of_word(token, before, after)

    def _of_word(self, token: Token, before: str, after: str) -> Iterator[Hazard]:
        word, facts = token.text, self._facts
        if word in ASSEMBLY:
            yield Hazard("assembly", token.start, "inline assembly")
        elif word in ("volatile", "__volatile__"):
            # Of `asm volatile` the assembly is said.
            if before not in ASSEMBLY:
                yield Hazard("volatile", token.start, "a volatile access")
        elif word in KEYWORDS or word in SPECIFIERS or word in _MEMORY:
            return
        elif word in facts.macros:
            yield from (self._through(f"the macro {word}", token.start, found) for found in self._macro(word))
        elif word in facts.functions:
            found = self._function(word, facts.functions[word])
            yield from (self._through(word, token.start, each) for each in found)
        elif (kind := hazard_of(word)) is not None and (word not in facts.declared or after == "("):
            yield Hazard(_SAID[kind], token.start, f"{word} is {_WHAT[kind]}")
        else:
            member = before in (".", "->")
            if not member or word in facts.care.members:
                yield from self._of_memory(word, token.start)
            if not member and not self._is_known_name(word, after):
                yield Hazard("unknown", token.start, f"{word} is declared nowhere in this source")

    def _of_memory(self, word: str, offset: int) -> Iterator[Hazard]:
        facts = self._facts
        if word in facts.dynamic_lds:
            yield Hazard("dynamic_lds", offset, f"{word} is dynamic local data share")
        if word in facts.volatile:
            yield Hazard("volatile", offset, f"{word} is volatile")
        if word in facts.atomic:
            yield Hazard("atomic", offset, f"{word} is of a type whose every use is an atomic operation")

    def _is_known_name(self, word: str, after: str) -> bool:
        if word in self._facts.declared or word in BUILTIN_NAMES or word in _STANDARD or is_type(word):
            return True
        return word in PURE_CALLS and after in ("(", "<")

    def _function(self, name: str, bodies: Sequence[Part]) -> tuple[Hazard, ...]:
        if name not in self._functions:
            # A function that calls itself adds nothing to what its body has.
            self._functions[name] = ()
            self._functions[name] = self._looked_into(each for body in bodies for each in self._of_body(name, body))
        return self._functions[name]

    def _of_body(self, name: str, body: Part) -> Iterator[Hazard]:
        yield from self._of_nodes(body, body.node)
        yield from self._of_tokens(tokens_of(self._facts.text, body, body.node), frozenset((name,)))
        yield from self._of_directives(body.node.start_byte + body.shift, body.node.end_byte + body.shift)

    def _looked_into(self, found: Iterator[Hazard]) -> tuple[Hazard, ...]:
        """The first hazard of each kind, unless calls and macros go too deep to be followed."""
        if self._depth >= MOST_DEPTH:
            return (Hazard("unknown", 0, f"calls or macros deeper than the {MOST_DEPTH} that are followed"),)
        self._depth += 1
        kinds: dict[HazardKind, Hazard] = {}
        for each in found:
            kinds.setdefault(each.kind, each)
        self._depth -= 1
        return tuple(kinds.values())

    def _macro(self, name: str) -> tuple[Hazard, ...]:
        if name not in self._macros:
            self._macros[name] = ()
            self._macros[name] = self._looked_into(
                each for macro in self._facts.macros[name] for each in self._of_macro(macro)
            )
        return self._macros[name]

    def _of_macro(self, macro: Macro) -> Iterator[Hazard]:
        if is_specifier(macro.name, self._facts.macros):
            return
        words = [token.text for token in macro.body]
        offset = macro.body[0].start if macro.body else 0
        once = words[:1] == ["do"] and words[-4:] == ["while", "(", "0", ")"]
        inner = words[1:-4] if once else words
        for word in inner:
            if word in _EXITS:
                yield Hazard("exit", offset, f"`{word}`")
            elif word in _LOOPS:
                yield Hazard("unknown", offset, "a loop")
            elif word in ("##", "#"):
                yield Hazard("unknown", offset, "names that are pasted together")
        for token, after in pairwise(macro.body):
            called = token.kind == "word" and after.text == "(" and token.text not in KEYWORDS
            if called and token.text not in (macro.parameters or ()) and not self._is_known_call(token.text):
                yield Hazard(
                    "unknown", token.start, f"a call of {token.text}, which is not known to be free of barriers"
                )
        known = frozenset((*(macro.parameters or ()), "__VA_ARGS__", macro.name))
        yield from self._of_tokens(macro.body, known | self._declared_by(macro))

    def _declared_by(self, macro: Macro) -> frozenset[str]:
        """The variables that a macro declares itself: in braces, a type before the name and an end or value after."""
        types = self._facts.types | set(macro.parameters or ())
        names: set[str] = set()
        depth = 0
        for token, name, after in zip(macro.body, macro.body[1:], macro.body[2:], strict=False):
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            typed = token.kind == "word" and (token.text in types or is_type(token.text))
            if depth > 0 and typed and name.kind == "word" and after.text in ("=", ";", "[", ","):
                names.add(name.text)
        return frozenset(names - KEYWORDS)

    def _through(self, name: str, offset: int, found: Hazard) -> Hazard:
        line = self._facts.text.line(found.offset)
        return Hazard(found.kind, offset, f"{name} brings what stands in line {line}: {found.text}")


def _in_a_body(node: Node) -> bool:
    return node.parent is not None and node.parent.type == "compound_statement"
