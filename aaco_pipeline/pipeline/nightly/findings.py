"""Find regressions and confirmed alerts in the lake, and report each of them once.

`aaco_pipeline.resources.project_settings` runs the configured command; the sensor is in
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

from aaco_pipeline.lake.files import lake_errors, make_folder, write_atomically
from aaco_pipeline.lake.layout import FINDINGS
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.campaign import REGRESSIONS, verdict_document
from aaco_pipeline.report.comparing.verdict import sentence
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.project_settings import Hook, run_hook

#: Kinds of campaign whose verdicts await a second time slot.
_OF_NIGHTS: Final = "nightly"
_CONFIRMED: Final = "confirmed"
_TIME: Final = re.compile(r"-(\d{8}T\d{6}Z)-")
#: Maximum number of attempts to run the command.
MOST_ATTEMPTS: Final = 2
Log = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """A finding to report once: a permanent key, a sentence, and the document for other programs."""

    key: str
    sentence: str
    document: dict[str, Any]


def findings(lake: TraceLake, since: datetime) -> list[Finding]:
    """Find reportable results of campaigns planned at `since` or later, sorted by name."""
    recent = [one for one in lake.manifests("campaign") if _planned(one.id) >= since]
    return [finding for manifest in recent for finding in (*_verdicts(lake, manifest), *_alerts(lake, manifest))]


def _planned(campaign: str) -> datetime:
    """Return the time in a campaign's name; the maximum time if the name has none."""
    stated = _TIME.search(campaign)
    return datetime.strptime(f"{stated[1]}+0000", "%Y%m%dT%H%M%SZ%z") if stated else datetime.max.replace(tzinfo=UTC)


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
    if not any(entry.rows for entry in manifest.of_table("alerts")):
        return
    rows = lake.read("alerts", manifest.id).filter(pl.col("event").cast(pl.String) == _CONFIRMED)
    for row in rows.iter_rows(named=True):
        effect = "" if row["effect_ratio"] is None else f", {row['effect_ratio']:.3f} times as long"
        told = f"Confirmed: {row['workload']} on {row['backend']} regressed{effect}; {'; '.join(row['reasons'])}."
        plain = {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
        yield Finding(f"{row['alert']}.{_CONFIRMED}", told, {"kind": "alert", "sentence": told, **plain})


def tell(lake: TraceLake, found: Iterable[Finding], hook: Hook | None, log: Log) -> list[str]:
    """Report new findings and retry failed commands; return a description of each action.

    A finding is reported as a log line, a JSON file in the lake and a run of the configured command. The file also
    marks the finding as reported. Each attempt is recorded before the command runs, so that a kill causes at most one
    more.
    """
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


def _known(path: Path) -> Any:
    with lake_errors(path):
        return json.loads(path.read_bytes()) if path.exists() else None


def _write(path: Path, document: dict[str, Any]) -> None:
    with lake_errors(path):
        make_folder(path.parent)
        write_atomically(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def _file_name(key: str) -> str:
    """Make a key safe for use in a path, because alerts are named after workloads."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", key).lstrip(".")
