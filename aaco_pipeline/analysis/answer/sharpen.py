"""What would sharpen an answer: at most three recordings that are missing, each with the command that makes it."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.kinds import COMMUNICATION
from aaco_pipeline.analysis.answer.validity import COLD_START, INCOMPLETE
from aaco_pipeline.analysis.completeness.recording_tools import in_words, tool_of
from aaco_pipeline.analysis.timeline.activities import OPERATOR_DOMAIN
from aaco_pipeline.providers import CPU_PROVIDER

_AT_MOST: Final = 3
#: Findings that touch the answer, the gravest first, and what recording again would tell.
_TELLS: Final[Mapping[str, str]] = {
    "no_device_events": "what ran on the device",
    "wait_for_unrecorded_work": "what ran before the recording",
    "graph_kernels_missing": "all kernels of replayed graphs",
    "launches_unrecorded": "the launches that left no record",
    "first_kernels_dropped": "the first kernels",
    "stream_missing": "the missing stream",
    "dropped_by_tool": "what the tool dropped",
    "file_truncated": "the rest of the file",
    "ranks_missing": "which rank is late",
    "impossible_durations": "true durations",
    "clocks_apart": "host and device on one clock",
    "clock_resynchronized": "host and device on one clock",
}


_CALIBRATED: Final = ("how near the operators come to what this machine reaches", "aaco calibrate")


def sharpened(name: str, kind: object, tables: Mapping[str, pl.DataFrame], *, steady: bool) -> list[tuple[str, str]]:
    """What to record besides, and the command for it; the most useful first.

    `name` is the class, `kind` what is to be fixed; `steady` says that there is a steady part.
    """
    found = tables["completeness_findings"].unique("finding", keep="first", maintain_order=True)
    mends = dict(found.select("finding", "mend").iter_rows())
    wanted = [(words, str(mends[finding])) for finding, words in _TELLS.items() if finding in mends]
    sessions, devices = tables["sessions"], tables["devices"]
    if sessions.height and sessions.item(0, "provider") == CPU_PROVIDER:
        # No tool for devices looks into operators on the CPU.
        measured = (tables["ceilings"].get_column("source").cast(pl.String) == "measured").any()
        return [*wanted, *([] if measured else [_CALIBRATED])][:_AT_MOST]
    vendors = set(devices.get_column("vendor").drop_nulls()) if devices.height else set()
    tool = tool_of(sessions)
    if name == COLD_START:
        wanted.insert(0, ("the steady state", in_words("record after warm-up: {warm_up}", tool)))
    if name == INCOMPLETE and not steady and _has_times(tables):
        wanted.append(("what repeats", "record ten or more repetitions of the work after a warm-up"))
    # A profiler that counts runs dispatches one by one: the device waits for it.
    idle = tables["dispatches"].height and not tables["api_calls"].height and not tables["counters"].height
    if name == INCOMPLETE and idle and "AMD" in vendors:
        wanted.append(("what the idle device waits for", in_words("{everything}", tool)))
    if name == INCOMPLETE and not _has_times(tables) and "NVIDIA" not in vendors:
        wanted.append(("when the kernels ran", in_words("{kernel_times}", tool)))
    ranks = tables["dispatches"].get_column("process_id").n_unique()
    if name == COMMUNICATION and ranks == 1 and "ranks_missing" not in mends:
        wanted.append((_TELLS["ranks_missing"], in_words("{each_rank}", tool)))
    operators = tables["api_calls"].get_column("domain").cast(pl.String) == OPERATOR_DOMAIN
    if kind is not None and operators.any() and not tables["operator_shapes"].height:
        wanted.append(("what the kernels achieve", "torch.profiler.profile(record_shapes=True)"))
    if kind is not None:
        # Only the recorder counts on NVIDIA's as on AMD's.
        if not tables["counters"].height and ("AMD" in vendors or ("NVIDIA" in vendors and tool == "aaco record")):
            wanted.append(("which unit limits the kernels", in_words("{counters}", tool)))
        if "AMD" in vendors and not tables["att_stalls"].height:
            wanted.append(("which instructions stall", in_words("{instructions}", tool)))
    return wanted[:_AT_MOST]


def _has_times(tables: Mapping[str, pl.DataFrame]) -> bool:
    times = (tables[name].select("start_ns", "end_ns").drop_nulls() for name in ("dispatches", "memory_copies"))
    return any(one.height for one in times)
