"""Find the model for a name or a path: registered in `models.yaml`, built in, or a user's file.

`aaco_pipeline.resources.configuration` reads `models.yaml`, `aaco_pipeline.resources.measure.generated_models` builds
the generated graphs, and the inference runtime opens the models: this module only accesses the file system and imports
neither onnx nor a runtime until a generated model has to be written.
"""

import difflib
import importlib.util
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import ModelError, UsageError
from aaco_pipeline.lake.artefacts import artefact_digest
from aaco_pipeline.resources.configuration import ModelEntry, quoted

Origin = Literal["path", "registry", "built-in"]
"""Origin of a model: the path given, the file `models.yaml`, or the models that need no file of the user's."""

WEIGHTS_OF_THE_FILE: Final = "as in the file"
WEIGHTS_CONSTANT: Final = "constants (the onnx wheel's light models carry no trained weights)"
WEIGHTS_RANDOM: Final = "random, seeded"

_GENERATOR_VERSION: Final = 1
"""Part of a generated model's file name: raise it with every change to a generated graph, so that none is stale."""

_SEED: Final = 20240229
_GPT: Final = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 4096, "positions": 2048}
_GPT_PAST: Final = 128
_CONTROL_FLOW_ROWS: Final = 32
_CONTROL_FLOW: Final = {"width": 64, "trips": 5}


@dataclass(frozen=True)
class ModelChoice:
    """A model that has been found and is ready to be opened.

    `integer_upper_bound` gives, by input name, the exclusive limit of generated integers (such as a vocabulary's size);
    it is empty for models that this package does not know. `None` leaves the choice to the command.
    """

    name: str
    path: Path
    origin: Origin
    weights: str
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    integer_upper_bound: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    warmup: int | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class ModelDescription:
    """One row of the model list in `aaco info`."""

    name: str
    origin: Origin
    weights: str
    description: str


@dataclass(frozen=True)
class _BuiltIn:
    """A model that needs no user file: `locate` returns the model's path."""

    description: str
    weights: str
    locate: Callable[[], Path]
    input_shapes: Mapping[str, Sequence[int]]
    integer_upper_bound: Mapping[str, int] = field(default_factory=dict)


def describe_models(registry: Mapping[str, ModelEntry]) -> list[ModelDescription]:
    """Return every model that a name can select: the registered ones, then the built-in ones that they do not hide."""
    registered = {
        name: ModelDescription(name, "registry", WEIGHTS_OF_THE_FILE, f"Registered in models.yaml as {entry.path}.")
        for name, entry in registry.items()
    }
    built_in = {
        name: ModelDescription(name, "built-in", model.weights, model.description) for name, model in _BUILT_IN.items()
    }
    return [*registered.values(), *(row for name, row in built_in.items() if name not in registered)]


def resolve_model(name_or_path: str, registry: Mapping[str, ModelEntry], file: Path | None = None) -> ModelChoice:
    """Return the model for `name_or_path`: registered names come first, then built-in names, then paths.

    A path ends in `.onnx`, contains a separator or exists. A generated model is kept in the cache. With `file`, return
    that file under the model's name, with all its registered properties.
    """
    origin = origin_of(name_or_path, registry)
    if origin == "registry":
        entry = registry[name_or_path]
        settings = {**entry.model_dump(exclude={"path"}), "input_shapes": entry.input_shapes or {}}
        choice = ModelChoice(name_or_path, entry.path, "registry", WEIGHTS_OF_THE_FILE, **settings)
    elif origin == "built-in":
        model = _BUILT_IN[name_or_path]
        choice = ModelChoice(
            name_or_path,
            model.locate(),
            "built-in",
            model.weights,
            model.input_shapes,
            model.integer_upper_bound,
            "float32",
        )
    else:
        choice = ModelChoice(Path(name_or_path).stem, Path(name_or_path), origin, WEIGHTS_OF_THE_FILE)
    choice = choice if file is None else replace(choice, path=file)
    check_model_file(choice.path)
    return choice


def origin_of(name_or_path: str, registry: Mapping[str, ModelEntry]) -> Origin:
    """Return the origin of the model `name_or_path`. UsageError if it is neither a name nor a path."""
    if name_or_path in registry:
        return "registry"
    if name_or_path in _BUILT_IN:
        return "built-in"
    if not _is_path(name_or_path):
        raise UsageError(_unknown(name_or_path, list(dict.fromkeys((*registry, *_BUILT_IN)))))
    return "path"


def model_digest(path: Path) -> str:
    """Return the digest of a model with all its weights, including external files; see `artefact_digest`.

    Raises OSError if a file cannot be read, and ModelError if weights are outside the model's folder.
    """
    return artefact_digest(path, weights_beside(path))


def weights_beside(path: Path) -> list[Path]:
    """Return the external files that hold a model's weights; see `external_files`.

    Empty for a file that is not an ONNX model: the runtime decides whether it can be run. OSError without a file.
    """
    from aaco_pipeline.formats.onnx.weightless import NotOnnxError, external_files

    path.stat()  # without this, a missing file would count as not being a model
    try:
        return external_files(path)
    except NotOnnxError:
        return []


def check_model_file(path: Path) -> None:
    """Refuse a file that cannot be a model, without parsing it: missing, not a regular file, empty or unreadable."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{path}: a folder; give the .onnx file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: not a regular file; give the path of an .onnx file")
        if status.st_size == 0:
            raise ModelError(f"{path}: an empty file; export or download the model again")
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file; check the path, or choose a model that `aaco info` lists") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:  # a path with a zero byte
        raise ModelError(f"{str(path)!r}: not a path; give the path of an .onnx file") from error


def _is_path(text: str) -> bool:
    if text.endswith(".onnx") or os.sep in text or (os.altsep is not None and os.altsep in text):
        return True
    try:
        return bool(text) and Path(text).exists()
    except OSError:  # too long for a file name, so no file can have it
        return False


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:80], known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"{quoted(name)}: no model has this name; {hint}known are {', '.join(known)}, or give the path of an .onnx file"
    )


def _light_model(name: str) -> Callable[[], Path]:
    """A model that the onnx package contains for its own tests, located without importing that package."""

    def locate() -> Path:
        package = importlib.util.find_spec("onnx")
        for folder in (package.submodule_search_locations or ()) if package else ():
            path = Path(folder, "backend", "test", "data", "light", f"light_{name}.onnx")
            if path.is_file():
                return path
        raise ModelError(
            f"{name}: the installed onnx package carries no light_{name}.onnx; "
            "install the onnx wheel from PyPI, or choose gpt_tiny or control_flow"
        )

    return locate


def _generated(name: str, build: Callable[[Any], bytes]) -> Callable[[], Path]:
    """A model that is built once by the module `generated_models` and kept in the cache folder."""

    def write(path: Path) -> None:
        from aaco_pipeline.resources.measure import generated_models

        path.write_bytes(build(generated_models))

    return lambda: own_code(f"{name}-{_GENERATOR_VERSION}.onnx", write)


_BUILT_IN: Final[Mapping[str, _BuiltIn]] = MappingProxyType(
    {
        "squeezenet": _BuiltIn(
            description="A small convolutional network for images (SqueezeNet).",
            weights=WEIGHTS_CONSTANT,
            locate=_light_model("squeezenet"),
            input_shapes={"data_0": (1, 3, 224, 224)},
        ),
        "resnet50": _BuiltIn(
            description="The usual convolutional network for images, 50 layers with residual connections (ResNet-50).",
            weights=WEIGHTS_CONSTANT,
            locate=_light_model("resnet50"),
            input_shapes={"gpu_0/data_0": (1, 3, 224, 224)},
        ),
        "densenet121": _BuiltIn(
            description="A convolutional network of many small operators and concatenations (DenseNet-121).",
            weights=WEIGHTS_CONSTANT,
            locate=_light_model("densenet121"),
            input_shapes={"data_0": (1, 3, 224, 224)},
        ),
        "gpt_tiny": _BuiltIn(
            description="A small language model whose one graph serves prefill and decode, with a key-value cache.",
            weights=WEIGHTS_RANDOM,
            locate=_generated("gpt_tiny", lambda models: models.gpt(**_GPT, seed=_SEED)),
            input_shapes={
                "input_ids": (1, 1),
                **{
                    f"past_{kind}_{layer}": (1, _GPT["heads"], _GPT_PAST, _GPT["width"] // _GPT["heads"])
                    for layer in range(_GPT["layers"])
                    for kind in ("key", "value")
                },
            },
            integer_upper_bound={"input_ids": _GPT["vocabulary"]},
        ),
        "control_flow": _BuiltIn(
            description="Matrix products around branches and a loop that holds further branches (If and Loop).",
            weights=WEIGHTS_RANDOM,
            locate=_generated("control_flow", lambda models: models.control_flow(**_CONTROL_FLOW, seed=_SEED)),
            input_shapes={"x": (_CONTROL_FLOW_ROWS, _CONTROL_FLOW["width"])},
        ),
    }
)
