"""The manifest of a session or campaign: which tables are published, by which version of which stage.

This module contains its text format, its checks and the progress derived from it. `aaco_pipeline.lake.store` decides
when a manifest is replaced.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.declaration import Scope

#: The digest of all other bytes comes first, at a fixed offset; it sorts before all other keys.
_HEAD: Final = b'{\n "digest": "'
_DIGITS: Final = 64


def seal(document: Mapping[str, object]) -> bytes:
    """Encode a document as JSON that begins with a digest of the rest. No key may sort before `digest`."""
    text = json.dumps({"digest": "", **document}, indent=1, sort_keys=True) + "\n"
    rest = text.encode().removeprefix(_HEAD)
    return _HEAD + _digest(rest) + rest


def is_sealed(content: bytes) -> bool:
    """Return whether the text begins with a digest. ValueError if it does not match the bytes after it."""
    if not content.startswith(_HEAD):
        return False
    if content[len(_HEAD) :][:_DIGITS] != _digest(content[len(_HEAD) + _DIGITS :]):
        raise ValueError("its bytes are not those that were written")
    return True


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode()


#: Version 2: a table without rows has no file, and the key column is only in a file's path. Version 3 adds the digest
#: and the stages. Earlier versions are still read.
MANIFEST_VERSION: Final = 3
#: Views are generated on request; an earlier version counted them among the stages of a session.
VIEWS: Final = frozenset({"perfetto_trace", "report"})
#: Maximum number of lost manifests named in one message.
_NAMED: Final = 5
#: A stage reads a dozen tables of the same few sessions, and `aaco sql` reads all twice: parse each manifest once.
_REMEMBERED: Final = 256


class Entry(NamedTuple):
    """One published table: `file` is relative to the lake, `sha256` covers its bytes; both are "" without rows."""

    table: str
    stage: str
    file: str
    rows: int
    bytes: int
    sha256: str
    contract_version: int


class StageState(NamedTuple):
    """A stage that has run: its code version ("" if unknown), and one line on why its last run failed.

    `failure` is None if the last run published. A failed run leaves earlier publications in place.
    """

    stage: str
    code_version: str
    failure: str | None


class Artifact(NamedTuple):
    """A view stored next to the tables (a trace or a page): like an `Entry`, plus a digest of its sources.

    `rests_on` is that digest, "" if an earlier version generated the view.
    """

    stage: str
    file: str
    bytes: int
    sha256: str
    rests_on: str = ""


_VALUES: Final = itemgetter(*Entry._fields)
_TYPES: Final = (str, str, str, int, int, str, int)


@dataclass(frozen=True)
class Manifest:
    """All entries and stages of one session or campaign, sorted so that equal content gives equal bytes.

    `expected` lists a session's expected stages in execution order; () if never stated. `stated` holds facts by name
    that the user added to those in the capture.
    """

    scope: Scope
    id: str
    entries: tuple[Entry, ...] = field(default=())
    stages: tuple[StageState, ...] = field(default=())
    expected: tuple[str, ...] = field(default=())
    artifacts: tuple[Artifact, ...] = field(default=())
    stated: tuple[tuple[str, str], ...] = field(default=())

    def with_stage(self, stage: str, entries: Iterable[Entry], code_version: str = "") -> "Manifest":
        """Replace everything that `stage` published before with `entries`, and clear its failure."""
        kept = [entry for entry in self.entries if entry.stage != stage]
        state = StageState(stage, code_version, None)
        return replace(self, entries=tuple(sorted([*kept, *entries])), stages=self._stages_but(stage, state))

    def with_failure(self, stage: str, code_version: str, reason: str) -> "Manifest":
        """Record that the last run of `stage` failed; its earlier publications stay."""
        return replace(self, stages=self._stages_but(stage, StageState(stage, code_version, " ".join(reason.split()))))

    def with_artifact(self, artifact: Artifact) -> "Manifest":
        """Record the current state of one file next to the tables."""
        others = (one for one in self.artifacts if one.file != artifact.file)
        return replace(self, artifacts=tuple(sorted([*others, artifact])))

    def without_file(self, file: str) -> "Manifest":
        """Drop the entry of one table's file."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.file != file))

    def expecting(self, stages: Sequence[str]) -> "Manifest":
        """Set the session's expected stages, in execution order."""
        return replace(self, expected=tuple(stages))

    def stating(self, facts: Mapping[str, str]) -> "Manifest":
        """Add facts stated by the user; they replace earlier facts of the same names."""
        return replace(self, stated=tuple(sorted({**dict(self.stated), **facts}.items())))

    def of_table(self, table: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.table == table)

    def artifact(self, file: str) -> Artifact | None:
        """Return the recorded file at this path in the lake, or None."""
        return next((one for one in self.artifacts if one.file == file), None)

    def of_stage(self, stage: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.stage == stage)

    @property
    def on_disk(self) -> list[Entry]:
        """Return every published table that has a file. Views are excluded: a missing one is generated again."""
        return [entry for entry in self.entries if entry.file]

    @property
    def files(self) -> set[str]:
        """Return every published table's file, relative to the lake."""
        return {entry.file for entry in self.entries if entry.file}

    def to_bytes(self) -> bytes:
        document = {
            "manifest_version": MANIFEST_VERSION,
            "scope": self.scope,
            "id": self.id,
            "expected": self.expected,
            "stages": [state._asdict() for state in self.stages],
            "entries": [entry._asdict() for entry in self.entries],
            "files": [one._asdict() for one in self.artifacts],
            **({"stated": dict(self.stated)} if self.stated else {}),
        }
        return seal(document)

    @staticmethod
    @lru_cache(_REMEMBERED)
    def from_bytes(content: bytes, source: str) -> "Manifest":
        """Parse and check a manifest read from `source`; LakeError if it is newer or damaged."""
        try:
            has_digest = is_sealed(content)
            document = json.loads(content)
            version = document["manifest_version"]
            if version > MANIFEST_VERSION:
                raise NewerManifestError(
                    f"{source}: manifest version {version} is newer than {MANIFEST_VERSION}, the newest this "
                    "aaco_pipeline reads; upgrade aaco_pipeline"
                )
            if version >= 3 and not has_digest:
                raise ValueError("it does not begin with its digest")
            scope, identifier = document["scope"], document["id"]
            if scope not in ("session", "campaign") or not isinstance(identifier, str):
                raise ValueError("scope or id is not as expected")
            entries = tuple(sorted(map(_entry, document["entries"])))
            if version < 3:
                ran = {entry.stage for entry in entries} - VIEWS
                stages = tuple(StageState(name, "", None) for name in sorted(ran))
                return Manifest(scope, identifier, entries, stages)
            expected = document["expected"]
            if not isinstance(expected, list) or not all(isinstance(name, str) for name in expected):
                raise TypeError(f"expected stages {expected!r} are not as expected")
            artifacts = tuple(sorted(map(_artifact, document["files"])))
            expected = [name for name in expected if name not in VIEWS]
            states, stated = _states(document["stages"]), _facts(document.get("stated", {}))
            return Manifest(scope, identifier, entries, states, tuple(expected), artifacts, stated)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{source}: not a manifest ({error}); `aaco doctor --mend` rebuilds it") from error

    def _stages_but(self, stage: str, *states: StageState) -> tuple[StageState, ...]:
        return tuple(sorted([*(state for state in self.stages if state.stage != stage), *states]))


class NewerManifestError(LakeError):
    """A manifest written by a later version of this package: it is intact and must not be touched."""


class LostManifestError(LakeError):
    """Manifests of committed sessions or campaigns are missing."""

    def __init__(self, path: Path, *others: Path) -> None:
        what = f"{path}: lost, and with it what {path.stem} published"
        if others:
            lost = [one.stem for one in (path, *others)]
            named = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
            what = f"{path.parent}: {len(lost)} manifests are lost, and with them what these published: {named}"
        accepted = "ID" if others else path.stem
        super().__init__(
            f"{what}; `aaco doctor --mend` rebuilds what can be rebuilt, `aaco rm {accepted}` accepts the loss"
        )


class MisnamedManifestError(LakeError):
    """A manifest has the wrong file name; `identifier` is the session or campaign it belongs to."""

    def __init__(self, path: Path, identifier: str) -> None:
        super().__init__(f"{path}: this is the manifest of {identifier}; `aaco doctor --mend` puts it back")
        self.identifier = identifier


def manifest_of_file(content: bytes, path: Path) -> Manifest:
    """Parse the manifest in a file. LakeError if it is newer, damaged or misnamed."""
    manifest = Manifest.from_bytes(content, str(path))
    if manifest.id != path.stem:
        raise MisnamedManifestError(path, manifest.id)
    return manifest


def _entry(item: dict[str, Any]) -> Entry:
    entry = Entry._make(_VALUES(item))
    if tuple(map(type, entry)) != _TYPES or (entry.rows and not entry.file):
        raise TypeError(f"entry {tuple(entry)!r} is not as expected")
    _require_inside(entry.file)
    return entry


def _artifact(item: dict[str, Any]) -> Artifact:
    artifact = Artifact(item["stage"], item["file"], item["bytes"], item["sha256"], item.get("rests_on", ""))
    if tuple(map(type, artifact)) != (str, str, int, str, str):
        raise TypeError(f"artifact {tuple(artifact)!r} is not as expected")
    _require_inside(artifact.file)
    return artifact


def _require_inside(file: str) -> None:
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError(f"file {file!r} leaves the lake")


def _facts(item: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(item, dict) or not all(isinstance(text, str) for pair in item.items() for text in pair):
        raise TypeError(f"stated facts {item!r} are not as expected")
    return tuple(sorted(item.items()))


def _states(items: list[dict[str, Any]]) -> tuple[StageState, ...]:
    states = sorted(StageState(item["stage"], item["code_version"], item["failure"]) for item in items)
    for state in states:
        if not (isinstance(state.code_version, str) and isinstance(state.failure, str | None)):
            raise TypeError(f"stage {tuple(state)!r} is not as expected")
    if len({state.stage for state in states}) < len(states):
        raise ValueError("a stage is stated twice")
    return tuple(state for state in states if state.stage not in VIEWS)


@dataclass(frozen=True)
class Progress:
    """The stages of one session. `expected` is in execution order; () if never stated.

    `published` are the stages whose last run published, `failed` those whose last run failed (their earlier
    publications remain), `missing` the expected ones that never ran.
    """

    expected: tuple[str, ...]
    published: tuple[StageState, ...]
    failed: tuple[StageState, ...]
    missing: tuple[str, ...]

    @property
    def is_whole(self) -> bool | None:
        """True if every expected stage has published and none failed; None if no stages are expected."""
        if self.failed or self.missing:
            return False
        return True if self.expected else None

    @property
    def unpublished(self) -> tuple[str, ...]:
        """Return the expected stages that failed or never ran, in execution order."""
        return not_in(self.expected, self.published)

    @property
    def count(self) -> str:
        """Return the number of expected stages that have published, as `3 of 14 stages`."""
        return f"{len(self.expected) - len(self.unpublished)} of {len(self.expected)} stages"

    def as_document(self) -> dict[str, Any] | None:
        """Return the same for JSON; None if no stages are expected."""
        if not self.expected:
            return None
        return {
            "published": len(self.expected) - len(self.unpublished),
            "expected": len(self.expected),
            "failed": [{"stage": state.stage, "reason": state.failure} for state in self.failed],
            "missing": list(self.missing),
        }


def progress_of(manifest: Manifest) -> Progress:
    """Derive the progress of a session from its manifest."""
    return Progress(
        manifest.expected,
        tuple(state for state in manifest.stages if state.failure is None),
        tuple(state for state in manifest.stages if state.failure is not None),
        not_in(manifest.expected, manifest.stages),
    )


def not_in(names: Sequence[str], states: Sequence[StageState]) -> tuple[str, ...]:
    """Return the `names` without a state."""
    known = {state.stage for state in states}
    return tuple(name for name in names if name not in known)
