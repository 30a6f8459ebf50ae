"""Options shared by several commands: the lake, the measurement request and waiting for the measurement slot.

`output` prints results.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import click

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project

LAKE_HELP: Final = "The lake (default: $AACO_LAKE, else the nearest tracelake/ or dagster.yaml upward)."


def open_lake(project: "Project") -> "TraceLake":
    """Open a project's lake; the store is imported here so that `--help` stays fast."""
    from aaco_pipeline.lake.store import TraceLake

    return TraceLake(project.lake)


def lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that reads a lake; the command receives `project`, and fails if there is no lake."""
    return _option(command, lambda named: _project(named, new=False))


def new_lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that needs no lake, or creates one here if there is none."""
    return _option(command, lambda named: _project(named, new=True))


def late_lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that only sometimes needs a lake; `project` is a function that finds it.

    The function fails if there is no lake, as `lake_option` does.
    """
    return _option(command, lambda named: partial(_project, named, new=False))


def _option(command: Callable[..., Any], given: Callable[[str | None], Any]) -> Callable[..., Any]:
    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        return given(value or context.find_root().obj)

    return click.option("--lake", "project", metavar="PATH", callback=chosen, help=LAKE_HELP)(command)


def _project(named: str | None, *, new: bool) -> "Project":
    from aaco_pipeline.resources.project import find_project

    return find_project(named, new=new)


class RequestCommand(click.Command):
    """Command with the options of a measurement; options that it declares itself take precedence.

    The options are created on demand, because importing their declaration is slow and `aaco ls` does not need them.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = {parameter.name for parameter in self.params}
        return [*(option for option in request_options() if option.name not in own), *super().get_params(ctx)]


@cache
def request_options() -> tuple[click.Option, ...]:
    """Create one option for each setting of a request, in declaration order."""
    from aaco_pipeline.capture.request import MeasurementSettings

    return tuple(_request_option(name, field) for name, field in MeasurementSettings.model_fields.items())


def request_of(options: dict[str, Any], **more: Any) -> "MeasurementRequest":
    """Build the request from a command's options; `more` replaces options that the command declares itself."""
    from aaco_pipeline.capture.request import MeasurementRequest

    model = options["model"]
    if model.endswith(".onnx") or "/" in model:
        model = str(Path(model).absolute())
    asked = {option.name: options[option.name] for option in request_options() if option.name in options}
    if asked.get("interpreter") is not None:
        asked["interpreter"] = str(Path(asked["interpreter"]).absolute())
    given = [name for name in ("input_shapes", "provider_options") if name in asked]
    pairs: dict[str, dict[str, Any]] = {name: dict(asked[name]) for name in given}
    return MeasurementRequest(**{**asked, **pairs, "model": model, **more})


def _request_option(name: str, field: "FieldInfo") -> click.Option:
    from aaco_pipeline.capture.request import spelling_of

    extras = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    # click would treat a default of None as a given value, and a required option as provided.
    stated: dict[str, Any] = {"default": field.default} if isinstance(field.default, str | int | float) else {}
    return click.Option(
        [spelling_of(name), name],
        type=_type(field),
        required=field.is_required(),
        show_default=field.annotation is not bool,
        is_flag=field.annotation is bool,
        multiple=get_origin(field.annotation) is Mapping,
        metavar=str(extras["metavar"]) if "metavar" in extras else None,
        help=field.description,
        **stated,
    )


def _type(field: "FieldInfo") -> Any:
    """Return the click type of a setting. The request itself checks upper bounds, with better messages."""
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    if get_origin(field.annotation) is Mapping:
        return _KeyValue() if get_args(field.annotation)[1] is str else _Shape()
    plain = (*get_args(field.annotation), field.annotation)[0]
    least = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    return plain if least is None else click.IntRange(min=least)


class _KeyValue(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """Parse `key=value` into a pair."""

    name = "option"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, separator, text = str(value).partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is not an option; expected KEY=VALUE", param, ctx)
        return key, text


class _Shape(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """Parse `input=1x3x224x224` (or with commas) into a name and a shape; an empty shape means a scalar."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, list[int]]:
        name, separator, dimensions = str(value).rpartition("=")
        parts = dimensions.replace(",", "x").split("x") if dimensions else []
        if not separator or not name or not all(part.strip().isdigit() for part in parts):
            self.fail(f"{value!r} is not a shape; expected INPUT=1x3x224x224", param, ctx)
        return name, [int(part) for part in parts]


def wait_option(tell: Callable[[str], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--wait SECONDS` to a command that measures; it calls `tell` with the slot's holder while waiting."""

    def chosen(context: click.Context, parameter: click.Parameter, value: float | None) -> None:
        if not context.resilient_parsing:
            from aaco_pipeline.resources.measure.measurement_slot import slot_patience

            context.with_resource(slot_patience(value, tell))

    return click.option(
        "--wait",
        metavar="SECONDS",
        type=click.FloatRange(min=0, max=1e6),
        expose_value=False,
        callback=chosen,
        help="Maximum time for each wait while another process measures on this host (default: no limit); exits "
        "with 4 when it is exceeded.",
    )
