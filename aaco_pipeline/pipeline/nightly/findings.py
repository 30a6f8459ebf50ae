"""Find regressions and confirmed alerts in the lake, and report each of them once.

Starting the configured command is `aaco_pipeline.resources.project_settings`; the sensor is
`aaco_pipeline.automation.watching`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.files import lake_errors, make_folder, write_atomically
from aaco_pipeline.lake.layout import FINDINGS
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.campaign import REGRESSIONS, verdict_document
from aaco_pipeline.report.comparing.verdict import sentence
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.project_settings import Hook, run_hook

#: Campaigns whose verdicts wait for a second time slot.
_OF_NIGHTS: Final = "nightly"
_ALERTS: Final = "alerts"
_CONFIRMED: Final = "confirmed"
_TIME: Final = re.compile(r"-(\d{8}T\d{6}Z)-")


@dataclass(frozen=True)
class Finding:
    """One thing to tell once: a key that names it for ever, a sentence, and the document for programs."""

    key: str
    sentence: str
    document: dict[str, Any]


def findings(lake: TraceLake, since: datetime) -> list[Finding]:
    """What the campaigns that were planned at `since` or later have found, in the order of their names."""
    recent = [one for one in lake.manifests("campaign") if _planned(one.id) >= since]
    return [finding for manifest in recent for finding in (*_verdicts(lake, manifest), *_alerts(lake, manifest))]


def _planned(campaign: str) -> datetime:
    """The second that a campaign's name states; now and for ever where it states none."""
    found = _TIME.search(campaign)
    if found is None:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def _verdicts(lake: TraceLake, manifest: Manifest) -> Iterator[Finding]:
    if not any(entry.rows for entry in manifest.of_table("verdicts")):
        return
    if lake.read("campaigns", manifest.id).get_column("kind").cast(pl.String).to_list() == [_OF_NIGHTS]:
        return
    rows = lake.read("verdicts", manifest.id).filter(
        pl.col("verdict").is_in(REGRESSIONS) & (pl.col("role").cast(pl.String) == "primary")
    )
    for candidate in rows.get_column("candidate").cast(pl.String).sort():
        document = verdict_document(lake, manifest.id, candidate)
        told = {"kind": "verdict", "sentence": sentence(document), **document}
        yield Finding(f"{manifest.id}.{candidate}", told["sentence"], told)


def _alerts(lake: TraceLake, manifest: Manifest) -> Iterator[Finding]:
    if _ALERTS not in all_tables() or not any(entry.rows for entry in manifest.of_table(_ALERTS)):
        return
    rows = lake.read(_ALERTS, manifest.id).filter(pl.col("event").cast(pl.String) == _CONFIRMED)
    for row in rows.iter_rows(named=True):
        effect = "" if row["effect_ratio"] is None else f", {row['effect_ratio']:.3f} times as long"
        told = f"Confirmed: {row['workload']} on {row['backend']} regressed{effect}; {'; '.join(row['reasons'])}."
        plain = {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
        yield Finding(f"{row['alert']}.{_CONFIRMED}", told, {"kind": "alert", "sentence": told, **plain})


#: The first attempt to run the command, and one more.
MOST_ATTEMPTS: Final = 2
Log = Callable[[str], None]


def tell(lake: TraceLake, found: Iterable[Finding], hook: Hook | None, log: Log) -> list[str]:
    """Tell what was not told before, and try failed commands once more; what was done, in words, for each."""
    return [done for finding in found if (done := _tell(lake, finding, hook, log)) is not None]


def _tell(lake: TraceLake, finding: Finding, hook: Hook | None, log: Log) -> str | None:
    path = lake.path / FINDINGS / f"{_file_name(finding.key)}.json"
    known = _known(path)
    if known is None:
        log(in_a_line(finding.sentence))
        known = {**finding.document, "command": {"attempts": 0, "done": hook is None, "failure": None}}
        _write(path, known)
        if hook is None:
            return f"told {finding.key}"
    attempts = known["command"]["attempts"]
    if known["command"]["done"] or attempts >= MOST_ATTEMPTS or hook is None:
        return None
    known["command"] = {"attempts": attempts + 1, "done": False, "failure": "it was killed"}
    _write(path, known)
    failure = run_hook(hook, finding.document)
    known["command"] |= {"done": failure is None, "failure": failure}
    _write(path, known)
    if failure is None:
        return f"told {finding.key}, command run"
    left = "tried once more at the next look" if attempts + 1 < MOST_ATTEMPTS else "not tried again"
    log(in_a_line(f"the command for {finding.key} failed, {left}: {failure}"))
    return f"the command for {finding.key} failed: {failure}"


def _known(path: Path) -> dict[str, Any] | None:
    with lake_errors(path):
        if not path.exists():
            return None
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document


def _write(path: Path, document: dict[str, Any]) -> None:
    with lake_errors(path):
        make_folder(path.parent)
        write_atomically(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def _file_name(key: str) -> str:
    """A key as part of a path: names of alerts are made by others."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", key).lstrip(".")
