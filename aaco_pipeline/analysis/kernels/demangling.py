"""Demangle C++ kernel symbols into readable names, including the expressions inside them.

`mangled_types` reads types and tracks the position in the text.
"""

import re
from collections.abc import Callable
from typing import Final

from aaco_pipeline.analysis.kernels.mangled_types import (
    BUILTIN,
    HOLE,
    Argument,
    TypeReader,
    UnknownMangling,
    plain,
    single,
)

_LITERAL_SUFFIX: Final = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_SIMPLE_LITERAL: Final = re.compile(r"L([ijlmxy])(n?[0-9]+)E")
UNARY: Final = {
    "ps": "+", "ng": "-", "ad": "&", "de": "*", "co": "~", "nt": "!", "pp": "++", "mm": "--",
}  # fmt: skip
BINARY: Final = {
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "aS": "=", "pL": "+=",
    "mI": "-=", "mL": "*=", "dV": "/=", "rM": "%=", "aN": "&=", "oR": "|=", "eO": "^=", "ls": "<<", "rs": ">>",
    "lS": "<<=", "rS": ">>=", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ss": "<=>",
    "aa": "&&", "oo": "||", "cm": ",", "pm": "->*", "pt": "->",
}  # fmt: skip


_STANDARD: Final = {
    "t": "std", "a": "std::allocator", "b": "std::basic_string", "s": "std::string", "i": "std::istream",
    "o": "std::ostream", "d": "std::iostream",
}  # fmt: skip
_OPERATOR: Final = {
    **UNARY, **BINARY, "cl": "()", "ix": "[]", "qu": "?", "nw": " new", "na": " new[]", "dl": " delete",
    "da": " delete[]",
}  # fmt: skip
_SPECIAL: Final = {"V": "vtable for ", "T": "VTT for ", "I": "typeinfo for ", "S": "typeinfo name for "}


def demangled(symbol: str) -> str:
    """Return the C++ name of a mangled symbol, or the symbol itself if it is not mangled or not understood."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        return _Reader(symbol).whole()
    except (UnknownMangling, IndexError, RecursionError):
        return symbol


class _Reader(TypeReader):
    """One pass over one symbol; each method parses one production at `position` and returns its text."""

    def literal(self) -> str:
        """A literal: a number, a truth value, an enumerator by number, or the address of a function."""
        simple = _SIMPLE_LITERAL.match(self.text, self.position)
        if simple is not None:
            self.position = simple.end()
            kind, value = simple.groups()
            return f"{value.replace('n', '-')}{_LITERAL_SUFFIX[kind]}"
        self.require("L")
        if self.take("_Z") or self.take("Z"):
            outer = self.arguments
            text = self.encoding()
            self.arguments = outer
            self.require("E")
            return text
        kind = self.peek()
        named = plain(self.type())
        end = self.text.index("E", self.position) if "E" in self.text[self.position :] else -1
        if end < 0:
            raise UnknownMangling
        value = self.text[self.position : end].replace("n", "-", 1)
        self.position = end + 1
        if kind == "b" and value in {"0", "1"}:
            return "true" if value == "1" else "false"
        return f"({named})[{value}]" if kind in {"f", "d"} else f"({named}){value}"

    def expression(self) -> str:
        """An expression in a template argument or `decltype`; only forms that occur in kernel names."""
        code = self.peek(2)
        reader = _EXPRESSION_READERS.get(code) or _EXPRESSION_READERS.get(code[:1])
        if reader is not None:
            return reader(self)
        if code in UNARY or code in BINARY:
            return self.operation()
        if code[:1].isdecimal() or code[:1] == "N":
            return self.name()[0]
        raise UnknownMangling

    def operation(self) -> str:
        """An operator with its operands."""
        code = self.peek(2)
        self.position += 2
        if code in BINARY:
            return f"({self.expression()}){BINARY[code]}({self.expression()})"
        self.take("_")
        operand = self.expression()
        return f"{UNARY[code]}{operand}" if code == "ad" else f"{UNARY[code]}({operand})"

    def value_of_parameter(self) -> str:
        """A template parameter in an expression."""
        return single(self.template_parameter(), self.pack_index)

    def property_of_type(self) -> str:
        """`sizeof` or `alignof` of a type."""
        named = "sizeof" if self.take("st") else "alignof"
        self.take("at")
        return f"{named} ({plain(self.type())})"

    def property_of_value(self) -> str:
        """`sizeof`, `alignof` or `noexcept` of an expression."""
        named = {"sz": "sizeof", "az": "alignof", "nx": "noexcept"}[self.peek(2)]
        self.position += 2
        return f"{named} ({self.expression()})"

    def pack_size(self) -> str:
        """The number of arguments of a pack."""
        self.require("sZ")
        value = self.template_parameter()
        return str(len(value) if isinstance(value, list) else 1)

    def conversion(self) -> str:
        """A value converted to another type by any kind of cast."""
        self.position += 2
        target = plain(self.type())
        return f"({target})({self.expressions()})" if self.take("_") else f"({target})({self.expression()})"

    def call(self) -> str:
        """A function call."""
        self.require("cl")
        return f"{self.expression()}({self.expressions()})"

    def choice(self) -> str:
        """A conditional expression."""
        self.require("qu")
        return f"({self.expression()})?({self.expression()}) : ({self.expression()})"

    def expressions(self) -> str:
        """Expressions up to their end marker."""
        return ", ".join(self.until_end(self.expression))

    def function_parameter(self) -> str:
        """A function parameter, inside the function's own declaration."""
        if self.take("fL"):
            self.number()
        else:
            self.require("f")
        self.require("p")
        self.qualifiers()
        return f"{{parm#{self.sequence_id('0123456789') + 1}}}"

    def scoped_expression(self) -> str:
        """A member of a type that depends on template parameters."""
        self.require("sr")
        owner = plain(self.type())
        return f"{owner}::{self.with_arguments(self.unqualified_name())}"

    def whole(self) -> str:
        """The complete symbol; any text after it, such as a compiler's clone suffix, must begin with a dot."""
        name = self.encoding()
        if self.position < len(self.text) and self.text[self.position] != ".":
            raise UnknownMangling
        return name.replace(HOLE, "")

    def encoding(self) -> str:
        """A function with its parameters, a variable, or a compiler-generated table."""
        if self.take("T"):
            kind = self.text[self.position]
            self.position += 1
            if kind not in _SPECIAL:
                raise UnknownMangling
            return _SPECIAL[kind] + self.type()
        if self.take("GV"):
            return "guard variable for " + self.name()[0]
        name, has_arguments, qualifiers = self.name()
        if self.position >= len(self.text) or self.peek() in "E.":
            return name
        returned = self.type() if has_arguments else ""
        parameters = self.parameters()
        suffix = f"({parameters}){qualifiers}"
        if HOLE in returned:
            return returned.replace(HOLE, name + suffix)
        return f"{returned} {name}{suffix}" if returned else name + suffix

    def name(self) -> tuple[str, bool, str]:
        """A name, whether it ends in template arguments, and the qualifiers of a member function's name."""
        if self.take("N"):
            return self.nested_name()
        if self.take("Z"):
            return self.local_name()
        if self.peek() == "S" and self.peek(2) != "St":
            name = self.substitution()
        else:
            name = self.unqualified_name()
            if self.peek() == "I":
                self.substitutions.append(name)
        if self.peek() == "I":
            return name + self.template_arguments(), True, ""
        return name, False, ""

    def local_name(self) -> tuple[str, bool, str]:
        """A name local to a function."""
        outer = self.encoding()
        self.require("E")
        if self.take("s"):
            self.discriminator()
            return f"{outer}::string literal", False, ""
        if self.take("d"):
            self.sequence_id("0123456789")
        inner, has_arguments, qualifiers = self.name()
        self.discriminator()
        return f"{outer}::{inner}", has_arguments, qualifiers

    def discriminator(self) -> None:
        """The discriminator of equal local names, which is not printed."""
        if self.take("__"):
            self.number()
            self.require("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdecimal():
            self.position += 2

    def nested_name(self) -> tuple[str, bool, str]:
        """A qualified name, parsed after its `N`."""
        qualifiers = self.qualifiers()
        qualifiers += " &" if self.take("R") else " &&" if self.take("O") else ""
        name, has_arguments, returns = "", False, True
        while not self.take("E"):
            following = self.text[self.position]
            if following.isdecimal():
                part, returns = self.source_name() + self.tags(), True
                name, has_arguments = f"{name}::{part}" if name else part, False
            elif following == "I":
                name, has_arguments = name + self.template_arguments(), True
            elif following == "S" and self.peek(2) != "St":
                name, has_arguments = self.substitution(), False
                continue
            elif following == "T":
                name, has_arguments = single(self.template_parameter()), False
            elif self.take("M"):
                continue
            else:
                if self.take("St"):
                    name = "std"
                    if self.peek() == "E":
                        continue
                # Constructors, destructors and conversions encode no return type.
                returns = following not in {"C", "D"} and self.peek(2) != "cv"
                part = self.member_name(name)
                name, has_arguments = f"{name}::{part}" if name else part, False
            if self.peek() != "E":
                self.substitutions.append(name)
        if not name:
            raise UnknownMangling
        return name, has_arguments and returns, qualifiers

    def member_name(self, owner: str) -> str:
        """One part of a qualified name; a constructor or destructor is named after its class."""
        following = self.peek(2)
        if following[:1] == "C" and following[1:] in "12345I":
            self.position += 2
            if following[1] == "I":
                self.position += 1
                self.type()
            return _last_part(owner) + self.tags()
        if following in {"D0", "D1", "D2", "D4", "D5"}:
            self.position += 2
            return f"~{_last_part(owner)}{self.tags()}"
        return self.unqualified_name()

    def unqualified_name(self) -> str:
        """A plain name, an operator, a lambda or an unnamed type, with its ABI tags."""
        if self.text[self.position].isdecimal():
            return self.source_name() + self.tags()
        if self.take("St"):
            return f"std::{self.unqualified_name()}"
        self.take("L")
        if self.peek().isdecimal():
            name = self.source_name()
        elif self.take("Ul"):
            name = self.lambda_name()
        elif self.take("Ut"):
            name = f"{{unnamed type#{self.sequence_id('0123456789') + 1}}}"
        elif self.take("DC"):
            name = f"[{', '.join(self.until_end(self.unqualified_name))}]"
        else:
            name = self.operator_name()
        return name + self.tags()

    def source_name(self) -> str:
        """An identifier, parsed after its length."""
        length = self.number()
        name = self.peek(length)
        if not name or len(name) < length:
            raise UnknownMangling
        self.position += length
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name

    def lambda_name(self) -> str:
        """A lambda, identified by its parameters and its index in the function."""
        while self.peek(2) in {"Ty", "Tn", "Tt", "Tp"}:
            self.template_parameter_declaration()
        self.lambda_depth += 1
        parameters = self.parameters()
        self.lambda_depth -= 1
        self.require("E")
        return f"{{lambda({parameters})#{self.sequence_id('0123456789') + 1}}}"

    def operator_name(self) -> str:
        """An overloaded operator, a conversion or a literal operator."""
        code = self.peek(2)
        self.position += 2
        if code == "cv":
            return f"operator {plain(self.type())}"
        if code == "li":
            return f'operator"" {self.unqualified_name()}'
        if code not in _OPERATOR:
            raise UnknownMangling
        return f"operator{_OPERATOR[code]}"

    def tags(self) -> str:
        """ABI tags after a name."""
        written = ""
        while self.peek() == "B":
            self.position += 1
            written += f"[abi:{self.unqualified_name()}]"
        return written

    def substitution(self) -> str:
        """A back-reference, or an abbreviated standard library name."""
        return single(self.substituted(), self.pack_index)

    def substituted(self) -> Argument:
        """An earlier component; a list if it is a pack of template arguments."""
        self.require("S")
        following = self.peek()
        if following in _STANDARD:
            self.position += 1
            return _STANDARD[following] + self.tags()
        index = self.sequence_id("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return self.substitutions[index]

    def template_parameter(self) -> Argument:
        """The template argument denoted by `T_`, `T0_`, ...; `auto` inside a generic lambda."""
        self.require("T")
        if self.take("L"):
            self.sequence_id("0123456789")
        index = self.sequence_id("0123456789")
        if self.lambda_depth:
            return f"auto:{index + 1}"
        value = self.arguments[index]
        if isinstance(value, list):
            self.pack_length = len(value)
            return value if self.pack_index is None else value[self.pack_index]
        return value

    def template_parameter_declaration(self) -> None:
        """The declaration of a template parameter, printed for a lambda or an argument that needs it."""
        self.require("T")
        kind = self.peek()
        self.position += 1
        if kind == "n":
            self.type()
        elif kind == "p":
            self.template_parameter_declaration()
        elif kind == "t":
            while not self.take("E"):
                self.template_parameter_declaration()

    def template_arguments(self) -> str:
        """Arguments in angle brackets; later template parameters refer to them."""
        self.require("I")
        outer_depth, self.lambda_depth = self.lambda_depth, 0
        own: list[Argument] = []
        while not self.take("E"):
            self.argument_declarations(own)
            own.append(self.template_argument())
        self.arguments, self.lambda_depth = own, outer_depth
        flat = [part for one in own for part in (one if isinstance(one, list) else [one])]
        inner = ", ".join(flat).replace(HOLE, "")
        return f"<{inner} >" if inner.endswith(">") else f"<{inner}>"

    def argument_declarations(self, earlier: list[Argument]) -> None:
        """Declarations printed before an argument; they may refer to earlier arguments."""
        while self.text[self.position] == "T" and self.peek(2) in {"Tn", "Ty", "Tt", "Tp"}:
            outer, self.arguments = self.arguments, earlier
            self.template_parameter_declaration()
            self.arguments = outer

    def template_argument(self) -> Argument:
        """One argument: a type, a literal, an expression or a pack of arguments."""
        following = self.text[self.position]
        if following == "L":
            return self.literal()
        builtin = BUILTIN.get(following)
        if builtin is not None:
            self.position += 1
            return builtin
        if self.take("J"):
            pack: list[str] = []
            while not self.take("E"):
                one = self.template_argument()
                pack.extend(one if isinstance(one, list) else [one])
            return pack
        if self.take("X"):
            value = self.expression()
            self.require("E")
            return value
        found = self.types()
        return found[0] if len(found) == 1 else found


_EXPRESSION_READERS: Final[dict[str, Callable[[_Reader], str]]] = {
    "L": _Reader.literal,
    "T": _Reader.value_of_parameter,
    "fp": _Reader.function_parameter,
    "fL": _Reader.function_parameter,
    "st": _Reader.property_of_type,
    "at": _Reader.property_of_type,
    "sz": _Reader.property_of_value,
    "az": _Reader.property_of_value,
    "nx": _Reader.property_of_value,
    "sZ": _Reader.pack_size,
    "cv": _Reader.conversion,
    "sc": _Reader.conversion,
    "dc": _Reader.conversion,
    "rc": _Reader.conversion,
    "cc": _Reader.conversion,
    "cl": _Reader.call,
    "qu": _Reader.choice,
    "sr": _Reader.scoped_expression,
}


def _last_part(name: str) -> str:
    """The last component of a qualified name, without its template arguments."""
    depth = 0
    end = len(name)
    for place in range(len(name) - 1, -1, -1):
        depth += (name[place] == ">") - (name[place] == "<")
        if depth == 0 and name[place] == "<":
            end = place
        if depth == 0 and name[place] == ":":
            return name[place + 1 : end]
    return name[:end]
