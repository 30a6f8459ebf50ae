"""Reads `configs/models.yaml` and `configs/backends.yaml` into checked, typed entries, or refuses them in one line.

Finding the model behind a name is `aaco_pipeline.resources.measure.models`; asking whether a backend's hardware is
really there is the inference runtime's business, so nothing here opens a model, a device or a provider.
"""

import difflib
import re
import stat
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from aaco_pipeline.errors import UsageError

LARGEST_FILE_BYTES: Final = 1024 * 1024
"""A configuration file above this size is refused before it is parsed."""

LARGEST_WHOLE_NUMBER: Final = 2**31 - 1
"""No dimension, count or device number is larger; a typing slip of many digits is refused here, not in the runtime."""

DEEPEST_NESTING: Final = 32
"""The formats need five levels; a file nested deeper than this is refused before it can exhaust the stack."""

DTYPES: Final = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)
"""The element types a model entry may name."""

CPU_PROVIDER: Final = "CPUExecutionProvider"
MIGRAPHX_PROVIDER: Final = "MIGraphXExecutionProvider"
ROCM_PROVIDER: Final = "ROCMExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
GPU_PROVIDERS: Final = (MIGRAPHX_PROVIDER, ROCM_PROVIDER, CUDA_PROVIDER, "TensorrtExecutionProvider")
"""The providers that take a `device_id`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PROVIDER = re.compile(r"[A-Za-z]+ExecutionProvider")
_PLAIN_KEY = re.compile(r"[\w/:-]{1,80}", re.ASCII)

_MODEL_KEYS: Final = ("path", "input_shapes", "dtype", "warmup", "iterations")
_PROVIDERS_OF_BACKEND_KEY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "device_id": GPU_PROVIDERS,
        "fp16_enable": (MIGRAPHX_PROVIDER,),
        "intra_op_threads": (CPU_PROVIDER,),
        "inter_op_threads": (CPU_PROVIDER,),
    }
)
_BACKEND_KEYS: Final = ("provider", *_PROVIDERS_OF_BACKEND_KEY)


@dataclass(frozen=True)
class ModelEntry:
    """One model of `models.yaml`; `None` means the file leaves the choice to the command."""

    name: str
    path: Path
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: str | None = None
    warmup: int | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class BackendEntry:
    """One backend: an execution provider with its options; `None` means the runtime's own default."""

    name: str
    provider: str
    device_id: int | None = None
    fp16_enable: bool | None = None
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None


BUILT_IN_BACKENDS: Final[Mapping[str, BackendEntry]] = MappingProxyType(
    {
        "cpu": BackendEntry("cpu", CPU_PROVIDER),
        "migraphx": BackendEntry("migraphx", MIGRAPHX_PROVIDER),
        # Only older runtimes have it: the last release that carried this provider was built for ROCm 7.0.
        "rocm": BackendEntry("rocm", ROCM_PROVIDER),
        "cuda": BackendEntry("cuda", CUDA_PROVIDER),
    }
)
"""The backends known without any file."""


def load_models(path: Path) -> dict[str, ModelEntry]:
    """The models that the file at `path` registers, by name, in the file's order; none when there is no such file.

    A relative model path in the file starts at the file's own folder.
    """
    return {
        name: _model(_Place(path, ("models", name)), name, value) for name, value in _entries(path, "models").items()
    }


def load_backends(path: Path) -> dict[str, BackendEntry]:
    """The built-in backends with the entries of the file at `path` added; one of the same name replaces a built-in."""
    of_the_file = {
        name: _backend(_Place(path, ("backends", name)), name, value)
        for name, value in _entries(path, "backends").items()
    }
    return {**BUILT_IN_BACKENDS, **of_the_file}


@dataclass(frozen=True)
class _Place:
    """A value's place: which file, and which keys and list positions lead to it."""

    file: Path
    steps: tuple[str | int, ...] = ()

    def inside(self, step: str | int) -> "_Place":
        return _Place(self.file, (*self.steps, step))

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, int):
                text += f"[{step}]"
            else:
                text += ("." if text else "") + (step if _PLAIN_KEY.fullmatch(step) else _quoted(step))
        return f"{self.file}: {text}" if text else f"{self.file}"

    def refuse(self, found: object, expected: str) -> NoReturn:
        raise UsageError(f"{self}: found {_described(found)}; expected {expected}")


def _entries(path: Path, section: str) -> dict[str, Any]:
    """The mapping under the only top-level key `section`, with its names checked and its values not yet."""
    document = read_yaml(path)
    if document is None:
        return {}
    top = _mapping(_Place(path), document, f"a mapping with the key `{section}`")
    _refuse_unknown_keys(_Place(path), top, (section,))
    place = _Place(path, (section,))
    entries = top.get(section)
    if entries is None:
        return {}
    entries = _mapping(place, entries, "a mapping from names to entries")
    for name in entries:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{place.inside(name)}: found the name {_described(name)}; expected at most 64 letters, digits, "
                "'_', '.' or '-', the first a letter or digit"
            )
    return entries


def _model(place: _Place, name: str, value: object) -> ModelEntry:
    entry = _mapping(place, value, "a mapping with the key `path`")
    _refuse_unknown_keys(place, entry, _MODEL_KEYS)
    _require(place, entry, "path", "the path of an ONNX file")
    return ModelEntry(
        name=name,
        path=_model_path(place.inside("path"), entry["path"]),
        input_shapes=_input_shapes(place.inside("input_shapes"), entry.get("input_shapes")),
        dtype=_dtype(place.inside("dtype"), entry.get("dtype")),
        warmup=_whole_number(place.inside("warmup"), entry.get("warmup"), at_least=0),
        iterations=_whole_number(place.inside("iterations"), entry.get("iterations"), at_least=1),
    )


def _backend(place: _Place, name: str, value: object) -> BackendEntry:
    entry = _mapping(place, value, "a mapping with the key `provider`")
    _refuse_unknown_keys(place, entry, _BACKEND_KEYS)
    example = f"the name of an execution provider, such as {MIGRAPHX_PROVIDER}"
    _require(place, entry, "provider", example)
    provider = entry["provider"]
    if not isinstance(provider, str) or not _PROVIDER.fullmatch(provider):
        place.inside("provider").refuse(provider, example)
    for key, providers in _PROVIDERS_OF_BACKEND_KEY.items():
        if key in entry and provider not in providers:
            place.inside(key).refuse(
                entry[key],
                f"no such key, as the provider is {provider} and it applies to {' or '.join(providers)} only",
            )
    return BackendEntry(
        name=name,
        provider=provider,
        device_id=_whole_number(place.inside("device_id"), entry.get("device_id"), at_least=0),
        fp16_enable=_true_or_false(place.inside("fp16_enable"), entry.get("fp16_enable")),
        intra_op_threads=_whole_number(place.inside("intra_op_threads"), entry.get("intra_op_threads"), at_least=1),
        inter_op_threads=_whole_number(place.inside("inter_op_threads"), entry.get("inter_op_threads"), at_least=1),
    )


# One function per kind of value: checks it, or refuses it by its place.


def _mapping(place: _Place, value: object, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        place.refuse(value, expected)
    for key in value:
        if not isinstance(key, str):
            raise UsageError(
                f"{place}: found the key {_described(key)}; expected text (put quotes around it if it is meant as text)"
            )
        if not _encodable(key):
            raise UsageError(f"{place}: found the key {_described(key)}; expected text that UTF-8 can hold")
    return value


def _refuse_unknown_keys(place: _Place, value: Iterable[str], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean `{near[0]}`?)" if near else ""
            raise UsageError(f"{place.inside(key)}: found an unknown key; expected one of {', '.join(known)}{hint}")


def _require(place: _Place, entry: Mapping[str, object], key: str, expected: str) -> None:
    if entry.get(key) is None:
        place.inside(key).refuse(None, expected)


def _model_path(place: _Place, value: object) -> Path:
    expected = "the path of an ONNX file"
    if not isinstance(value, str) or not value.strip() or "\0" in value or not _encodable(value):
        place.refuse(value, expected)
    try:
        relative = Path(value).expanduser()
    except RuntimeError:
        place.refuse(value, f"{expected} below a home folder that exists")
    return place.file.absolute().parent / relative


def _input_shapes(place: _Place, value: object) -> dict[str, tuple[int, ...]]:
    if value is None:
        return {}
    shapes = _mapping(place, value, "a mapping from input names to lists of dimensions")
    return {name: _shape(place.inside(name), shape) for name, shape in shapes.items()}


def _shape(place: _Place, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        place.refuse(value, "a list of dimensions, such as [1, 3, 224, 224]")
    return tuple(
        _required_whole_number(place.inside(position), dimension, at_least=1)
        for position, dimension in enumerate(value)
    )


def _dtype(place: _Place, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in DTYPES:
        near = difflib.get_close_matches(value, DTYPES, n=1) if isinstance(value, str) else []
        hint = f" (did you mean {near[0]}?)" if near else ""
        place.refuse(value, f"one of {', '.join(DTYPES)}{hint}")
    return value


def _whole_number(place: _Place, value: object, *, at_least: int) -> int | None:
    return None if value is None else _required_whole_number(place, value, at_least=at_least)


def _required_whole_number(place: _Place, value: object, *, at_least: int) -> int:
    # True and False are whole numbers to Python, but not to a person who writes a configuration.
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= LARGEST_WHOLE_NUMBER:
        place.refuse(value, f"a whole number from {at_least} to {LARGEST_WHOLE_NUMBER}")
    return value


def _true_or_false(place: _Place, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        place.refuse(value, "true or false")
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(text: str) -> str:
    """The text in quotes, on one line, printable and of bounded length."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _described(value: object) -> str:  # noqa: PLR0911  (one return per kind of value reads best)
    """A value in the words of the file's author, never longer than a line and never expanded."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**20 else f"a whole number of {value.bit_length()} bits"
        case float():
            return f"the decimal number {value}"
        case str():
            return f"the text {_quoted(value)}"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"a mapping of {len(value)}"
        case _:
            return f"a {type(value).__name__}"


# From bytes to plain values: the only part that knows YAML.


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
                problem = f"found the key {_quoted(key.value)} a second time, after line {first}"
                raise ConstructorError(problem=problem, problem_mark=key.start_mark)
            line_of_key[key.tag, key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            found = _quoted(node.value) if isinstance(node, yaml.ScalarNode) else "a value"
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
