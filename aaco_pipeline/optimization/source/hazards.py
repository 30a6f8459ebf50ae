"""Hazards that forbid unrolling code, traced through macros and functions of the same file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, get_args

from aaco_pipeline.optimization.source.facts import Facts
from aaco_pipeline.optimization.source.tokens import Macro, Memo, Token, closing, is_specifier, words_in
from aaco_pipeline.optimization.source.tree import (
    DECLARING,
    Node,
    Part,
    descend,
    field,
    is_broken,
    plain_text,
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
_MARKS: Final = words("= += -= *= /= %= <<= >>= &= |= ^= ++ --")
_AROUND_A_VALUE: Final = ("parenthesized_expression", "subscript_expression", "field_expression")
#: Mutating operators are detected as tokens.
_WRITTEN: Final = frozenset(f"operator{mark}" for mark in _MARKS)


def changing_calls(facts: Facts, part: Part, expression: Node) -> Iterator[str]:
    """Yield the functions, macros and operators of this file that may implicitly change a value."""
    called = words_in(tokens_of(facts.text, part, expression))
    yield from sorted(name for name in called if _changes(facts, name, set()))
    kinds = {node.type for node in descend(expression)}
    for operator in facts.operators.running(called, facts.kernel):
        if operator.lifetime:
            continue
        name = plain_text(field(operator.part.node, "declarator"))
        unused = ("operator()" in name and "call_expression" not in kinds) or (
            "operator[]" in name and "subscript_expression" not in kinds
        )
        written = any(name.startswith(f"{each}(") for each in _WRITTEN)
        if not unused and not written and _body_changes(facts, operator.part, set()):
            yield "an operator"


def _changes(facts: Facts, name: str, seen: set[str]) -> bool:
    """Return whether a macro or function of this file, or anything it uses, changes more than its own variables."""
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
    if any(node.type in CHANGES and _root(node) not in own for node in descend(part.node)):
        return True
    return any(_changes(facts, word, seen) for word in words_in(tokens_of(facts.text, part, part.node)))


def _own_names(node: Node) -> Iterator[str]:
    """Yield a node's declarations of plain values: no pointer, reference, member or static."""
    if node.type not in DECLARING or node.type in ("field_declaration", "function_definition", "type_definition"):
        return
    if "static" in {text_of(child) for child in node.children}:
        return
    for each in node.children_by_field_name("declarator"):
        target: Node | None = each
        while target is not None and target.type in ("init_declarator", "array_declarator"):
            target = field(target, "declarator")
        if target is not None and target.type == "identifier":
            yield text_of(target)


def _root(change: Node) -> str | None:
    """Return the name of the changed value; None if it is accessed through a pointer or a call."""
    target = field(change, "argument") or field(change, "left")
    while target is not None and target.type in _AROUND_A_VALUE:
        if "->" in [child.type for child in target.children]:
            return None
        is_grouped = target.type == "parenthesized_expression"
        target = next(iter(target.named_children), None) if is_grouped else field(target, "argument")
    return text_of(target) if target is not None and target.type == "identifier" else None


HazardKind = Literal[
    "damaged", "barrier", "cross_lane", "atomic", "volatile", "dynamic_lds", "assembly", "exit", "header", "unknown",
    "pragma",
]  # fmt: skip
#: Priority when several apply.
ORDER: Final[tuple[HazardKind, ...]] = get_args(HazardKind)
_WHAT: Final = {"barrier": "a barrier", "cross_lane": "an operation across lanes", "atomic": "an atomic operation"}
MOST_DEPTH: Final = 24
_EXITS: Final = words("break continue return goto throw try catch co_await co_return co_yield")
_LOOPS: Final = frozenset(("for", "while", "do"))
_QUALIFIED: Final = ("qualified_identifier", "template_function", "field_expression")
_STANDARD: Final = words("numeric_limits infinity lowest epsilon quiet_NaN min max array size_t ptrdiff_t")
_MEMORY: Final = words("__shared__ __constant__ __managed__ __grid_constant__")


@dataclass(frozen=True)
class Hazard:
    """A construct that forbids unrolling: its kind, its byte offset in the source, and a description."""

    kind: HazardKind
    offset: int
    text: str


class Hazards:
    """Finds hazards in the code of one source. Each function and macro is examined once, up to `MOST_DEPTH` deep."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[str, tuple[Hazard, ...]] = {}
        self._words: Memo[str, set[str]] = Memo(self._led_to)
        self._depth = 0

    def of(self, part: Part, node: Node) -> tuple[Hazard, ...]:
        """Find the hazards of a piece of code, in source order. Exits from a loop are not included."""
        found = self._of_code(part, node, frozenset())
        return tuple(sorted(found, key=lambda hazard: (hazard.offset, ORDER.index(hazard.kind))))

    def implicit(self, part: Part, node: Node) -> tuple[Hazard, ...]:
        """Find the hazards of this file's operators, conversions and lifetimes that code may run unnamed."""
        if not self._facts.operators:
            return ()
        facts, run = self._facts, dict[int, Part]()
        reached, new = set[str](), [(part, node)]
        while new:
            for each, top in new:
                reached |= self._reached(self._named(tokens_of(facts.text, each, top)))
            running = [each.part for each in facts.operators.running(reached, facts.kernel)]
            new = [(each, each.node) for each in running if each.node.id not in run]
            run |= {each.node.id: each for each, _ in new}
        found = (each for name, body in run.items() for each in self._in_function(f"operator {name}", [body]))
        return tuple(self._through("an operator", each.offset, each) for each in found)

    def _named(self, tokens: Sequence[Token]) -> set[str]:
        """Return the words of tokens, without members that no class of this file has."""
        members = self._facts.care.members | self._facts.functions.keys()
        befores = ("", *(token.text for token in tokens))
        words = [(token.text, before) for token, before in zip(tokens, befores, strict=False) if token.kind == "word"]
        return {word for word, before in words if before not in (".", "->") or word in members}

    def _reached(self, words: set[str]) -> set[str]:
        """Return words with those of all macros and functions of this file that they lead to."""
        reached, waiting = set(words), set(words)
        while waiting:
            found = self._words[waiting.pop()]
            waiting |= found - reached
            reached |= found
        return reached

    def _led_to(self, name: str) -> set[str]:
        facts = self._facts
        found = {token.text for macro in facts.macros.get(name, ()) for token in macro.body}
        for part in facts.functions.get(name, ()):
            found |= self._named(tokens_of(facts.text, part, part.node))
        return found

    def _of_nodes(self, part: Part, top: Node) -> Iterator[Hazard]:
        for node in descend(top):
            offset = part.offset(node)
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
                yield from self._of_call(field(node, "function"), offset)

    def _of_directives(self, part: Part, node: Node) -> Iterator[Hazard]:
        """Find pragmas in a piece of code that do more than control unrolling."""
        start, end = part.offset(node), node.end_byte + part.shift
        for directive in self._facts.text.directives:
            words = [token.text for token in directive.tokens[:2]]
            unrolls = words[:1] in (["unroll"], ["nounroll"]) or words in (["GCC", "unroll"], ["clang", "loop"])
            if start <= directive.start < end and directive.name == "pragma" and not unrolls:
                yield Hazard("pragma", directive.start, f"the pragma {' '.join(words)}")

    def _of_call(self, function: Node | None, offset: int) -> Iterator[Hazard]:
        while function is not None and function.type in _QUALIFIED:
            inner = field(function, "field" if function.type == "field_expression" else "name")
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
            # Calling an object runs an operator of the file, and those are all examined.
            return name in facts.objects
        return name in PURE_CALLS or is_type(name) or name in facts.types or name in _STANDARD

    def _of_tokens(self, tokens: Sequence[Token], parameters: frozenset[str]) -> Iterator[Hazard]:
        attribute = 0
        texts = [*(token.text for token in tokens), "", ""]
        for index, token in enumerate(tokens):
            before, after, argument = texts[index - 1], texts[index + 1], texts[index + 2]
            if token.text == "[" and after == "[":
                # Double brackets contain an attribute, which is not code.
                attribute = max(attribute, closing(tokens, index))
            if token.kind != "word" or token.text in parameters or index < attribute:
                continue
            if token.text != "_Pragma":
                yield from self._of_word(token, before, after)
            elif "unroll" not in argument:
                yield Hazard("pragma", token.start, f"the pragma {argument}")

    def _of_word(self, token: Token, before: str, after: str) -> Iterator[Hazard]:
        word, facts = token.text, self._facts
        if word in ASSEMBLY:
            yield Hazard("assembly", token.start, "inline assembly")
        elif word in ("volatile", "__volatile__"):
            # For `asm volatile`, the assembly is reported.
            if before not in ASSEMBLY:
                yield Hazard("volatile", token.start, "a volatile access")
        elif word in KEYWORDS or word in SPECIFIERS or word in _MEMORY:
            return
        elif word in facts.macros:
            yield from (self._through(f"the macro {word}", token.start, found) for found in self._in_macro(word))
        elif word in facts.functions:
            found = self._in_function(word, facts.functions[word])
            yield from (self._through(word, token.start, each) for each in found)
        elif (kind := hazard_of(word)) is not None and (word not in facts.declared or after == "("):
            yield Hazard(kind, token.start, f"{word} is {_WHAT[kind]}")
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

    def _in_function(self, name: str, bodies: Sequence[Part]) -> tuple[Hazard, ...]:
        found = (each for body in bodies for each in self._of_code(body, body.node, frozenset((name,))))
        return self._looked_into(name, found)

    def _in_macro(self, name: str) -> tuple[Hazard, ...]:
        found = (each for macro in self._facts.macros[name] for each in self._of_macro(macro))
        return self._looked_into(f"#define {name}", found)

    def _of_code(self, part: Part, node: Node, parameters: frozenset[str]) -> Iterator[Hazard]:
        yield from self._of_nodes(part, node)
        yield from self._of_tokens(tokens_of(self._facts.text, part, node), parameters)
        yield from self._of_directives(part, node)

    def _looked_into(self, name: str, found: Iterator[Hazard]) -> tuple[Hazard, ...]:
        """Keep the first hazard of each kind, unless calls and macros are nested too deeply to follow."""
        if name in self._known:
            return self._known[name]
        # A recursive call adds nothing to the function's own hazards.
        self._known[name] = ()
        if self._depth >= MOST_DEPTH:
            too_deep = f"calls or macros deeper than the {MOST_DEPTH} that are followed"
            self._known[name] = (Hazard("unknown", 0, too_deep),)
            return self._known[name]
        self._depth += 1
        kinds: dict[HazardKind, Hazard] = {}
        for each in found:
            kinds.setdefault(each.kind, each)
        self._depth -= 1
        self._known[name] = tuple(kinds.values())
        return self._known[name]

    def _of_macro(self, macro: Macro) -> Iterator[Hazard]:
        if is_specifier(macro.name, self._facts.macros):
            return
        words = [token.text for token in macro.body]
        offset = macro.body[0].start if macro.body else 0
        for word in body_of_once(words):
            if word in _EXITS:
                yield Hazard("exit", offset, f"`{word}`")
            elif word in _LOOPS:
                yield Hazard("unknown", offset, "a loop")
            elif word in ("##", "#"):
                yield Hazard("unknown", offset, "names that are pasted together")
        for token, after in pairwise(macro.body):
            called = token.kind == "word" and after.text == "(" and token.text not in KEYWORDS
            if called and token.text not in (macro.parameters or ()) and not self._is_known_call(token.text):
                what = f"a call of {token.text}, which is not known to be free of barriers"
                yield Hazard("unknown", token.start, what)
        known = frozenset((*(macro.parameters or ()), "__VA_ARGS__", macro.name))
        yield from self._of_tokens(macro.body, known | self._declared_by(macro))

    def _declared_by(self, macro: Macro) -> frozenset[str]:
        """Return the variables that a macro declares: in braces, a type before the name and an end or value after."""
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


def body_of_once(words: list[str]) -> list[str]:
    """Return the words inside `do { … } while (0)`, by which a macro makes one statement; else all words."""
    return words[1:-4] if words[:1] == ["do"] and words[-4:] == ["while", "(", "0", ")"] else words


def _in_a_body(node: Node) -> bool:
    return node.parent is not None and node.parent.type == "compound_statement"
