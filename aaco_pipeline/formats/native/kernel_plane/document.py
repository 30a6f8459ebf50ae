"""The form of `kernel_plane.json`: what a recording says of its events, its files and what it could not do."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.formats.native.checks import Whole


class _Event(TypedDict):
    format: str | None
    reason: str | None


class _Buffer(TypedDict):
    instance: Literal["threads", "switches"]
    cpu: Annotated[int, Field(ge=0, lt=2**20)]
    file: str
    stats: dict[str, Whole]


class _Throttling(TypedDict):
    monotonic_ns: Whole
    throttled: Whole
    throttled_ns: Whole


class Document(TypedDict):
    state: str
    source: str
    machine: str
    reason: str | None
    processes: dict[str, Whole]
    events: dict[str, _Event]
    buffers: list[_Buffer]
    throttling: list[_Throttling]
    remarks: list[str]
