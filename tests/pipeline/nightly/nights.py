"""Nights whose sessions nobody measured: a model's file says how long it takes, and a clock that the test moves.

Plans, judging and alerts are real.
"""

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing import measuring, running
from aaco_pipeline.pipeline.nightly.benchmarks import load_benchmarks
from aaco_pipeline.pipeline.nightly.night import Begun, begin_due, due_now
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.report.made_up import rows_of

ITERATIONS: Final = 60
BETWEEN_SESSIONS: Final = timedelta(seconds=10)


@dataclass
class Nights:
    """A project with a model, and what happens in it. `environment` is what the sessions find on the host."""

    lake: TraceLake
    configs: Path
    now: datetime
    environment: str = "stack 1"
    measured: list[str] = field(default_factory=list)

    @property
    def runner(self) -> InferenceRunner:
        return InferenceRunner(configs=str(self.configs))

    def model(self, median_ns: int, name: str = "m") -> None:
        """The model's file at its place, which takes so long from now on."""
        (self.configs / f"{name}.onnx").write_text(f"{median_ns}")

    def settings(self, *entries: str) -> None:
        """The file of the nights; an entry is what it says beside the usual."""
        lines = "".join(f"  - {{sessions: 6, traced: 0, {entry}}}\n" for entry in entries)
        (self.configs / "nightly.yaml").write_text(f"benchmarks:\n{lines}")

    def begin(self) -> Begun:
        return begin_due(self.lake, self.runner, load_benchmarks(self.configs), self.now)

    def night(self) -> list[str]:
        """Everything that is due now, one campaign after another; their ids."""
        self.begin()
        campaigns = due_now(self.lake, [], self.now).go_on
        for campaign in campaigns:
            running.run(self.configs, self.lake, campaign)
        return campaigns

    def events(self) -> list[tuple[str, str]]:
        """Night and event of all alerts, in their order."""
        rows = self.lake.read("alerts").sort("at").select("night", "event").iter_rows()
        return [(f"{night:%d}" if night else "person", event) for night, event in rows]

    def rolling(self) -> pl.DataFrame:
        return self.lake.read("baselines").filter(pl.col("kind") == "rolling").sort("since")

    # ---- what measuring would do -------------------------------------------------------------------------------------

    def capture(self, request: Any, folder: Path, *others: Any, **more: Any) -> None:
        """The raw capture of one session: how long its file says it takes, and when it began."""
        self.now += BETWEEN_SESSIONS
        self.measured.append(request.arm)
        (folder / "took").write_text(f"{Path(request.artefact).read_text()} {request.block} {self.now.isoformat()}")

    def finish(self, lake: TraceLake, session: str, configs: Path) -> bool:
        """The tables of one session."""
        median_ns, block, began = (lake.raw(session) / "took").read_text().split()
        seed = np.random.default_rng(len(self.measured) + int(block) + sum(session.encode()))
        level = int(median_ns) * (1 + 0.01 * np.sin(int(block))) * (1 + 0.002 * seed.standard_normal())
        took = np.rint(level * (1 + 0.01 * seed.standard_normal(ITERATIONS))).astype(np.int64)
        ends = np.cumsum(took)
        iterations = pl.DataFrame(
            {"iteration": range(ITERATIONS), "start_ns": ends - took, "end_ns": ends, "latency_ns": took}
        ).with_columns(pl.lit("latency").alias("pass"), phase=pl.lit("measure"))
        what = {"source_kind": "live", "host": platform.node(), "fingerprint": self.environment}
        facts = (("boot", "id", "boot 1"), ("identity", "machine", "machine 1"), ("driver", "version", "1"))
        tables = {
            "sessions": rows_of("sessions", [{**what, "started_at": datetime.fromisoformat(began)}]),
            "environment": rows_of(
                "environment", [{"category": one, "key": key, "value": value} for one, key, value in facts]
            ),
            "iterations": rows_of("iterations", iterations.to_dicts()),
        }
        lake.publish(session, "capture", tables)
        return True


def nights(lake: TraceLake, configs: Path, patch: pytest.MonkeyPatch) -> Nights:
    """A project of one benchmark, two weeks ago at 02:00."""
    configs.mkdir(parents=True)
    began = datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=14)
    made = Nights(lake, configs, began)
    patch.setattr(measuring, "capture_inference", made.capture)
    patch.setattr(measuring, "finish_session", made.finish)
    made.model(1_000_000)
    made.settings("model: m.onnx")
    return made
