"""Marking what a lake held before there were markers, and what a kill or an earlier version left without one.

A marker says that a session or campaign was committed: without its manifest it is a loss that is named. It is made
after a first manifest and removed before it, by `aaco_pipeline.lake.store`; where it lies is
`aaco_pipeline.lake.layout`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from aaco_pipeline.errors import PassingLakeError
from aaco_pipeline.lake.catalogue.documents import portions
from aaco_pipeline.lake.catalogue.manifests import Catalogue
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, MARKED, MARKERS, LakeFolder


def mark_earlier(lake: LakeFolder, but: str | None = None) -> None:
    """Mark every session and campaign whose manifest is readable, and state that it was done, unless one is in work.

    One that a writer holds is left to it, and `but` to the caller, who is about to commit it.
    """
    folder, due = lake.path / MANIFESTS, dict[Scope, list[str]]()
    if lake.storage.names(folder):
        with Catalogue(lake) as known:
            for scope, identifier in _unmarked(lake, known.committed()):
                if identifier != but:
                    due.setdefault(scope, []).append(identifier)
    done = [mark(lake, scope, identifiers) for scope, identifiers in due.items()]
    if all(done):
        lake.storage.create(folder, [MARKED])


def unmarked(lake: LakeFolder, committed: Iterable[tuple[Scope, str]]) -> Iterator[tuple[Scope, str]]:
    """Those of the committed sessions and campaigns that nobody will mark by himself; in an earlier lake none."""
    if lake.storage.state(lake.path / MANIFESTS / MARKED) is None:
        return  # the next writer marks all
    for scope, identifier in _unmarked(lake, committed):
        # The lock is held from the manifest to the marker, so that one seen free in between was left by a writer.
        if not lake.storage.is_held(lake.lock_path(identifier)) and _is_unmarked(lake, identifier, scope):
            yield scope, identifier


def _unmarked(lake: LakeFolder, committed: Iterable[tuple[Scope, str]]) -> Iterator[tuple[Scope, str]]:
    marked = {scope: {*lake.marked(scope)} for scope in MARKERS}
    return ((scope, one) for scope, one in committed if one not in marked[scope])


def mark(lake: LakeFolder, scope: Scope, identifiers: Sequence[str]) -> bool:
    """Mark those that have a manifest. False when a writer is at work on one, which is left to it."""
    is_done = True
    for some in portions(identifiers):
        with ExitStack() as held:
            found = []
            for one in some:
                try:
                    held.enter_context(lake.locked(one, scope, wait_seconds=0.0))
                except PassingLakeError:
                    is_done = False
                    continue
                if lake.storage.state(lake.manifest_path(one, scope)) is not None:
                    found.append(one)
                else:  # removed meanwhile, with its lock
                    lake.storage.drop_lock(lake.lock_path(one))
            if found:
                with lake_errors(lake.path / MARKERS[scope]):
                    lake.storage.create(lake.path / MARKERS[scope], found)
    return is_done


def _is_unmarked(lake: LakeFolder, identifier: str, scope: Scope) -> bool:
    marker, manifest = lake.marker_path(identifier, scope), lake.manifest_path(identifier, scope)
    return lake.storage.state(marker) is None and lake.storage.state(manifest) is not None
