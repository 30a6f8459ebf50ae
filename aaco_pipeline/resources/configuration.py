"""Read configuration files: strict YAML, validated; errors are one line with the file, the key and the remedy.

The schemas of `models.yaml`, `backends.yaml` and `counter_sets.yaml` are here; the schemas of a project's own settings
are in `aaco_pipeline.resources.project_settings`.
"""

import difflib
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from aaco_pipeline.capture.request import in_plain_words
from aaco_pipeline.errors import UsageError
from aaco_pipeline.providers import CPU_PROVIDER, CUDA_PROVIDER, GPU_PROVIDERS, MIGRAPHX_PROVIDER, ROCM_PROVIDER
from aaco_pipeline.resources.project import DEFAULTS
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

#: Larger configuration files are refused before parsing.
LARGEST_FILE_BYTES: Final = 1024 * 1024
#: The schemas need five levels; a file with deeper nesting is refused before it can exhaust the stack.
DEEPEST_NESTING: Final = 32


def quoted(text: str) -> str:
    """Quote a text on one line, printable and of bounded length."""
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
    """Show a value as its author wrote it, on at most one line and never expanded."""
    return _DESCRIPTIONS.get(type(value), lambda other: f"a {type(other).__name__}")(value)


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without features that a small configuration never needs: repeated keys, aliases and merging.

    The safe loader silently keeps the last of two equal keys, expands aliases without bound, and raises various
    built-in exceptions for scalars that contradict their tag, such as the date 2024-99-99.
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
                value.encode()  # an escape can stand for a character that UTF-8 cannot encode
            return value
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            found = quoted(node.value) if isinstance(node, yaml.ScalarNode) else "a value"
            raise ConstructorError(
                problem=f"found {found}, which does not fit its type", problem_mark=node.start_mark
            ) from error


def read_yaml(path: Path) -> object:
    """Return the file's content as plain values, or `None` if the file is missing or empty. Raises UsageError."""
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


#: No dimension, count or device number is larger; a typo with extra digits is refused here, not in the runtime.
LARGEST_WHOLE_NUMBER: Final = 2**31 - 1
#: Element types that a model entry may use.
DTYPES: Final = (
    *("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool"),
)
_PLAIN_KEY: Final = re.compile(r"[\w/:-]{1,80}", re.ASCII)
_OWN_ERROR: Final = "expected"
_AnyForm = TypeVar("_AnyForm", bound="Form")


def expected(words: str, **context: Any) -> PydanticCustomError:
    """Build the error for a wrong value: `words` describe what is expected, `context` has `key` and `found`."""
    return PydanticCustomError(_OWN_ERROR, "{words}", {"words": words, **context})


def expecting(words: str) -> WrapValidator:
    """Refuse any wrong value with `words`, which describe the expected value."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            if any(one["loc"] or one["type"] == _OWN_ERROR for one in error.errors()):
                raise
            raise expected(words) from error

    return WrapValidator(check)


def _near(value: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


class Form(BaseModel):
    """A mapping with a fixed set of keys in a configuration file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        known = list(cls.model_fields)
        if not isinstance(given, dict):
            raise expected(f"a mapping with the key `{known[0]}`")
        for key in given:
            if key not in known:
                raise expected(f"one of {', '.join(known)}{_near(key, known)}", key=key, found="an unknown key")
        return given


_Whole = Annotated[
    int, Field(ge=0, le=LARGEST_WHOLE_NUMBER), expecting(f"a whole number from 0 to {LARGEST_WHOLE_NUMBER}")
]
_Positive = Annotated[
    int, Field(ge=1, le=LARGEST_WHOLE_NUMBER), expecting(f"a whole number from 1 to {LARGEST_WHOLE_NUMBER}")
]
_Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"),
    expecting("a name of at most 64 letters, digits, '_', '.' or '-', the first a letter or digit"),
]
_Shape = Annotated[list[_Positive], expecting("a list of dimensions, such as [1, 3, 224, 224]")]


def _model_path(value: object, info: ValidationInfo) -> Path:
    """Resolve a relative path against the folder of the file that contains it."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise expected("the path of an ONNX file")
    try:
        folder: Path = (info.context or {})["folder"]
        return folder / Path(value).expanduser()
    except RuntimeError as error:
        raise expected("the path of an ONNX file below a home folder that exists") from error


def _dtype(value: object) -> object:
    if value not in DTYPES:
        raise expected(f"one of {', '.join(DTYPES)}{_near(value, DTYPES)}")
    return value


class ModelEntry(Form):
    """One model of `models.yaml`; `None` leaves the choice to the command."""

    path: Annotated[Path, BeforeValidator(_model_path)] = Field(default=None, validate_default=True)
    input_shapes: (
        Annotated[dict[str, _Shape], expecting("a mapping from input names to lists of dimensions")] | None
    ) = None
    dtype: Annotated[str, BeforeValidator(_dtype)] | None = None
    warmup: _Whole | None = None
    iterations: _Positive | None = None


class BackendEntry(Form):
    """One backend: an execution provider with its options; `None` stands for the runtime's own default."""

    provider: Annotated[
        str,
        StringConstraints(pattern="^[A-Za-z]+ExecutionProvider$"),
        expecting(f"the name of an execution provider, such as {MIGRAPHX_PROVIDER}"),
    ] = Field(default=None, validate_default=True)
    device_id: _Whole | None = None
    fp16_enable: Annotated[bool, expecting("true or false")] | None = None
    intra_op_threads: _Positive | None = None
    inter_op_threads: _Positive | None = None

    @model_validator(mode="after")
    def _keys_of_the_provider(self) -> Self:
        for key, providers in (
            ("device_id", GPU_PROVIDERS),
            ("fp16_enable", (MIGRAPHX_PROVIDER,)),
            ("intra_op_threads", (CPU_PROVIDER,)),
            ("inter_op_threads", (CPU_PROVIDER,)),
        ):
            if getattr(self, key) is not None and self.provider not in providers:
                only = f"as the provider is {self.provider} and it applies to {' or '.join(providers)} only"
                raise expected(f"no such key, {only}", key=key)
        return self


class _ModelsFile(Form):
    models: Annotated[dict[_Name, ModelEntry], expecting("a mapping from names to entries")] | None = None


class _BackendsFile(Form):
    backends: Annotated[dict[_Name, BackendEntry], expecting("a mapping from names to entries")] | None = None


#: Built-in backends, available without a configuration file.
BUILT_IN_BACKENDS: Final[Mapping[str, BackendEntry]] = MappingProxyType(
    {
        "cpu": BackendEntry(provider=CPU_PROVIDER),
        "migraphx": BackendEntry(provider=MIGRAPHX_PROVIDER),
        # Only in older runtimes: the last release with this provider was built for ROCm 7.0.
        "rocm": BackendEntry(provider=ROCM_PROVIDER),
        "cuda": BackendEntry(provider=CUDA_PROVIDER),
    }
)


def load_models(path: Path) -> dict[str, ModelEntry]:
    """Return the models registered in the file at `path` by name, in file order; empty if there is no file.

    Relative model paths in the file are resolved against the file's own folder.
    """
    file = load_form(path, _ModelsFile)
    return (file and file.models) or {}


def load_backends(path: Path) -> dict[str, BackendEntry]:
    """Return the built-in backends plus those of the file at `path`, which replace built-ins of the same name."""
    file = load_form(path, _BackendsFile)
    return {**BUILT_IN_BACKENDS, **((file and file.backends) or {})}


def load_form(path: Path, form: type[_AnyForm]) -> _AnyForm | None:
    """Return the validated file at `path`, or None if it is missing or empty. UsageError in one line."""
    content = read_yaml(path)
    if content is None:
        return None
    try:
        return form.model_validate(content, context={"folder": path.absolute().parent})
    except ValidationError as error:
        raise UsageError(_refusal(path, error.errors()[0])) from error


def _refusal(path: Path, error: ErrorDetails) -> str:
    """Word a refusal: file, key, actual value and expected value; values are shortened."""
    steps, context, value = error["loc"], error.get("ctx", {}), error["input"]
    if steps[-1:] == ("[key]",):
        steps = steps[:-1]
    if "key" in context:
        steps, value = (*steps, context["key"]), value[context["key"]]
    place = ""
    for step in steps:
        text = step if isinstance(step, str) and _PLAIN_KEY.fullmatch(step) else quoted(str(step))
        place += f"[{step}]" if isinstance(step, int) else f".{text}" if place else text
    found = context.get("found") or described(None if error["type"] == "missing" else value)
    expected = f"expected {context['words']}" if error["type"] == _OWN_ERROR else in_plain_words(error["msg"])
    return f"{path}: {place}{': ' if place else ''}found {found}; {expected}"


COUNTER_SETS_FILE: Final = "counter_sets.yaml"


def load_counter_sets(path: Path) -> CounterSets:
    """Return the counter sets of the file at `path`, or else the package's. UsageError naming file and key."""
    file = load_form(path, _File) or load_form(DEFAULTS / "configs" / COUNTER_SETS_FILE, _File)
    assert file is not None
    sets: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in file.counter_sets}
    for name, entries in file.counter_sets.items():
        for architecture, counters in ((gfx, one.counters) for one in entries for gfx in one.architectures):
            sets[name][architecture] = (*sets[name].get(architecture, ()), *counters)
    return CounterSets(str(path), sets, {gfx: one.blocks for one in file.slots for gfx in one.architectures})


_CounterName = Annotated[
    str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9_]*$"), expecting("a name of letters, digits and '_'")
]
_Architectures = list[
    Annotated[str, StringConstraints(pattern="^gfx[0-9a-f]+$"), expecting("an architecture, such as gfx942")]
]


class _Slots(Form):
    architectures: _Architectures
    source: str
    blocks: dict[_CounterName, Annotated[int, Field(ge=1), expecting("how many counters fit, 1 or more")]]


class _Entry(Form):
    architectures: _Architectures
    counters: Annotated[list[_CounterName], Field(min_length=1), expecting("a list of counters, at least one")]


class _File(Form):
    counter_sets: dict[_CounterName, list[_Entry]]
    slots: list[_Slots] = Field(default=[])
