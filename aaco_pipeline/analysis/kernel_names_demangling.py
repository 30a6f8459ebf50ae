"""Readable C++ names from mangled ones, for kernels whose capture kept the symbol of the code object.

Follows the mangling part of the Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling) as far as
kernels and the types they are built from use it, and writes names the way GCC's demangler does. A symbol that uses
anything else stays as it is.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

#: Where the name of a pointer to a function or an array goes inside the text of its type.
_HOLE: Final = "\0"
_BUILTIN: Final = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...",
}  # fmt: skip
_LONG_BUILTIN: Final = {
    "Da": "auto", "Dc": "decltype(auto)", "Dn": "decltype(nullptr)", "Di": "char32_t", "Ds": "char16_t",
    "Du": "char8_t", "Dh": "half", "Dd": "decimal64", "De": "decimal128", "Df": "decimal32",
}  # fmt: skip
_LITERAL_SUFFIX: Final = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_STANDARD: Final = {
    "t": "std", "a": "std::allocator", "b": "std::basic_string", "s": "std::string", "i": "std::istream",
    "o": "std::ostream", "d": "std::iostream",
}  # fmt: skip
_UNARY: Final = {
    "ps": "+", "ng": "-", "ad": "&", "de": "*", "co": "~", "nt": "!", "pp": "++", "mm": "--",
}  # fmt: skip
_BINARY: Final = {
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "aS": "=", "pL": "+=",
    "mI": "-=", "mL": "*=", "dV": "/=", "rM": "%=", "aN": "&=", "oR": "|=", "eO": "^=", "ls": "<<", "rs": ">>",
    "lS": "<<=", "rS": ">>=", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ss": "<=>",
    "aa": "&&", "oo": "||", "cm": ",", "pm": "->*", "pt": "->",
}  # fmt: skip
_OPERATOR: Final = {
    **_UNARY, **_BINARY, "cl": "()", "ix": "[]", "qu": "?", "nw": " new", "na": " new[]", "dl": " delete",
    "da": " delete[]",
}  # fmt: skip
_QUALIFIERS: Final = {"r": " restrict", "V": " volatile", "K": " const"}
_SPECIAL: Final = {"V": "vtable for ", "T": "VTT for ", "I": "typeinfo for ", "S": "typeinfo name for "}
#: Deeper nesting than any compiler writes means a damaged symbol.
_DEEPEST: Final = 200

_Argument: TypeAlias = str | list[str]


class _UnknownMangling(Exception):
    """The symbol uses something this reader does not know, or is damaged."""


def demangled(symbol: str) -> str:
    """The C++ name of one mangled symbol; the symbol itself where it is not mangled or not understood."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        return _Reader(symbol).whole()
    except (_UnknownMangling, IndexError, RecursionError):
        return symbol


class _Reader:
    """One pass over one symbol; every method reads one production at `position` and gives its text."""

    def __init__(self, symbol: str) -> None:
        self.text = symbol
        self.position = 2
        self.substitutions: list[_Argument] = []
        self.arguments: list[_Argument] = []
        self.pack_index: int | None = None
        self.pack_length: int | None = None
        self.depth = 0
        self.lambda_depth = 0

    def whole(self) -> str:
        """The whole symbol; text after it, such as a compiler's clone suffix, must begin with a dot."""
        name = self.encoding()
        if self.position < len(self.text) and self.text[self.position] != ".":
            raise _UnknownMangling
        return name.replace(_HOLE, "")

    def take(self, expected: str) -> bool:
        """Whether `expected` comes next; read past it if so."""
        if self.text.startswith(expected, self.position):
            self.position += len(expected)
            return True
        return False

    def require(self, expected: str) -> None:
        """Read past `expected`, which must come next."""
        if not self.take(expected):
            raise _UnknownMangling

    def peek(self, length: int = 1) -> str:
        """The next characters, not read past."""
        return self.text[self.position : self.position + length]

    def number(self) -> int:
        """A decimal number."""
        start = self.position
        while self.peek().isdecimal():
            self.position += 1
        if start == self.position:
            raise _UnknownMangling
        return int(self.text[start : self.position])

    def sequence_id(self, digits: str) -> int:
        """`_` is 0, `0_` is 1 and so on, in the base given by the number of digits."""
        if self.take("_"):
            return 0
        value = 0
        while not self.take("_"):
            value = value * len(digits) + digits.find(self.text[self.position])
            if self.text[self.position] not in digits:
                raise _UnknownMangling
            self.position += 1
        return value + 1

    def encoding(self) -> str:
        """A function with its parameters, a variable, or a compiler's table."""
        if self.take("T"):
            kind = self.text[self.position]
            self.position += 1
            if kind not in _SPECIAL:
                raise _UnknownMangling
            return _SPECIAL[kind] + self.type()
        if self.take("GV"):
            return "guard variable for " + self.name()[0]
        name, has_arguments, qualifiers = self.name()
        if self.position >= len(self.text) or self.peek() in "E.":
            return name
        returned = self.type() if has_arguments else ""
        parameters = self.parameters()
        suffix = f"({parameters}){qualifiers}"
        if _HOLE in returned:
            return returned.replace(_HOLE, name + suffix)
        return f"{returned} {name}{suffix}" if returned else name + suffix

    def parameters(self) -> str:
        """Types up to the end of a function's parameter list, separated by commas."""
        parts: list[str] = []
        while self.position < len(self.text) and self.peek() not in "E.":
            if self.peek() in "RO" and self.peek(2)[1:] == "E":
                break
            parts.extend(self.types())
        return "" if parts == ["void"] else ", ".join(parts).replace(_HOLE, "")

    def name(self) -> tuple[str, bool, str]:
        """A name, whether it ends in template arguments, and the qualifiers of the member function it names."""
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
        """A name inside a function."""
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
        """The number telling equal local names apart, which is not written."""
        if self.take("__"):
            self.number()
            self.require("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdecimal():
            self.position += 2

    def nested_name(self) -> tuple[str, bool, str]:
        """A qualified name, read after its `N`."""
        qualifiers = ""
        while self.peek() in _QUALIFIERS:
            qualifiers = _QUALIFIERS[self.peek()] + qualifiers
            self.position += 1
        qualifiers += " &" if self.take("R") else " &&" if self.take("O") else ""
        name, last, has_arguments = "", "", False
        while not self.take("E"):
            following = self.peek()
            if following == "I":
                name, has_arguments = name + self.template_arguments(), True
            elif following == "S" and self.peek(2) != "St":
                name, has_arguments = self.substitution(), False
                last = _last_part(name)
                continue
            elif following == "T":
                name, has_arguments = _single(self.template_parameter()), False
            elif self.take("M"):
                continue
            else:
                if self.take("St"):
                    name = "std"
                    if self.peek() == "E":
                        continue
                last = self.member_name(last)
                name, has_arguments = f"{name}::{last}" if name else last, False
            if self.peek() != "E":
                self.substitutions.append(name)
        return name, has_arguments, qualifiers

    def member_name(self, owner: str) -> str:
        """One part of a qualified name; a constructor or destructor is called as its class."""
        following = self.peek(2)
        if following[:1] == "C" and following[1:] in "12345I":
            self.position += 2
            if following[1] == "I":
                self.position += 1
                self.type()
            return owner + self.tags()
        if following in {"D0", "D1", "D2", "D4", "D5"}:
            self.position += 2
            return f"~{owner}{self.tags()}"
        return self.unqualified_name()

    def unqualified_name(self) -> str:
        """A plain name, an operator, a lambda or an unnamed type, with its ABI tags."""
        if self.take("St"):
            return f"std::{self.unqualified_name()}"
        self.take("L")
        if self.peek().isdecimal():
            length = self.number()
            name = self.peek(length)
            if len(name) < length:
                raise _UnknownMangling
            self.position += length
            name = "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name
        elif self.take("Ul"):
            name = self.lambda_name()
        elif self.take("Ut"):
            name = f"{{unnamed type#{self.sequence_id('0123456789') + 1}}}"
        elif self.take("DC"):
            bound = []
            while not self.take("E"):
                bound.append(self.unqualified_name())
            name = f"[{', '.join(bound)}]"
        else:
            name = self.operator_name()
        return name + self.tags()

    def lambda_name(self) -> str:
        """A lambda, told apart by its parameters and its number in the function."""
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
            return f"operator {_plain(self.type())}"
        if code == "li":
            return f'operator"" {self.unqualified_name()}'
        if code not in _OPERATOR:
            raise _UnknownMangling
        return f"operator{_OPERATOR[code]}"

    def tags(self) -> str:
        """ABI tags after a name."""
        written = ""
        while self.take("B"):
            written += f"[abi:{self.unqualified_name()}]"
        return written

    def substitution(self) -> str:
        """Something read before, or a standard library name."""
        return _single(self.substituted(), self.pack_index)

    def substituted(self) -> _Argument:
        """Something read before; a list where it stands for a pack of template arguments."""
        self.require("S")
        following = self.peek()
        if following in _STANDARD:
            self.position += 1
            return _STANDARD[following] + self.tags()
        index = self.sequence_id("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return self.substitutions[index]

    def template_parameter(self) -> _Argument:
        """The template argument that `T_`, `T0_`, ... stands for; `auto` inside a generic lambda."""
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
        """How a template parameter was declared, written for a lambda or an argument that needs it."""
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
        """Arguments in angle brackets; they are what template parameters read later stand for."""
        self.require("I")
        outer_depth, self.lambda_depth = self.lambda_depth, 0
        own: list[_Argument] = []
        while not self.take("E"):
            own.append(self.template_argument())
        self.arguments, self.lambda_depth = own, outer_depth
        flat = [part for one in own for part in (one if isinstance(one, list) else [one])]
        inner = ", ".join(flat).replace(_HOLE, "")
        return f"<{inner} >" if inner.endswith(">") else f"<{inner}>"

    def template_argument(self) -> _Argument:
        """One argument: a type, a literal, an expression or a pack of arguments."""
        while self.peek(2) in {"Tn", "Ty", "Tt", "Tp"}:
            self.template_parameter_declaration()
        if self.take("J"):
            pack: list[str] = []
            while not self.take("E"):
                one = self.template_argument()
                pack.extend(one if isinstance(one, list) else [one])
            return pack
        if self.peek() == "L":
            return self.literal()
        if self.take("X"):
            value = self.expression()
            self.require("E")
            return value
        found = self.types()
        return found[0] if len(found) == 1 else found

    def types(self) -> list[str]:
        """A type, or all the types a pack expansion stands for."""
        if not self.take("Dp"):
            return [self.type()]
        start, known = self.position, len(self.substitutions)
        outer, self.pack_length, self.pack_index = (self.pack_length, self.pack_index), None, 0
        try:
            first = self.type()
        except IndexError:
            if self.pack_length != 0:
                raise
            # An empty pack: the pattern is read for its length alone.
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
        """A type; where it is a function or an array it holds the place its name goes to."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _UnknownMangling
        reader = _TYPE_READERS.get(self.peek(2)) or _TYPE_READERS.get(self.peek())
        if reader is not None:
            text = reader(self)
        elif self.peek() in _BUILTIN:
            text = _BUILTIN[self.peek()]
            self.position += 1
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
        text = _single(value, self.pack_index)
        if self.peek() == "I":
            text += self.template_arguments()
            self.substitutions.append(text)
        return text

    def qualified_type(self) -> str:
        """A type with `const`, `volatile` or `restrict`."""
        qualifiers = ""
        while self.peek() in _QUALIFIERS:
            qualifiers = _QUALIFIERS[self.peek()] + qualifiers
            self.position += 1
        text = self.type()
        text = text.replace(_HOLE, qualifiers + _HOLE) if text.endswith(f"{_HOLE})") else text + qualifiers
        self.substitutions.append(text)
        return text

    def referring_type(self) -> str:
        """A pointer or a reference."""
        sign = {"P": "*", "R": "&", "O": "&&"}[self.peek()]
        self.position += 1
        target = self.type()
        if sign != "*" and target.endswith("&"):
            text = target if sign == "&&" else target.rstrip("&") + "&"
        else:
            text = _declared(target, sign)
        self.substitutions.append(text)
        return text

    def member_pointer(self) -> str:
        """A pointer to a member of a class."""
        self.require("M")
        owner = _plain(self.type())
        target = self.type()
        sign = f"{owner}::*"
        text = _declared(target, sign) if _HOLE in target else f"{target} {sign}"
        self.substitutions.append(text)
        return text

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
        suffix = f"({parameters}){reference}"
        text = returned.replace(_HOLE, _HOLE + suffix) if _HOLE in returned else f"{returned} {_HOLE}{suffix}"
        self.substitutions.append(text)
        return text

    def array_type(self) -> str:
        """An array's type."""
        self.require("A")
        length = ""
        if self.peek().isdecimal():
            length = str(self.number())
        elif self.peek() != "_":
            length = self.expression()
        self.require("_")
        element = self.type()
        inner = f"[{length}]"
        text = element.replace(_HOLE, _HOLE + inner) if _HOLE in element else f"{element} {_HOLE}{inner}"
        self.substitutions.append(text)
        return text

    def vector_type(self) -> str:
        """A vector of the compiler's own."""
        self.require("Dv")
        length = str(self.number()) if self.peek().isdecimal() else self.expression()
        self.require("_")
        text = f"{self.type()} __vector({length})"
        self.substitutions.append(text)
        return text

    def floating_type(self) -> str:
        """`DF16_` and its like, and `DF16b`, the sixteen-bit brain float."""
        self.require("DF")
        bits = self.number()
        if self.take("b"):
            return "__bf16"
        if self.take("x"):
            return f"_Float{bits}x"
        self.require("_")
        return f"_Float{bits}"

    def vendor_type(self) -> str:
        """A compiler's own type."""
        self.require("u")
        text = self.unqualified_name()
        if self.peek() == "I":
            text += self.template_arguments()
        self.substitutions.append(text)
        return text

    def vendor_qualified_type(self) -> str:
        """A type with a compiler's own qualifier, such as an address space."""
        self.require("U")
        qualifier = self.unqualified_name()
        if self.peek() == "I":
            qualifier += self.template_arguments()
        text = f"{self.type()} {qualifier}"
        self.substitutions.append(text)
        return text

    def declared_type(self) -> str:
        """`decltype` of an expression."""
        self.position += 2
        text = f"decltype ({self.expression()})"
        self.require("E")
        self.substitutions.append(text)
        return text

    def literal(self) -> str:
        """A constant: a number, a truth value, an enumerator by number, or the address of a function."""
        self.require("L")
        if self.take("_Z") or self.take("Z"):
            text = self.encoding()
            self.require("E")
            return text
        kind = self.peek()
        named = _plain(self.type())
        end = self.text.index("E", self.position) if "E" in self.text[self.position :] else -1
        if end < 0:
            raise _UnknownMangling
        value = self.text[self.position : end].replace("n", "-", 1)
        self.position = end + 1
        if kind == "b" and value in {"0", "1"}:
            return "true" if value == "1" else "false"
        if kind in _LITERAL_SUFFIX:
            return value + _LITERAL_SUFFIX[kind]
        return f"({named}){value}"

    def expression(self) -> str:
        """An expression a template argument or `decltype` holds; only what kernels' names use."""
        code = self.peek(2)
        if code[:1] == "L":
            return self.literal()
        if code[:1] == "T":
            return _single(self.template_parameter(), self.pack_index)
        if code in {"fp", "fL"}:
            return self.function_parameter()
        self.position += 2
        if code in {"st", "at"}:
            return f"{'sizeof' if code == 'st' else 'alignof'} ({_plain(self.type())})"
        if code in {"sz", "az", "nx"}:
            return f"{ {'sz': 'sizeof', 'az': 'alignof', 'nx': 'noexcept'}[code]} ({self.expression()})"
        if code == "sZ":
            return str(len(self.pack()))
        if code == "cv":
            target = _plain(self.type())
            return f"({target})({self.expressions()})" if self.take("_") else f"({target})({self.expression()})"
        if code in {"sc", "dc", "rc", "cc"}:
            return f"({_plain(self.type())})({self.expression()})"
        if code == "cl":
            return f"{self.expression()}({self.expressions()})"
        if code == "sr":
            return self.scoped_expression()
        if code == "qu":
            return f"({self.expression()})?({self.expression()}) : ({self.expression()})"
        if code in _UNARY:
            self.take("_")
            operand = self.expression()
            return f"{_UNARY[code]}{operand}" if code == "ad" else f"{_UNARY[code]}({operand})"
        if code in _BINARY:
            return f"({self.expression()}){_BINARY[code]}({self.expression()})"
        self.position -= 2
        if self.peek().isdecimal() or self.peek() == "N":
            return self.name()[0]
        raise _UnknownMangling

    def expressions(self) -> str:
        """Expressions up to their end mark."""
        parts = []
        while not self.take("E"):
            parts.append(self.expression())
        return ", ".join(parts)

    def pack(self) -> list[str]:
        """The template arguments of a pack."""
        value = self.template_parameter()
        return value if isinstance(value, list) else [value]

    def function_parameter(self) -> str:
        """A parameter of the function, inside its own declaration."""
        if self.take("fL"):
            self.number()
        else:
            self.require("f")
        self.require("p")
        while self.peek() in _QUALIFIERS:
            self.position += 1
        return f"{{parm#{self.sequence_id('0123456789') + 1}}}"

    def scoped_expression(self) -> str:
        """A member of a type that depends on template parameters."""
        owner = _plain(self.type())
        member = self.unqualified_name()
        if self.peek() == "I":
            member += self.template_arguments()
        return f"{owner}::{member}"


def _single(value: _Argument, index: int | None = None) -> str:
    """One argument's text: of a pack the element being expanded, or all of it."""
    if isinstance(value, str):
        return value
    return ", ".join(value) if index is None else value[index]


def _plain(text: str) -> str:
    """A type where no name is put into it."""
    return text.replace(_HOLE, "")


def _declared(target: str, sign: str) -> str:
    """A pointer or reference to `target`; one to a function or array needs brackets."""
    if _HOLE not in target:
        return target + sign
    before, after = target.split(_HOLE, 1)
    if before.endswith(("*", "&")):
        return f"{before}{sign}{_HOLE}{after}"
    return f"{before}({sign}{_HOLE}){' ' if after.startswith('[') else ''}{after}"


def _last_part(name: str) -> str:
    """The last name of a qualified one, without its template arguments."""
    depth = 0
    end = len(name)
    for place in range(len(name) - 1, -1, -1):
        depth += (name[place] == ">") - (name[place] == "<")
        if depth == 0 and name[place] == "<":
            end = place
        if depth == 0 and name[place] == ":":
            return name[place + 1 : end]
    return name[:end]


_TYPE_READERS: Final[dict[str, Callable[[_Reader], str]]] = {
    "K": _Reader.qualified_type,
    "V": _Reader.qualified_type,
    "r": _Reader.qualified_type,
    "P": _Reader.referring_type,
    "R": _Reader.referring_type,
    "O": _Reader.referring_type,
    "M": _Reader.member_pointer,
    "F": _Reader.function_type,
    "Do": _Reader.function_type,
    "A": _Reader.array_type,
    "Dv": _Reader.vector_type,
    "DF": _Reader.floating_type,
    "u": _Reader.vendor_type,
    "U": _Reader.vendor_qualified_type,
    "Dt": _Reader.declared_type,
    "DT": _Reader.declared_type,
    "T": _Reader.parameter_type,
    "Ts": _Reader.class_type,
    "Tu": _Reader.class_type,
    "Te": _Reader.class_type,
}
