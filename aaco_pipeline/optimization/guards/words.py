"""One kernel's tokens, names and tree, and the words that a rewritten kernel may use.

The baseline's own words are allowed in their original role, and in addition a closed list.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source import Reading
from aaco_pipeline.optimization.source.kernels import Kernel
from aaco_pipeline.optimization.source.tokens import Directive, Token, words_in
from aaco_pipeline.optimization.source.tree import Node, Part, declared, descend, text_of
from aaco_pipeline.optimization.source.vocabulary import ASSEMBLY, KEYWORDS, SPECIFIERS, VECTOR_TYPES, hazard_of, words


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
        """The complete source."""
        return self.reading.text.source

    def line(self, token: Token) -> int:
        """The line of a token."""
        return self.reading.text.line(token.start)

    def refused(self, node: Node, what: str) -> Refused:
        """Build the refusal (guard `calls`) of a node of the body's tree, with its line and its text."""
        line = self.reading.text.line(self.part.offset(node))
        return Refused("calls", f"line {line}: {what}: `{' '.join(text_of(node).split())[:80]}`")

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node of the body's tree."""
        return tuple(descend(self.part.node))

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of head and body."""
        return frozenset(words_in((*self.head, *self.body)))

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the kernel's parameters."""
        return frozenset(parameter.name for parameter in self.kernel.parameters)

    @cached_property
    def locals(self) -> frozenset[str]:
        """The names that the body declares."""
        return frozenset(text_of(name) for node in self.nodes for name in declared_by(node))

    @cached_property
    def statements(self) -> tuple[tuple[str, ...], ...]:
        """The body's words and marks between semicolons and braces, in order."""
        pieces: list[list[str]] = [[]]
        for token in self.body:
            if token.text in (";", "{", "}"):
                pieces.append([])
            else:
                pieces[-1].append(token.text)
        return tuple(map(tuple, pieces))

    @cached_property
    def outer_names(self) -> frozenset[str]:
        """The names that the file declares outside functions: a local variable of the same name would hide them."""
        facts = self.reading.facts
        names = {text_of(each) for node in _at_file_level(self.reading.outside.node) for each in declared_by(node)}
        return frozenset(names) | facts.types | frozenset(self.reading.macros) | frozenset(_functions(self.reading))


def subject_of(reading: Reading, name: str) -> Subject:
    """Select the kernel of that name in a parsed source. Refused, guard `kernel`, like `Unit.kernel`."""
    kernel = reading.unit.kernel(name)
    index = reading.unit.kernels.index(kernel)
    directives = tuple(each for each in reading.text.directives if kernel.span.start <= each.start < kernel.span.end)
    head = reading.text.within(kernel.span.start, kernel.body.start)
    return Subject(reading, kernel, reading.bodies[index], head, reading.text.within(*kernel.body), directives)


def declared_by(node: Node) -> Iterator[Node]:
    """Yield the names that a statement, a loop's header or a condition declares."""
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
    """Yield the functions that the file defines or declares outside kernels, and its kernels."""
    for name, parts in reading.facts.functions.items():
        if any(part.shift == reading.outside.shift for part in parts):
            yield name
    yield from (kernel.name for kernel in reading.unit.kernels)


#: Mathematics, and conversions between representations, that depend only on their arguments and are as exact as the
#: plain operators; nothing approximate, no assumptions, no access to a clock or another lane.
_MATHEMATICS: Final = words("""
    fma fabs fmin fmax sqrt rsqrt cbrt exp exp2 exp10 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2
    sinh cosh tanh asinh acosh atanh erf erfc floor ceil trunc round rint nearbyint copysign fmod hypot ldexp
""")
CALLS: Final = (
    frozenset(_MATHEMATICS)
    | frozenset(f"{name}f" for name in _MATHEMATICS)
    | frozenset(f"make_{name}" for name in VECTOR_TYPES)
    | frozenset(f"__builtin_{name}{suffix}" for name in words("fma fabs fmin fmax sqrt") for suffix in ("", "f"))
    | frozenset(
        words(
            "min max abs isnan isinf isfinite __ldg __popc __popcll __clz __clzll __ffs __ffsll __brev __brevll"
            " __mul24 __umul24 __mulhi __umulhi __builtin_popcount __builtin_clz __builtin_ctz __builtin_expect"
        )
    )
    | frozenset(f"__{name}_rn" for name in words("fadd fsub fmul fmaf fdiv fsqrt dadd dsub dmul fma ddiv dsqrt"))
)
_STATEMENTS: Final = words("if else for while do switch case default break continue return")
_TYPES: Final = words(
    "bool int long signed unsigned float double size_t uint int32_t uint32_t int64_t uint64_t ptrdiff_t"
)
_VALUES: Final = words("true false const constexpr auto sizeof static_cast reinterpret_cast __shared__ std")
_BUILTINS: Final = words("threadIdx blockIdx blockDim gridDim warpSize INFINITY")
_PLAIN: Final = _STATEMENTS | _TYPES | _VALUES | _BUILTINS | VECTOR_TYPES
_MEMBERS: Final = frozenset("xyzw")
#: Types of fewer bits than `float` and `int`; a kernel without them may not introduce them.
_NARROW: Final = re.compile(
    r"half[1-4]?|__half\w*|_*(?:fp16|bf16|float16|bfloat16|hip_bfloat16|nv_bfloat16|fp8|hip_fp8)\w*|_Float16"
    r"|u?(?:char|short)[1-4]?|u?int(?:8|16)_t|\w*2(?:half|bfloat16)\w*"
)
_WIDE: Final = words("size_t long int64_t uint64_t ptrdiff_t")
#: Words whose statements must stay the baseline's own, in order and number: dropping a volatile access, adding a static
#: variable or reading a clock twice is more than a rewrite.
_KEPT_NAMES: Final = re.compile(
    r"(?:v?f?s?n?)printf|puts|putchar|exit|_exit|_Exit|quick_exit|abort|__?trap|__builtin_trap|assert|__assert\w*"
    r"|malloc|calloc|realloc|free|aligned_alloc|alloca|__builtin_alloca\w*|clock|clock64|wall_clock\w*|__clock\w*|time"
    r"|__builtin_readcyclecounter|__builtin_amdgcn_s_(?:memtime|memrealtime|getreg|sleep|sethalt|endpgm)\w*|__volatile__"
    r"|globaltimer\w*|memcpy|memset|memmove|__device__|__managed__|__constant__|__asm__|__asm|_Pragma|__attribute__"
)
_KEPT_KEYWORDS: Final = KEYWORDS - _STATEMENTS - _TYPES - _VALUES - {"char", "short"}
_NUMBER: Final = re.compile(
    r"(?:0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)(?:[uU](?:ll?|LL?)?|(?:ll?|LL?)[uU]?)?"
    r"|(?:[0-9][0-9']*\.[0-9']*|\.[0-9][0-9']*|[0-9][0-9']*(?=[eE]))(?:[eE][+-]?[0-9]+)?[fF]?"
    r"|0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+[fF]?"
)
_REAL: Final = re.compile(r"(?!0[xX])[0-9.']*(?:\.|[eE])[0-9.eE+'-]*")
_RESERVED: Final = re.compile(r"_[_A-Z].*|.*__.*|(?i:.*aaco.*)|.*\$.*")
#: Bessel functions, whose short names are common variable names.
_SHORT: Final = words("y0 y1 j0 j1")
_COUNTED: Final = {"barrier": "barrier", "atomic": "atomic operation"}


def check_words(old: Subject, new: Subject, *, may_restrict: bool) -> None:
    """Refuse, guard `calls` or `macros`, the first word, number or string that is not in any list."""
    _check_kept(old, new)
    _check_declared(old, new)
    used = _Used(old)
    for before, token, after in _between(new.body):
        if token.kind == "word":
            _check_word(used, new, token, before, after, may_restrict=may_restrict)
        elif token.kind == "number":
            if not _NUMBER.fullmatch(token.text):
                raise _refused(new, token, "is no plain number")
        elif token.kind in ("string", "character"):
            if token.text not in used.literals:
                raise _refused(new, token, "is a string or character that the baseline's kernel has not")
        elif token.text in ("<<<", "->*", ".*", "##", "#") and token.text not in used.marks:
            raise _refused(new, token, "is not for a kernel's body")
    _check_precision(old, new)
    _check_width(old, new)
    _check_counts(old, new)
    _check_shared_memory(old, new)


def _between(tokens: Sequence[Token]) -> Iterator[tuple[str, Token, str]]:
    """Yield each token with the texts before and after it."""
    texts = ["", *(token.text for token in tokens), ""]
    return zip(texts, tokens, texts[2:], strict=False)


class _Used:
    """The words of the baseline's kernel by their use: in calls, as members, or plain."""

    def __init__(self, old: Subject) -> None:
        self.subject = old
        self.calls: set[str] = set()
        self.members: set[str] = set()
        # Types and constants of the head count, but neither its specifiers nor the kernel itself may appear in a body.
        self.plain = words_in(old.head) - SPECIFIERS - {old.kernel.name, *filter(_kept, old.words)}
        self.marks = {token.text for token in old.body if token.kind == "mark"}
        self.literals = {token.text for token in old.body if token.kind in ("string", "character")}
        for before, token, after in _between(old.body):
            if token.kind == "word":
                self.role(before, after).add(token.text)

    def role(self, before: str, after: str) -> set[str]:
        """Return the set to which a word between two others belongs."""
        if before in (".", "->"):
            return self.members
        return self.calls if after == "(" else self.plain


def _check_word(used: _Used, new: Subject, token: Token, before: str, after: str, *, may_restrict: bool) -> None:
    word = token.text
    if word in used.role(before, after) or _kept(word):
        return
    if word in new.reading.macros:
        raise Refused("macros", f"line {new.line(token)}: the macro {word} is not used by the baseline's kernel")
    if before in (".", "->"):
        if word not in _MEMBERS or after == "(":
            raise _refused(new, token, "is a member that the baseline's kernel does not use")
    elif word == "__restrict__":
        if not may_restrict:
            raise _refused(new, token, "is not declared by the proposer")
    elif after == "(" and word not in _STATEMENTS | _TYPES | _VALUES:
        _check_call(used, new, token)
    elif word not in _PLAIN | new.locals | used.plain | new.parameters:
        of_a_template = word in ("min", "max") and before == "::" and after == "<"
        if not of_a_template:
            raise _refused(new, token, "is neither the baseline's, nor declared in the kernel, nor on the list")


def _check_call(used: _Used, new: Subject, token: Token) -> None:
    word = token.text
    if word in new.locals and word not in used.subject.outer_names:
        # `float sum(0.0f)`: `shapes` checks that it is a declaration and not a call.
        return
    if word in VECTOR_TYPES or (word in CALLS and word not in new.outer_names):
        return
    raise _refused(new, token, "is called, which the baseline's kernel does not do and which is not on the list")


def _kept(word: str) -> bool:
    return word in _KEPT_KEYWORDS or word in ASSEMBLY or _KEPT_NAMES.fullmatch(word) is not None


def _check_kept(old: Subject, new: Subject) -> None:
    was, now = ([piece for piece in each.statements if any(map(_kept, piece))] for each in (old, new))
    if was == now:
        return
    differing = [*(piece for piece in now if piece not in was), *(piece for piece in was if piece not in now), *was]
    changed = differing[0] if differing else ()
    word = next((each for each in changed if _kept(each)), "")
    raise Refused("calls", f"`{word}` is added, moved or taken away: `{' '.join(changed)[:80]}`")


def _check_declared(old: Subject, new: Subject) -> None:
    """Refuse a local name that hides a name of the file, a parameter or a function, or that compilers reserve."""
    meanings = new.outer_names | new.parameters | ((CALLS | _BUILTINS | VECTOR_TYPES) - _SHORT)
    for name in sorted(new.locals - old.locals):
        if name in meanings or hazard_of(name) or _kept(name) or _NARROW.fullmatch(name):
            raise Refused("calls", f"the local name {name} hides another meaning of it; name the variable otherwise")
        if _RESERVED.fullmatch(name):
            raise Refused("calls", f"the local name {name} is reserved; name the variable otherwise")
    for parameter in new.parameters & new.locals - old.locals:
        raise Refused("calls", f"the parameter {parameter} is declared again")


def _check_precision(old: Subject, new: Subject) -> None:
    for word in sorted(new.words - old.words):
        if _NARROW.fullmatch(word):
            raise Refused("calls", f"{word} is a narrower type than the baseline's kernel has")
    if not any(word.startswith("double") for word in old.words) and not _reals(old, single=False):
        return
    was, now = (Counter(token.text for token in each.body)["double"] for each in (old, new))
    if now < was:
        raise Refused("calls", f"`double` stands {now} times in the kernel, {was} times in the baseline's")
    floats = {word for word in new.words - old.words if word.startswith("float")}
    if floats and "float" not in old.words:
        raise Refused("calls", f"{sorted(floats)[0]} stands in a kernel of `double`")
    converted = sorted(_made_float(new) - _made_float(old))
    if converted:
        raise Refused("calls", f"{converted[0]} is made `float`, which the baseline's kernel does not do")
    narrower = sorted(_declared_as(new, "float") & _declared_as(old, "double"))
    if narrower:
        raise Refused("calls", f"{narrower[0]} is `float`, in the baseline's kernel `double`")
    lowered = _reals(old, single=False) & _reals(new, single=True) - _reals(old, single=True)
    if lowered:
        raise Refused("calls", f"the number {sorted(lowered)[0]} is `float`, in the baseline's kernel `double`")


def _check_width(old: Subject, new: Subject) -> None:
    """Refuse narrower offsets: a test of 32-bit overflow would have to fill gibibytes."""
    if old.words & _WIDE and not new.words & _WIDE:
        raise Refused("calls", f"nothing has 64 bits; the baseline's kernel has {min(old.words & _WIDE)}")
    wide, narrow = (
        {name for kind in kinds for name in _declared_as(each, kind)}
        for each, kinds in ((old, _WIDE), (new, ("int", "unsigned", "uint", "int32_t", "uint32_t")))
    )
    if narrowed := sorted(narrow & wide):
        raise Refused("calls", f"{narrowed[0]} has 32 bits, in the baseline's kernel 64")


def _made_float(subject: Subject) -> set[str]:
    """Return the first word of the operand of each conversion to `float`."""
    found: set[str] = set()
    texts = [token.text for token in subject.body]
    for index, text in enumerate(texts):
        if text == "float" and texts[index + 1] in (")", ">", "("):
            found.add(next((word for word in texts[index + 1 :] if word not in (")", ">", "(")), ""))
    return found


def _reals(subject: Subject, *, single: bool) -> set[float]:
    """Return the floating-point numbers with the suffix `f`, or those without."""
    found: set[float] = set()
    for token in subject.body:
        plain = token.text.rstrip("fF") if single else token.text
        if token.kind == "number" and single == (plain != token.text) and _REAL.fullmatch(plain):
            found.add(float(plain.replace("'", "")))
    return found


def _declared_as(subject: Subject, kind: str) -> set[str]:
    """Return the names between a type's own word and the end of their declaration."""
    found: set[str] = set()
    for piece in subject.statements:
        for index, word in enumerate(piece[:-1]):
            if word == kind and re.fullmatch(r"[A-Za-z_]\w*", piece[index + 1]):
                found |= set(_names(piece[index + 1 :]))
    return found


def _names(piece: Sequence[str]) -> Iterator[str]:
    depth = 0
    for index, word in enumerate(piece):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
        if depth < 0:
            return
        if depth == 0 and (index == 0 or piece[index - 1] == ","):
            yield word


def _check_counts(old: Subject, new: Subject) -> None:
    """Refuse fewer barriers and atomic operations: a correct output may be a coincidence."""
    for kind, name in _COUNTED.items():
        was, now = (sum(hazard_of(one.text) == kind for one in each.body if one.kind == "word") for each in (old, new))
        if now < was:
            raise Refused("calls", f"the kernel has {now} words of a {name}, the baseline's {was}")


def _check_shared_memory(old: Subject, new: Subject) -> None:
    """Refuse new local data share without a barrier: it is correct only while work-items run one after another."""
    first = next((token for token in new.body if token.text == "__shared__"), None)
    if first is None or any(token.text == "__shared__" for token in old.body):
        return
    if not any(hazard_of(word) == "barrier" for word in words_in(new.body)):
        raise _refused(new, first, "is new, and no barrier of the kernel orders what work-items do there")


def _refused(new: Subject, token: Token, what: str) -> Refused:
    return Refused("calls", f"line {new.line(token)}: {token.text[:40]} {what}")
