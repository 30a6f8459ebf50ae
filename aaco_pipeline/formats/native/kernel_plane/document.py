"""The form of `kernel_plane.json`: what a recording says of its events, its files and what it could not do."""

from typing import Annotated, Literal, NotRequired

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


class _Reading(TypedDict):
    monotonic_ns: Whole


class _Clocks(TypedDict):
    before: _Reading
    after: _Reading


class _Clock(TypedDict):
    to_monotonic_ns: Whole


class _Trace(TypedDict):
    file: str
    clock: _Clock
    lost: Whole


class Document(TypedDict):
    state: str
    source: Literal["tracefs", "perf", "bpftrace"]
    machine: str
    reason: str | None
    processes: dict[str, Whole]
    events: dict[str, _Event]
    buffers: list[_Buffer]
    throttling: list[_Throttling]
    remarks: list[str]
    #: When the recording began and ended.
    clock: NotRequired[_Clocks]
    #: What another source than tracefs wrote.
    trace: NotRequired[_Trace | None]
