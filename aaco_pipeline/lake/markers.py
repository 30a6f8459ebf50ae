"""Marking what a lake held before there were markers, and what a kill or an earlier version left without one.

A marker says that a session or campaign was committed: without its manifest it is a loss that is named. It is made
after a first manifest and removed before it, by `aaco_pipeline.lake.store`; where it lies is
`aaco_pipeline.lake.layout`.
"""

from collections.abc import Iterable, Iterator

from aaco_pipeline.errors import PassingLakeError
from aaco_pipeline.lake.catalogue.manifests import Catalogue
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.layout import MANIFESTS, MARKED, MARKERS, LakeFolder


def mark_earlier(lake: LakeFolder, but: str | None = None) -> None:
    """Mark every session and campaign whose manifest is readable, and state that it was done, unless one is in work.

    One that a writer holds is left to it, and `but` to the caller, who is about to commit it.
    """
    folder, left = lake.path / MANIFESTS, False
    if lake.storage.names(folder):
        with Catalogue(lake) as known:
            found = known.committed()
        for scope, identifier in _unmarked(lake, found):
            left = not (identifier == but or mark(lake, identifier, scope)) or left
    if not left:
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


def mark(lake: LakeFolder, identifier: str, scope: Scope) -> bool:
    """Mark a session or campaign that has a manifest; False when a writer is at work on it."""
    try:
        with lake.locked(identifier, scope, wait_seconds=0.0):
            if lake.storage.state(lake.manifest_path(identifier, scope)) is not None:
                lake.storage.create(lake.path / MARKERS[scope], [identifier])
            else:  # removed meanwhile, with its lock
                lake.storage.drop_lock(lake.lock_path(identifier))
    except PassingLakeError:
        return False
    return True


def _is_unmarked(lake: LakeFolder, identifier: str, scope: Scope) -> bool:
    marker, manifest = lake.marker_path(identifier, scope), lake.manifest_path(identifier, scope)
    return lake.storage.state(marker) is None and lake.storage.state(manifest) is not None
