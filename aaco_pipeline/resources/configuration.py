"""Reads configuration files: YAML checked against a form, and refused in one line that names file, key and remedy.

The forms of `configs/models.yaml` and `configs/backends.yaml` are here; other files have theirs where they are used.
Finding the model behind a name is `aaco_pipeline.resources.measure.models`; nothing here opens a model or a device.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self, TypeVar

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

from aaco_pipeline.capture.request import in_plain_words
from aaco_pipeline.errors import UsageError
from aaco_pipeline.providers import CPU_PROVIDER, CUDA_PROVIDER, GPU_PROVIDERS, MIGRAPHX_PROVIDER, ROCM_PROVIDER
from aaco_pipeline.resources.strict_yaml import described, quoted, read_yaml

#: No dimension, count or device number is larger; a slip of many digits is refused here, not in the runtime.
LARGEST_WHOLE_NUMBER: Final = 2**31 - 1
#: The element types a model entry may name.
DTYPES: Final = (
    *("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool"),
)
_PLAIN_KEY: Final = re.compile(r"[\w/:-]{1,80}", re.ASCII)
_OWN_ERROR: Final = "expected"
_AnyForm = TypeVar("_AnyForm", bound="Form")


def _expected(words: str, **context: Any) -> PydanticCustomError:
    """The error of a value in whose place `words` are expected; `key` and `found` of the context say which part."""
    return PydanticCustomError(_OWN_ERROR, "{words}", {"words": words, **context})


def expecting(words: str) -> WrapValidator:
    """Whatever is wrong with the value itself, `words` say what is expected in its place."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            if any(one["loc"] or one["type"] == _OWN_ERROR for one in error.errors()):
                raise
            raise _expected(words) from error

    return WrapValidator(check)


def _near(value: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


class Form(BaseModel):
    """A mapping with known keys in a configuration file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        known = list(cls.model_fields)
        if not isinstance(given, dict):
            raise _expected(f"a mapping with the key `{known[0]}`")
        for key in given:
            if key not in known:
                raise _expected(f"one of {', '.join(known)}{_near(key, known)}", key=key, found="an unknown key")
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
    """A relative path starts at the folder of the file that names it."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise _expected("the path of an ONNX file")
    try:
        folder: Path = (info.context or {})["folder"]
        return folder / Path(value).expanduser()
    except RuntimeError as error:
        raise _expected("the path of an ONNX file below a home folder that exists") from error


def _dtype(value: object) -> object:
    if value not in DTYPES:
        raise _expected(f"one of {', '.join(DTYPES)}{_near(value, DTYPES)}")
    return value


class ModelEntry(Form):
    """One model of `models.yaml`; `None` means the file leaves the choice to the command."""

    path: Annotated[Path, BeforeValidator(_model_path)] = Field(default=None, validate_default=True)
    input_shapes: (
        Annotated[dict[str, _Shape], expecting("a mapping from input names to lists of dimensions")] | None
    ) = None
    dtype: Annotated[str, BeforeValidator(_dtype)] | None = None
    warmup: _Whole | None = None
    iterations: _Positive | None = None


class BackendEntry(Form):
    """One backend: an execution provider with its options; `None` means the runtime's own default."""

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
                raise _expected(f"no such key, {only}", key=key)
        return self


class _ModelsFile(Form):
    models: Annotated[dict[_Name, ModelEntry], expecting("a mapping from names to entries")] | None = None


class _BackendsFile(Form):
    backends: Annotated[dict[_Name, BackendEntry], expecting("a mapping from names to entries")] | None = None


#: The backends known without any file.
BUILT_IN_BACKENDS: Final[Mapping[str, BackendEntry]] = MappingProxyType(
    {
        "cpu": BackendEntry(provider=CPU_PROVIDER),
        "migraphx": BackendEntry(provider=MIGRAPHX_PROVIDER),
        # Only older runtimes have it: the last release that carried this provider was built for ROCm 7.0.
        "rocm": BackendEntry(provider=ROCM_PROVIDER),
        "cuda": BackendEntry(provider=CUDA_PROVIDER),
    }
)


def load_models(path: Path) -> dict[str, ModelEntry]:
    """The models that the file at `path` registers, by name, in the file's order; none when there is no such file.

    A relative model path in the file starts at the file's own folder.
    """
    file = load_form(path, _ModelsFile)
    return (file and file.models) or {}


def load_backends(path: Path) -> dict[str, BackendEntry]:
    """The built-in backends with the entries of the file at `path` added; one of the same name replaces a built-in."""
    file = load_form(path, _BackendsFile)
    return {**BUILT_IN_BACKENDS, **((file and file.backends) or {})}


def load_form(path: Path, form: type[_AnyForm]) -> _AnyForm | None:
    """The file at `path` in its form; None when there is no such file or nothing in it. UsageError in one line."""
    content = read_yaml(path)
    if content is None:
        return None
    try:
        return form.model_validate(content, context={"folder": path.absolute().parent})
    except ValidationError as error:
        raise UsageError(_refusal(path, error.errors()[0])) from error


def _refusal(path: Path, error: ErrorDetails) -> str:
    """File, key, what was found there and what is expected; a value of the file is never printed at length."""
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
