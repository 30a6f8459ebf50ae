"""How the expressions inside a mangled C++ symbol are read: literals, operators, calls, and what depends on parameters.

Types are `mangled_types`, names and template arguments `demangling`.
"""

import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from aaco_pipeline.analysis.kernels.mangled_types import TypeReader, UnknownMangling, plain, single

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


class ExpressionReader(TypeReader):
    """A reader of types that also reads the expressions which template arguments and `decltype` hold."""

    @abstractmethod
    def encoding(self) -> str:
        """A function with its parameters, a variable, or a compiler's table."""

    def literal(self) -> str:
        """A constant: a number, a truth value, an enumerator by number, or the address of a function."""
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
        """An expression a template argument or `decltype` holds; only what kernels' names use."""
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
        """A value of another type, however it was converted."""
        self.position += 2
        target = plain(self.type())
        return f"({target})({self.expressions()})" if self.take("_") else f"({target})({self.expression()})"

    def call(self) -> str:
        """A function called with arguments."""
        self.require("cl")
        return f"{self.expression()}({self.expressions()})"

    def choice(self) -> str:
        """One of two values by a condition."""
        self.require("qu")
        return f"({self.expression()})?({self.expression()}) : ({self.expression()})"

    def expressions(self) -> str:
        """Expressions up to their end mark."""
        return ", ".join(self.until_end(self.expression))

    def function_parameter(self) -> str:
        """A parameter of the function, inside its own declaration."""
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


_EXPRESSION_READERS: Final[dict[str, Callable[[ExpressionReader], str]]] = {
    "L": ExpressionReader.literal,
    "T": ExpressionReader.value_of_parameter,
    "fp": ExpressionReader.function_parameter,
    "fL": ExpressionReader.function_parameter,
    "st": ExpressionReader.property_of_type,
    "at": ExpressionReader.property_of_type,
    "sz": ExpressionReader.property_of_value,
    "az": ExpressionReader.property_of_value,
    "nx": ExpressionReader.property_of_value,
    "sZ": ExpressionReader.pack_size,
    "cv": ExpressionReader.conversion,
    "sc": ExpressionReader.conversion,
    "dc": ExpressionReader.conversion,
    "rc": ExpressionReader.conversion,
    "cc": ExpressionReader.conversion,
    "cl": ExpressionReader.call,
    "qu": ExpressionReader.choice,
    "sr": ExpressionReader.scoped_expression,
}
