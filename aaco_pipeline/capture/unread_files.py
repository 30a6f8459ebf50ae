"""With which run a file goes that no reader takes: the run of the nearest folder around it, or of the process it names.

Raw thread traces and code objects are named after their process. Of a folder that holds several runs each goes with the
one of its process, and with none where no run, or several, are.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_OF_PROCESS: Final = re.compile(r"(\d{1,18})_.*\.(?:att|out)")


def homes(paths: Sequence[Path], runs: Sequence[tuple[Path, frozenset[int]]]) -> Iterator[tuple[int | None, str]]:
    """For each path the number of its run, or None and in the second place why, where a process decides.

    `runs` are folders with the processes that are known of each run; a folder may hold several.
    """
    by_folder: dict[Path, list[int]] = {}
    for number, (folder, _) in enumerate(runs):
        by_folder.setdefault(folder, []).append(number)
    for path in paths:
        nearest = next((folder for folder in path.parents if folder in by_folder), None)
        beside = by_folder[nearest] if nearest is not None else []
        named = _OF_PROCESS.fullmatch(path.name) if len(beside) > 1 else None
        if named is None:
            yield (beside[0] if beside else None), ""
            continue
        pid = int(named[1])
        found = [number for number in beside if pid in runs[number][1]]
        if len(found) == 1:
            yield found[0], ""
        else:
            yield None, f"with no run: {len(found) or 'none'} of the folder's {len(beside)} are of its process {pid}"
