"""Parse mangled C++ symbols: the position in the text, and types.

The grammar is the Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling). `demangling` parses
names, template arguments and expressions, which refer to types and vice versa.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeAlias

#: Position of the name in the text of a pointer to a function or an array.
HOLE: Final = "\0"
BUILTIN: Final = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...",
}  # fmt: skip
_LONG_BUILTIN: Final = {
    "Da": "auto", "Dc": "decltype(auto)", "Dn": "decltype(nullptr)", "Di": "char32_t", "Ds": "char16_t",
    "Du": "char8_t", "Dh": "half", "Dd": "decimal64", "De": "decimal128", "Df": "decimal32",
}  # fmt: skip
QUALIFIERS: Final = {"r": " restrict", "V": " volatile", "K": " const"}
_DIGITS: Final = re.compile(r"[0-9]+")
#: Deeper nesting than any compiler produces means a damaged symbol.
_DEEPEST: Final = 200

Argument: TypeAlias = str | list[str]


class UnknownMangling(Exception):
    """The symbol is damaged or uses a construct that this parser does not support."""


class TypeReader(ABC):
    """One pass over one symbol; each method parses one production at `position` and returns its text."""

    def __init__(self, symbol: str) -> None:
        self.text = symbol
        self.position = 2
        self.substitutions: list[Argument] = []
        self.arguments: list[Argument] = []
        self.pack_index: int | None = None
        self.pack_length: int | None = None
        self.depth = 0
        self.lambda_depth = 0

    def take(self, expected: str) -> bool:
        """Consume `expected` if it comes next, and return whether it did."""
        if self.text.startswith(expected, self.position):
            self.position += len(expected)
            return True
        return False

    def require(self, expected: str) -> None:
        """Consume `expected`, which must come next."""
        if not self.take(expected):
            raise UnknownMangling

    def peek(self, length: int = 1) -> str:
        """Return the next characters without consuming them."""
        return self.text[self.position : self.position + length]

    def number(self) -> int:
        """A decimal number."""
        found = _DIGITS.match(self.text, self.position)
        if found is None:
            raise UnknownMangling
        self.position = found.end()
        return int(found.group())

    def sequence_id(self, digits: str) -> int:
        """A sequence number: `_` is 0, `0_` is 1 and so on, in the base given by the number of digits."""
        if self.take("_"):
            return 0
        value = 0
        while not self.take("_"):
            value = value * len(digits) + digits.find(self.text[self.position])
            if self.text[self.position] not in digits:
                raise UnknownMangling
            self.position += 1
        return value + 1

    def remembered(self, text: str) -> str:
        """Record the text so that a later substitution can refer to it."""
        self.substitutions.append(text)
        return text

    def with_arguments(self, text: str) -> str:
        """Append the template arguments that follow, if any."""
        return text + self.template_arguments() if self.peek() == "I" else text

    def until_end(self, read: Callable[[], str]) -> list[str]:
        """Call `read` repeatedly up to the end marker."""
        parts = []
        while not self.take("E"):
            parts.append(read())
        return parts

    def qualifiers(self) -> str:
        """`const`, `volatile` and `restrict`, in the order in which they are printed after a type."""
        written = ""
        while self.peek() in QUALIFIERS:
            written = QUALIFIERS[self.peek()] + written
            self.position += 1
        return written

    @abstractmethod
    def name(self) -> tuple[str, bool, str]:
        """A name, whether it ends in template arguments, and the qualifiers of a member function's name."""

    @abstractmethod
    def unqualified_name(self) -> str:
        """A plain name, an operator, a lambda or an unnamed type, with its ABI tags."""

    @abstractmethod
    def template_parameter(self) -> Argument:
        """The argument denoted by a template parameter."""

    @abstractmethod
    def template_arguments(self) -> str:
        """Arguments in angle brackets."""

    @abstractmethod
    def expression(self) -> str:
        """An expression."""

    def types(self) -> list[str]:
        """A type, or all types denoted by a pack expansion."""
        if not self.take("Dp"):
            return [self.type()]
        start, known = self.position, len(self.substitutions)
        outer, self.pack_length, self.pack_index = (self.pack_length, self.pack_index), None, 0
        try:
            first = self.type()
        except IndexError:
            if self.pack_length != 0:
                raise
            # An empty pack: the pattern is parsed only for its length.
            first, self.pack_index = "", None
            self.position = start
            del self.substitutions[known:]
            self.type()
        length = 1 if self.pack_length is None else self.pack_length
        end, learned = self.position, self.substitutions[known:]
        expanded = [first][:length]
        for index in range(1, length):
            self.position, self.pack_index = start, index
            del self.substitutions[known:]
            expanded.append(self.type())
        self.position = end
        self.substitutions[known:] = learned
        self.pack_length, self.pack_index = outer
        return expanded

    def type(self) -> str:
        """A type; for a function or an array it contains a placeholder for its name."""
        builtin = BUILTIN.get(self.text[self.position])
        if builtin is not None:
            self.position += 1
            return builtin
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnknownMangling
        reader = _TYPE_READERS.get(self.peek(2)) or _TYPE_READERS.get(self.peek())
        if reader is not None:
            text = reader(self)
        elif self.peek(2) in _LONG_BUILTIN:
            text = _LONG_BUILTIN[self.peek(2)]
            self.position += 2
        else:
            text = self.class_type()
        self.depth -= 1
        return text

    def class_type(self) -> str:
        """A class or an enumeration."""
        for keyword in ("Ts", "Tu", "Te"):
            self.take(keyword)
        known = len(self.substitutions)
        repeated = self.peek() == "S" and self.peek(2) != "St"
        name, has_arguments, _ = self.name()
        if not repeated or has_arguments or len(self.substitutions) > known:
            self.substitutions.append(name)
        return name

    def parameter_type(self) -> str:
        """A template parameter as a type, or as a template with arguments."""
        value = self.template_parameter()
        self.substitutions.append(value)
        text = single(value, self.pack_index)
        return self.remembered(self.with_arguments(text)) if self.peek() == "I" else text

    def qualified_type(self) -> str:
        """A type with `const`, `volatile` or `restrict`."""
        qualifiers, text = self.qualifiers(), self.type()
        inside = text.endswith(f"{HOLE})")
        return self.remembered(text.replace(HOLE, qualifiers + HOLE) if inside else text + qualifiers)

    def referring_type(self) -> str:
        """A pointer or a reference."""
        sign = {"P": "*", "R": "&", "O": "&&"}[self.peek()]
        self.position += 1
        target = self.type()
        if sign != "*" and target.endswith("&"):
            return self.remembered(target if sign == "&&" else target.rstrip("&") + "&")
        return self.remembered(_declared(target, sign))

    def member_pointer(self) -> str:
        """A pointer to a member of a class."""
        self.require("M")
        owner = plain(self.type())
        target = self.type()
        sign = f"{owner}::*"
        return self.remembered(_declared(target, sign) if HOLE in target else f"{target} {sign}")

    def function_type(self) -> str:
        """A function's type."""
        while self.take("Do"):
            pass
        self.require("F")
        self.take("Y")
        returned = self.type()
        parameters = self.parameters()
        reference = " &" if self.take("R") else " &&" if self.take("O") else ""
        self.require("E")
        return self.remembered(_followed(returned, f"({parameters}){reference}"))

    def array_type(self) -> str:
        """An array's type."""
        self.require("A")
        length = ""
        if self.peek().isdecimal():
            length = str(self.number())
        elif self.peek() != "_":
            length = self.expression()
        self.require("_")
        return self.remembered(_followed(self.type(), f"[{length}]"))

    def vector_type(self) -> str:
        """A vector type of the compiler."""
        self.require("Dv")
        length = str(self.number()) if self.peek().isdecimal() else self.expression()
        self.require("_")
        return self.remembered(f"{self.type()} __vector({length})")

    def floating_type(self) -> str:
        """`DF16_` and similar, and `DF16b`, which is bfloat16."""
        self.require("DF")
        bits = self.number()
        if self.take("b"):
            return "__bf16"
        if self.take("x"):
            return f"_Float{bits}x"
        self.require("_")
        return f"_Float{bits}"

    def vendor_type(self) -> str:
        """A vendor-specific type."""
        self.require("u")
        return self.remembered(self.with_arguments(self.unqualified_name()))

    def vendor_qualified_type(self) -> str:
        """A type with a vendor-specific qualifier, such as an address space."""
        self.require("U")
        qualifier = self.with_arguments(self.unqualified_name())
        return self.remembered(f"{self.type()} {qualifier}")

    def declared_type(self) -> str:
        """`decltype` of an expression."""
        self.position += 2
        text = f"decltype ({self.expression()})"
        self.require("E")
        return self.remembered(text)

    def parameters(self) -> str:
        """Types up to the end of a function's parameter list, separated by commas."""
        parts: list[str] = []
        while self.position < len(self.text) and self.peek() not in "E.":
            if self.peek() in "RO" and self.peek(2)[1:] == "E":
                break
            parts.extend(self.types())
        return "" if parts == ["void"] else ", ".join(parts).replace(HOLE, "")


def single(value: Argument, index: int | None = None) -> str:
    """The text of one argument: for a pack, the element being expanded, or all of it."""
    if isinstance(value, str):
        return value
    return ", ".join(value) if index is None else value[index]


def plain(text: str) -> str:
    """A type without a placeholder for a name."""
    return text.replace(HOLE, "")


def _followed(text: str, suffix: str) -> str:
    """A type with text after the placeholder for its name: function parameters, or an array's length."""
    return text.replace(HOLE, HOLE + suffix) if HOLE in text else f"{text} {HOLE}{suffix}"


def _declared(target: str, sign: str) -> str:
    """A pointer or reference to `target`; one to a function or an array needs parentheses."""
    if HOLE not in target:
        return target + sign
    before, after = target.split(HOLE, 1)
    if before.endswith(("*", "&")):
        return f"{before}{sign}{HOLE}{after}"
    return f"{before}({sign}{HOLE}){' ' if after.startswith('[') else ''}{after}"


_TYPE_READERS: Final[dict[str, Callable[[TypeReader], str]]] = {
    "K": TypeReader.qualified_type,
    "V": TypeReader.qualified_type,
    "r": TypeReader.qualified_type,
    "P": TypeReader.referring_type,
    "R": TypeReader.referring_type,
    "O": TypeReader.referring_type,
    "M": TypeReader.member_pointer,
    "F": TypeReader.function_type,
    "Do": TypeReader.function_type,
    "A": TypeReader.array_type,
    "Dv": TypeReader.vector_type,
    "DF": TypeReader.floating_type,
    "u": TypeReader.vendor_type,
    "U": TypeReader.vendor_qualified_type,
    "Dt": TypeReader.declared_type,
    "DT": TypeReader.declared_type,
    "T": TypeReader.parameter_type,
    "Ts": TypeReader.class_type,
    "Tu": TypeReader.class_type,
    "Te": TypeReader.class_type,
}
