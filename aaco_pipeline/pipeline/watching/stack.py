"""What a new stack of this host asks for: the baselines measured anew, so that their nights before and after compare.

Reading the stack is `aaco_pipeline.resources.host.stack`; comparing the nights is `pipeline.comparing.stack_change`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.baselines import arm_of, baselines
from aaco_pipeline.pipeline.comparing.plan import Plan, new_plan
from aaco_pipeline.resources.host.stack import changes_of_stack

Facts = Mapping[str, str | None]


@dataclass(frozen=True)
class Memory:
    """The stack of each host as it was last seen: what the sensor's cursor holds."""

    hosts: Mapping[str, Facts]

    @staticmethod
    def from_text(text: str | None) -> "Memory":
        return Memory(json.loads(text) if text else {})

    def to_text(self) -> str:
        return json.dumps(self.hosts, sort_keys=True)

    def seeing(self, host: str, facts: Facts) -> "Memory":
        """With a host's stack as it is now; what cannot be read now stays as it was known."""
        known = {name: value for name, value in facts.items() if value is not None}
        return Memory({**self.hosts, host: {**self.hosts.get(host, facts), **known}})

    def changes(self, host: str, facts: Facts) -> list[str] | None:
        """What changed since the host was last seen, in words; None at first sight."""
        return changes_of_stack(self.hosts[host], facts) if host in self.hosts else None


def fingerprint_of(facts: Facts) -> str:
    """The first 16 hexadecimal digits of the SHA-256 over the facts, sorted by name."""
    return sha256(json.dumps(sorted(facts.items())).encode()).hexdigest()[:16]


def plans_of_stack(lake: TraceLake) -> tuple[list[Plan], list[str]]:
    """A campaign for each workload and backend with a baseline, and in words which baselines cannot be measured.

    Its arms are the baseline twice: unchanged code, so that whatever differs from the nights before is the stack's. Of
    a pinned and a rolling baseline the pinned one is measured, which stays the same for longer.
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
