"""The wavefronts of a decoded thread trace as frames, one row per executed instruction, state or awaited line.

Reading their files is `aaco_pipeline.formats.thread_trace.files`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.thread_trace import files
from aaco_pipeline.formats.thread_trace.files import CATEGORIES, WAVE_STATES, Wave, WaveFile
from aaco_pipeline.formats.thread_trace.folder import Folder, some

_WAVES: Final = pl.Schema(
    {
        "wave_index": pl.Int32(),
        **dict.fromkeys(("shader_engine", "simd", "slot", "wave", "cu", "begin", "end"), pl.Int64()),
        **dict.fromkeys(("duration", "num_insts", "num_stitched"), pl.Int64()),
        "file": pl.String(),
    }
)
_CATEGORY: Final = pl.Enum(CATEGORIES)
_STATE: Final = pl.Enum(WAVE_STATES)


#: The details whose rows are those of a wavefront's lists, by the list.
_TAKEN: Final = {"instructions": "wave_instructions", "timeline": "wave_timeline", "waitcnt": "wait_dependencies"}
_WAVE_FILE: Final = re.compile(r"se(\d{1,9})_sm(\d{1,9})_sl(\d{1,9})_wv(\d{1,9})\.json")


def read_waves(folder: Folder, listing: dict[str, Any]) -> bool:
    """Add the details of the traced wavefronts and say which cannot be read; gives whether none is missing."""
    listed = _listed(folder, listing)
    read: list[tuple[WaveFile, Wave]] = []
    lost: list[str] = []
    count = 0
    for one in listed:
        path = files.inside(folder.path, one.name)
        try:
            if path is None:
                raise CaptureError("is not in the folder")
            found = files.wave(path, folder.limits)
        except CaptureError as error:
            lost.append(f"{one.name[:80]} {str(error).removeprefix(f'{path}: ')}")
            continue
        count += len(found.instructions) + len(found.timeline) + len(found.waits[2])
        if count > folder.limits.events:
            raise CaptureError(f"{folder.path}: more than {folder.limits.events} records; raise the limit on events")
        read.append((one, found))
    folder.details.update(wave_frames(read))
    folder.took("wavefront files", len(listed), len(read))
    for name, detail in _TAKEN.items():
        folder.took(f"wavefront {name}", folder.details[detail].height)
    if lost:
        folder.say("wavefronts", "partial" if read else "invalid", some(lost), len(read))
    elif read:
        folder.say("wavefronts", "present", rows=len(read))
    else:
        sampled = listing.get("pc_sampling") is True
        why = "the folder is of program-counter sampling" if sampled else "none is listed"
        folder.say("wavefronts", "absent", why, 0)
    if read:
        _say_oddities(folder, read)
    return not lost


def _listed(folder: Folder, listing: dict[str, Any]) -> list[WaveFile]:
    """The wavefronts that `filenames.json` lists, or without it those whose files are there."""
    found = [match for name in folder.names() if (match := _WAVE_FILE.fullmatch(name))]
    if not listing:
        return [WaveFile(int(one[1]), int(one[2]), int(one[3]), int(one[4]), one[0]) for one in found]
    try:
        listed = files.listed_waves(folder.path / "filenames.json", listing.get("wave_filenames"))
    except CaptureError as error:
        folder.say("listing of the wavefronts", "invalid", str(error).partition("filenames.json: ")[2])
        return []
    known = {one.name for one in listed}
    surplus = [match[0] for match in found if match[0] not in known]
    why = f"filenames.json does not list them, so they were not read: {some(surplus)}"
    folder.note(len(surplus), "unlisted wavefronts", "partial", why)
    return listed


def _say_oddities(folder: Folder, read: Sequence[tuple[WaveFile, Wave]]) -> None:
    missing = [f"{one.name}: {', '.join(wave.missing)}" for one, wave in read if wave.missing]
    folder.note(len(missing), "parts of wavefronts", "partial", f"null in {some(missing)}")
    moved = [
        one.name
        for one, wave in read
        if (one.begin is not None and one.begin != wave.facts["begin"])
        or (one.end is not None and one.end != wave.facts["end"])
    ]
    why = f"filenames.json states another begin or end than the file of {some(moved)}"
    folder.note(len(moved), "times of wavefronts", "partial", why)
    unknown = folder.details["wave_instructions"].get_column("category").null_count()
    unknown += folder.details["wave_timeline"].get_column("state").null_count()
    why = f"{unknown} records have a category or state that this aaco_pipeline does not know; they are null"
    folder.note(unknown, "categories and states", "partial", why)


def aggregated(waves: pl.DataFrame, wave_instructions: pl.DataFrame) -> pl.DataFrame:
    """What the traced wavefronts spent on each line: line, hits, latency_cycles, stall_cycles, idle_cycles.

    Idle is the time from the end of whatever the wavefront had executed (at first its own begin) to its next
    instruction; instructions may overlap, so that end is a running maximum and an early start idles for 0.
    `wave_instructions` must be in order of execution within each wavefront.
    """
    ended = (pl.col("time") + pl.col("duration")).cum_max().shift(1).over("wave_index")
    return (
        wave_instructions.join(waves.select("wave_index", "begin"), on="wave_index", how="left", maintain_order="left")
        .with_columns(before=pl.max_horizontal("begin", ended))
        .group_by("line")
        .agg(
            hits=pl.len().cast(pl.Int64),
            latency_cycles=pl.col("duration").sum(),
            stall_cycles=pl.col("stall").sum(),
            idle_cycles=(pl.col("time") - pl.col("before")).clip(lower_bound=0).sum(),
        )
        .sort("line")
    )


def wave_frames(read: Sequence[tuple[WaveFile, Wave]]) -> dict[str, pl.DataFrame]:
    """The frames of all wavefronts together, each row with the `wave_index` of its wavefront."""
    waves = pl.DataFrame(
        [
            {
                "wave_index": index,
                "shader_engine": one.shader_engine,
                "simd": one.simd,
                "slot": one.slot,
                "wave": one.wave,
                "file": one.name,
                **wave.facts,
            }
            for index, (one, wave) in enumerate(read)
        ],
        schema=_WAVES,
    )
    executed = _stacked([wave.instructions for _, wave in read], 5)
    states = _stacked([wave.timeline for _, wave in read], 2)
    begins = np.asarray([wave.facts["begin"] for _, wave in read], np.int64)
    # A state begins where those before it in its wavefront have ended.
    whole = np.concatenate(([0], np.cumsum(states[1][:, 1])))
    firsts = np.concatenate(([0], np.cumsum([len(wave.timeline) for _, wave in read])))[:-1].astype(np.int64)
    waits = [wave.waits for _, wave in read]
    return {
        "waves": waves,
        "wave_instructions": pl.DataFrame(
            {
                "wave_index": executed[0],
                "time": executed[1][:, 0],
                "category": _named(executed[1][:, 1], _CATEGORY),
                "stall": executed[1][:, 2],
                "duration": executed[1][:, 3],
                "line": executed[1][:, 4],
            }
        ),
        "wave_timeline": pl.DataFrame(
            {
                "wave_index": states[0],
                "time": begins[states[0]] + whole[:-1] - whole[firsts[states[0]]],
                "state": _named(states[1][:, 0], _STATE),
                "cycles": states[1][:, 1],
            }
        ),
        "wait_dependencies": _wait_frame(waits),
    }


def _wait_frame(waits: Sequence[tuple[npt.NDArray[np.int64], ...]]) -> pl.DataFrame:
    lines = np.concatenate([np.empty(0, np.int64), *(one[0] for one in waits)])
    counts = np.concatenate([np.empty(0, np.int64), *(one[1] for one in waits)])
    awaited = np.concatenate([np.empty(0, np.int64), *(one[2] for one in waits)])
    wave = np.repeat(np.arange(len(waits), dtype=np.int32), [len(one[0]) for one in waits])
    number = np.concatenate([np.empty(0, np.int64), *(np.arange(len(one[0])) for one in waits)])
    rows = np.maximum(counts, 1)  # a wait without a known dependency stays, with null
    known = np.repeat(counts > 0, rows)
    dependency = np.zeros(len(known), np.int64)
    dependency[known] = awaited
    return pl.DataFrame(
        {
            "wave_index": np.repeat(wave, rows),
            "wait": np.repeat(number, rows),
            "line": np.repeat(lines, rows),
            "dependency_line": dependency,
            "known": known,
        }
    ).select(pl.exclude("dependency_line", "known"), pl.when("known").then("dependency_line").alias("dependency_line"))


def _stacked(
    tables: Sequence[npt.NDArray[np.int64]], width: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Each row's position among `tables`, and the rows of all."""
    index = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    return index, np.concatenate([np.empty((0, width), np.int64), *tables])


def _named(numbers: npt.NDArray[np.int64], names: pl.Enum) -> pl.Series:
    """The names that the decoder's numbers stand for; null for a number without one."""
    given = names.categories.to_list()
    return pl.Series(numbers).replace_strict(dict(enumerate(given)), default=None, return_dtype=names)
