"""The wavefronts of a decoded thread trace as frames, one row per executed instruction, state or awaited line.

Reading their files is `aaco_pipeline.formats.thread_trace.files`.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.formats.thread_trace.files import CATEGORIES, WAVE_STATES, Wave, WaveFile

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
