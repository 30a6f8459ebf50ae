"""Store baselines with everything needed to reproduce them, and plan to remeasure them on a new software stack.

`aaco_pipeline.pipeline.comparing.running` updates the rolling baseline after a night.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, LakeError, UsageError
from aaco_pipeline.lake.artefacts import keep_artefact
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.campaigns import new_name, publish
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan
from aaco_pipeline.resources.host.facts import changes_of_stack
from aaco_pipeline.resources.measure.inference import plan as resolved
from aaco_pipeline.resources.measure.models import model_digest, weights_beside

STAGE: Final = "baseline"
Kind = Literal["pinned", "rolling"]
Facts = Mapping[str, str | None]


def keep(lake: TraceLake, request: MeasurementRequest, configs: Path) -> Path:
    """Copy the current model of `request` with its weights to the lake, and return its path there.

    AacoError if there is no such model.
    """
    model, _ = resolved(request, configs)
    return keep_artefact(lake.path, model.path, weights_beside(model.path))


def pin(
    lake: TraceLake,
    request: MeasurementRequest,
    configs: Path,
    *,
    kind: Kind = "pinned",
    campaign: str | None = None,
    fingerprint: str | None = None,
) -> str:
    """Store the current state of `request` as its workload's baseline, and return the baseline's id.

    The model file is copied to the lake, so that the baseline can be measured after the original has changed. The
    model's registration is not stored, because it applies to both arms. AacoError if there is no such model.
    """
    kept = keep(lake, request, configs)
    identifier, now = new_name("baseline")
    row = {
        "workload": Path(request.model).stem,
        "backend": request.backend,
        "kind": kind,
        "specification": request.model_copy(update={"artefact": None}).to_json(),
        "artefact": kept.as_posix(),
        "artefact_sha256": model_digest(lake.path / kept),
        "fingerprint": fingerprint,
        "campaign": campaign,
        "since": now,
        "is_retired": False,
    }
    publish(lake, identifier, STAGE, {"baselines": [row]})
    return identifier


def retire(lake: TraceLake, identifier: str) -> None:
    """Retire a baseline; campaigns that used it can still read it. UsageError if it does not exist."""
    row = lake.read("baselines", identifier)
    if row.is_empty():
        raise UsageError(f"no baseline {identifier!r} in {lake.path}; `aaco baseline ls` lists them")
    retired = row.drop("campaign_id").with_columns(pl.lit(True).alias("is_retired"))
    publish(lake, identifier, STAGE, {"baselines": retired})


def baselines(lake: TraceLake) -> pl.DataFrame:
    """Read all baselines, newest first; `is_current` marks the newest active one of its kind and environment."""
    found = lake.read("baselines").sort("since", "campaign_id", descending=True)
    rank = (
        pl.col("since")
        .rank("ordinal", descending=True)
        .over("workload", "backend", "kind", "fingerprint", "is_retired")
    )
    return found.with_columns((~pl.col("is_retired") & (rank == 1)).alias("is_current"))


def current(
    lake: TraceLake, workload: str, backend: str, kind: Kind = "pinned", fingerprint: str | None = None
) -> Mapping[str, Any] | None:
    """Find the row of a workload's current baseline; None if there is none.

    A baseline of the environment `fingerprint` is preferred, otherwise the newest: it is remeasured with the candidate,
    so that a different environment affects both.
    """
    wanted = (pl.col("workload") == workload) & (pl.col("backend") == backend) & (pl.col("kind") == kind)
    rows = baselines(lake).filter(wanted & pl.col("is_current"))
    own = rows.filter(pl.col("fingerprint").eq_missing(pl.lit(fingerprint, pl.String)))
    best = own if own.height else rows
    return best.row(0, named=True) if best.height else None


def arm_of(lake: TraceLake, row: Mapping[str, Any]) -> Subject:
    """Return the arm that measures a stored baseline; LakeError if it or its weights have changed."""
    file = lake.path / row["artefact"]
    try:
        digest = model_digest(file)
    except OSError as error:
        raise LakeError(f"{error.filename}: {error.strerror}; pin the baseline again: `aaco baseline pin`") from error
    if digest != row["artefact_sha256"]:
        raise LakeError(f"{file}: not what was pinned, or its weights; pin the baseline again: `aaco baseline pin`")
    request = MeasurementRequest.from_json(row["specification"], f"baseline {row['campaign_id']}")
    return Subject(request.model_copy(update={"artefact": str(file)}), file, digest, baseline=row["campaign_id"])


@dataclass(frozen=True)
class Memory:
    """The last known stack of each host: the content of the sensor's cursor."""

    hosts: Mapping[str, Facts]

    @staticmethod
    def from_text(text: str | None) -> "Memory":
        return Memory(json.loads(text) if text else {})

    def to_text(self) -> str:
        return json.dumps(self.hosts, sort_keys=True)

    def seeing(self, host: str, facts: Facts) -> "Memory":
        """Return the state with a host's current stack; facts that cannot be read now are kept."""
        known = {name: value for name, value in facts.items() if value is not None}
        return Memory({**self.hosts, host: {**self.hosts.get(host, facts), **known}})

    def changes(self, host: str, facts: Facts) -> list[str] | None:
        """Describe the changes since the host was last seen; None on first sight."""
        return changes_of_stack(self.hosts[host], facts) if host in self.hosts else None


def fingerprint_of(facts: Facts) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 over the facts, sorted by name."""
    return sha256(json.dumps(sorted(facts.items())).encode()).hexdigest()[:16]


def plans_of_stack(lake: TraceLake) -> tuple[list[Plan], list[str]]:
    """Plan a campaign for each workload and backend with a baseline; also list baselines that cannot be measured.

    Both arms are the baseline: with unchanged code, any difference from earlier nights comes from the stack. A pinned
    baseline is preferred to a rolling one, because it stays the same for longer.
    """
    plans, notes = [], []
    rows = baselines(lake).filter("is_current").sort("workload", "backend", "kind")
    for row in rows.unique(["workload", "backend"], keep="first", maintain_order=True).iter_rows(named=True):
        try:
            arm = arm_of(lake, row)
            plans.append(new_plan("stack", {"baseline": arm, "candidate": arm}, traced_blocks=0))
        except AacoError as error:
            notes.append(str(error))
    return plans, notes
