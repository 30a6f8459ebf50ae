"""The file `configs/retention.yaml`: what the nightly rounds keep, and for how long.

What goes by it is decided in `aaco_pipeline.lake.retention` and `aaco_pipeline.lake.segments.compaction`.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.retention import parse_age
from aaco_pipeline.resources.configuration import Form, expecting, load_form

RETENTION_FILE: Final = "retention.yaml"


def _age(text: str) -> str:
    try:
        parse_age(text)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return text


_Age = Annotated[str, AfterValidator(_age), expecting("an age such as 90d, 36h or 12w")]


class RetentionSettings(Form):
    """The limits of the schedule, of which null is none, and the `grace` of files that segments have replaced."""

    keep: _Age | None = "90d"
    keep_last: Annotated[int, Field(ge=1), expecting("a whole number from 1")] | None = 10
    keep_baselines: Annotated[bool, expecting("true or false")] = True
    grace: _Age = "1d"


def retention_settings(folder: Path) -> RetentionSettings:
    """The settings in the folder's file, or the defaults. UsageError for a file that is not in its form."""
    return load_form(folder / RETENTION_FILE, RetentionSettings) or RetentionSettings()
