"""From a configuration file's bytes to plain values: YAML without what a small file never needs.

What the values may be is `aaco_pipeline.resources.configuration`'s business. On PyYAML: of 19 bad files in the tests
ruamel.yaml takes 7 and raises built-in exceptions on 4, and it reads `on`, `010` and `1e3` as other values.
"""

import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from aaco_pipeline.errors import UsageError

#: A configuration file above this size is refused before it is parsed.
LARGEST_FILE_BYTES: Final = 1024 * 1024
#: The forms need five levels; a file nested deeper than this is refused before it can exhaust the stack.
DEEPEST_NESTING: Final = 32


def quoted(text: str) -> str:
    """The text in quotes, on one line, printable and of bounded length."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


_DESCRIPTIONS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "nothing",
    bool: lambda value: "true" if value else "false",
    int: lambda value: str(value) if abs(value) < 10**20 else f"a whole number of {value.bit_length()} bits",
    float: lambda value: f"the decimal number {value}",
    str: lambda value: f"the text {quoted(value)}",
    list: lambda value: f"a list of {len(value)}",
    dict: lambda value: f"a mapping of {len(value)}",
}


def described(value: object) -> str:
    """A value in the words of the file's author, never longer than a line and never expanded."""
    return _DESCRIPTIONS.get(type(value), lambda other: f"a {type(other).__name__}")(value)


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without what a small configuration never needs: repeated keys, aliases and merging.

    The safe loader keeps the last of two equal keys in silence, expands aliases without bound, and lets
    several built-in exceptions through for scalars that contradict their tag, such as the date 2024-99-99.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        place = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise ComposerError(problem="found an alias; write the value out", problem_mark=place)
        if self._depth == DEEPEST_NESTING:
            raise ComposerError(problem=f"found more than {DEEPEST_NESTING} levels of nesting", problem_mark=place)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        line_of_key: dict[tuple[str, str], int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag == "tag:yaml.org,2002:merge":
                raise ConstructorError(
                    problem="found the merge key <<; write the keys out", problem_mark=key.start_mark
                )
            if (first := line_of_key.get((key.tag, key.value))) is not None:
                problem = f"found the key {quoted(key.value)} a second time, after line {first}"
                raise ConstructorError(problem=problem, problem_mark=key.start_mark)
            line_of_key[key.tag, key.value] = key.start_mark.line + 1
        mapping = super().construct_mapping(node, deep)
        for key in mapping:
            if not isinstance(key, str):
                problem = f"found the key {described(key)}, put quotes around it if it is meant as text"
                raise ConstructorError(problem=problem, problem_mark=node.start_mark)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # an escape can stand for what UTF-8 cannot hold
            return value
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            found = quoted(node.value) if isinstance(node, yaml.ScalarNode) else "a value"
            raise ConstructorError(
                problem=f"found {found}, which does not fit its type", problem_mark=node.start_mark
            ) from error


def read_yaml(path: Path) -> object:
    """The file's content as plain values, or `None` when there is no such file or nothing in it. Raises UsageError."""
    text = _text(path)
    if text is None:
        return None
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{path}:{line}: found a control character; expected YAML text") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: {_one_line(error.problem or error.context)}; expected valid YAML") from error


def _text(path: Path) -> str | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path}: found a folder or device; expected a YAML file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a readable YAML file") from error
    if len(content) > LARGEST_FILE_BYTES:
        raise UsageError(f"{path}: found more than {LARGEST_FILE_BYTES} bytes; expected a small YAML file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: found bytes that are not UTF-8; expected YAML text in UTF-8") from error


def _one_line(text: str | None) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text or "cannot be read")
    return " ".join(printable.split())[:200]
