"""Statements about a stage's input, as rows of the table `evidence`.

Every stage builds its rows with this module and publishes them itself.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import polars as pl

Status = Literal["present", "absent", "invalid", "partial"]
#: Items for a tool's own loss reports, with its count in `rows` if it gives one.
DROPPED: Final = "records dropped by the tool"
OUT_OF_RANGE: Final = "records outside the recording by the tool"
STOPPED: Final = "recording stopped early by the tool"
#: Graph launches recorded as a single unit with hidden kernels, and the suffix of such a record's name.
WHOLE_GRAPHS: Final = "graph launches recorded as one piece"
AS_A_WHOLE: Final = ", recorded as a whole"


@dataclass(frozen=True)
class Evidence:
    """An item that a stage looked for: its status, and a reason unless it is present. `source` is a file or a tool."""

    item: str
    status: Status
    reason: str | None = None
    source: str | None = None
    rows: int | None = None
    sha256: str | None = None


def evidence_frame(stage: str, items: Iterable[Evidence]) -> "pl.DataFrame":
    """Build the rows of `evidence` for `stage`; an item that is not fully present must have a reason."""
    import polars as pl

    from aaco_pipeline.lake.contracts import polars_types

    listed = list(items)
    for item in listed:
        if item.status != "present" and not item.reason:
            raise ValueError(f"evidence {item.item!r} of stage {stage} is {item.status} without a reason")
    schema = polars_types("evidence")
    return pl.DataFrame([{"stage": stage, **asdict(item)} for item in listed], schema=schema)
