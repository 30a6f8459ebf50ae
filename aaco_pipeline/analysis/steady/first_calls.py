"""Find host calls that do one-time work: compilation, loading, initialization, allocation, capture, first access.

Some are recognized by name. Others are ordinary calls whose first invocation took far longer than later ones: the
runtime loads a kernel's code at its first launch and creates its context in its first call of any kind.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import coverage
from aaco_pipeline.analysis.timeline.host_waits import calls_named
from aaco_pipeline.lake.contracts import polars_types

COMPILATION: Final = "compilation"
MODULE_LOAD: Final = "module_load"
INITIALIZATION: Final = "initialization"
ALLOCATION: Final = "allocation"
GRAPH_CAPTURE: Final = "graph_capture"
FIRST_TOUCH: Final = "first_touch"
AUTOTUNING: Final = "autotuning"
SET_UP_COPY: Final = "set_up_copy"
READ_BACK: Final = "read_back_copy"
COLUMNS: Final = polars_types("first_calls")
#: Kinds that do not occur in a warm process, which may still allocate memory or capture a graph.
LOADING: Final = (COMPILATION, MODULE_LOAD, INITIALIZATION)
#: Copies outside the steady part, which are not first-call work.
COPIES: Final = (SET_UP_COPY, READ_BACK)
#: Name patterns of HIP, HSA, CUDA, the CUDA driver and the libraries of both vendors.
_NAMED: Final = {
    COMPILATION: r"^(?:hiprtc|nvrtc)|^(?:hip|cu)Link(?:Create|Add|Complete)|^amd_comgr_",
    MODULE_LOAD: r"^(?:hip|cu)(?:Module|Library)(?:Load|Get)|^cudaLibrary(?:Load|Get)|^cudaGetKernel"
    r"|^cuKernelGetFunction|^hipGetFuncBySymbol|^cudaGetFuncBySymbol|^__(?:hip|cuda)Register|^hsa_executable_|^hsa_code_object_",
    INITIALIZATION: r"^(?:hip|cu)Init$|^(?:hip|cu)(?:CtxCreate|DevicePrimaryCtxRetain)|^cudaInitDevice|^hsa_init$"
    r"|^(?:hip|cuda|cu)StreamCreate|^hsa_queue_create|^(?:cublas|cudnn|cusparse|cusolver|curand|hipblas|hipsparse"
    r"|hipsolver|hiprand|miopen)(?:Lt|Dn|Sp)?Create(?:Handle|WithStream)?(?:_v2)?$|^rocblas_create_handle"
    r"|^nccl\w*Init|^ncclGetUniqueId",
    ALLOCATION: r"^(?:hip|cuda)(?:Malloc|HostAlloc|HostMalloc|HostRegister)|^cuMem(?:Alloc|Create|Map|HostAlloc"
    r"|AddressReserve)|^hsa_amd_memory_pool_allocate",
    GRAPH_CAPTURE: r"^(?:hip|cuda|cu)Graph(?:Instantiate|Upload)",
}
#: Calls on a stream's own pool are part of steady work.
_OF_A_POOL: Final = r"Async$|FromPool"
_BEGIN_CAPTURE: Final = r"^(?:hip|cuda|cu)StreamBeginCapture"
_END_CAPTURE: Final = r"^(?:hip|cuda|cu)StreamEndCapture"
_COPY: Final = r"(?i)memcpy"
#: Calls that wait for the device or for queue space: their duration is not their own cost.
_WAITS: Final = r"(?i)synchronize|query|wait|memcpy|memset|launch|elapsed|signal"
#: Shorter calls are ignored.
_LEAST_NS: Final = 1_000_000
#: A first call this many times as long as later calls of its name must have done extra work.
_FAR_LONGER: Final = 5
#: A name recurs if it has this many calls, and this fraction of their time in the later half of the work.
_RECURRING_CALLS: Final = 4
_RECURRING_SHARE: Final = 0.3
#: A run of this many kernels of one family, at most two of which the steady part uses, is a series of trials.
_TRIED_KERNELS: Final = 6
_TAKEN_KERNELS: Final = 2
_THREAD: Final = ("process_id", "thread_id")
_SHOWN: Final = (*_THREAD, "call_id", "name", "start_ns", "end_ns")
Times = npt.NDArray[np.int64]


def first_calls(calls: pl.DataFrame, activities: pl.DataFrame, memory_copies: pl.DataFrame) -> pl.DataFrame:
    """List the host calls that do first-call work, sorted by start; columns as in `COLUMNS`.

    `calls` and `activities` come from `timeline.activities`. A call inside another listed one is omitted. A name whose
    calls continue in the later half of the work is steady, whatever its name suggests.
    """
    named = _recurring_left_out(_by_name(calls), activities)
    allocated = named.filter(pl.col("kind") == ALLOCATION).group_by("process_id").agg(since_ns=pl.col("start_ns").min())
    found = pl.concat(
        [
            named,
            _captures(calls),
            _first_of_name(calls),
            _first_launches(activities, calls),
            _first_touches(activities, calls, memory_copies, allocated),
        ]
    ).unique("call_id", keep="first", maintain_order=True)
    outer = calls.select("call_id", "outermost_call_id")
    inside = pl.col("outermost_call_id").is_in(found.get_column("call_id").implode())
    inside &= pl.col("outermost_call_id") != pl.col("call_id")
    found = found.join(outer, on="call_id", how="left").filter(~inside.fill_null(False))
    return found.select(*COLUMNS).sort("start_ns", "end_ns", "call_id")


def time_of(first: pl.DataFrame, starts: Times, ends: Times) -> Times:
    """Time that first-call work takes of each interval [start, end); overlaps count once, copies are excluded."""
    return coverage(first.filter(~pl.col("kind").is_in(COPIES))).between(starts, ends)


def copies_beside(calls: pl.DataFrame, starts_ns: int, ends_ns: int) -> pl.DataFrame:
    """Find copy calls that returned before the steady part started, and those entered after it ended."""
    copying = _matching(calls, _COPY)
    copying = copying.filter(pl.col("outermost_call_id") == pl.col("call_id"))
    before = _shown(copying.filter(pl.col("end_ns") <= starts_ns), SET_UP_COPY, "a copy before the steady part")
    after = _shown(copying.filter(pl.col("start_ns") >= ends_ns), READ_BACK, "a copy after the steady part")
    return pl.concat([before, after])


def autotuning(before: pl.DataFrame, steady_kernels: pl.Series) -> pl.DataFrame:
    """Find phases of `before`, the activities before the steady part, in which kernels of one family are tried.

    One row per phase and thread, from the first launch to the last one's return, or for unlinked work from start to
    end. Traces do not show whether they computed the same shapes; the evidence is that the steady part uses only a few
    of them.
    """
    run = before.filter((pl.col("activity_kind") == "dispatch") & (pl.col("category") == "compute"))
    run = run.with_columns(pl.col("work").cast(pl.String)).filter(pl.col("work") != "compute")
    phase = (pl.col("work") != pl.col("work").shift(1)).fill_null(True).cum_sum()
    kernels = pl.col("kernel_id").n_unique()
    taken = pl.col("kernel_id").filter(pl.col("kernel_id").is_in(steady_kernels.implode())).n_unique()
    trials = (
        run.with_columns(phase=phase)
        .group_by("phase", "process_id", thread_id=pl.coalesce("call_thread_id", "thread_id"), maintain_order=True)
        .agg(
            pl.col("work").first(),
            kernels=kernels,
            taken=taken,
            runs=pl.len(),
            start_ns=pl.coalesce("call_start_ns", "start_ns").min(),
            end_ns=pl.coalesce("call_end_ns", "end_ns").max(),
        )
        .filter((pl.col("kernels") >= _TRIED_KERNELS) & (pl.col("taken") <= _TAKEN_KERNELS))
    )
    words = "{} kernels of the family {} ran {} times one after another, of which the steady part uses {}"
    return trials.select(
        pl.lit(AUTOTUNING).alias("kind"),
        pl.col("work").alias("name"),
        *(pl.col(name).cast(COLUMNS[name]) for name in _THREAD),
        pl.lit(None, pl.Int32).alias("call_id"),
        *("start_ns", "end_ns"),
        pl.format(words, "kernels", "work", "runs", "taken").alias("reason"),
    )


def _by_name(calls: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(
        _shown(_matching(calls, pattern, _OF_A_POOL), kind, "by its name") for kind, pattern in _NAMED.items()
    )


def _recurring_left_out(named: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    middle = activities.get_column("start_ns").median()
    if middle is None:
        return named
    length = pl.col("end_ns") - pl.col("start_ns")
    later = length.filter(pl.col("start_ns") > middle).sum().over("process_id", "name")
    recurring = (pl.len().over("process_id", "name") >= _RECURRING_CALLS) & (
        later > _RECURRING_SHARE * length.sum().over("process_id", "name")
    )
    return named.filter(~recurring)


def _captures(calls: pl.DataFrame) -> pl.DataFrame:
    """Find graph captures of a stream, each from the call that begins it to the return of the one that ends it."""
    begun = _matching(calls, _BEGIN_CAPTURE).select(_SHOWN).sort("start_ns")
    over = _matching(calls, _END_CAPTURE).select(*_THREAD, "start_ns", over_ns="end_ns").sort("start_ns")
    until = [frame.with_columns(pl.col("thread_id").fill_null(-1)) for frame in (begun, over)]
    both = until[0].join_asof(until[1], on="start_ns", by=list(_THREAD), strategy="forward", check_sortedness=False)
    both = both.with_columns(begun.get_column("thread_id"), end_ns=pl.coalesce("over_ns", "end_ns"))
    return _shown(both, GRAPH_CAPTURE, "a stream captured into a graph, up to the end of the capture")


def _first_of_name(calls: pl.DataFrame) -> pl.DataFrame:
    """Find calls of any other name whose first invocation took far longer than later ones."""
    length = pl.col("end_ns") - pl.col("start_ns")
    waiting = calls_named(calls, _WAITS).get_column("name").unique()
    own = calls.filter(~pl.col("name").is_in(waiting.implode())).sort("start_ns", maintain_order=True)
    long = own.filter(length >= _LEAST_NS).select("process_id", "name").unique()
    own = own.join(long, on=["process_id", "name"], how="semi", maintain_order="left")
    later = own.group_by("process_id", "name", maintain_order=True).agg(
        pl.first("call_id"), later_ns=length.slice(1).median()
    )
    first = own.join(later.drop("process_id", "name"), on="call_id").filter(
        (length >= _LEAST_NS) & (length >= _FAR_LONGER * pl.col("later_ns").fill_null(0))
    )
    return _shown(first, INITIALIZATION, "the first call of its name, far longer than any usual one")


def _first_launches(activities: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Find first launches of a kernel that took far longer than usual and kept an idle device waiting."""
    length = pl.col("call_end_ns") - pl.col("call_start_ns")
    reached = pl.col("end_ns").cum_max().shift(1).over("device_id")
    launched = activities.with_columns(idle_ns=pl.col("start_ns") - reached).filter(
        (pl.col("activity_kind") == "dispatch") & pl.col("call_id").is_not_null()
    )
    usual = length.median().over("process_id")
    long = (length >= _LEAST_NS) & (length >= _FAR_LONGER * usual)
    # A call that waits for queue space has a busy device, and one that waits for its kernel has a running one.
    idle = (2 * pl.col("idle_ns") >= length).fill_null(True)
    idle &= 2 * (pl.col("start_ns") - pl.col("call_start_ns")) >= length
    new = pl.struct("process_id", "kernel_id").is_first_distinct()
    first = launched.sort("call_start_ns", maintain_order=True).filter(new & long & idle)
    own = calls.join(first.select("call_id"), on="call_id", how="semi", maintain_order="left")
    return _shown(own, MODULE_LOAD, "the first launch of its kernel, far longer than usual ones: its code was loaded")


def _first_touches(
    activities: pl.DataFrame, calls: pl.DataFrame, memory_copies: pl.DataFrame, allocated: pl.DataFrame
) -> pl.DataFrame:
    """Find first copies of a direction and size after an allocation whose calls took far longer than later ones."""
    copies = activities.filter((pl.col("activity_kind") == "memory_copy") & pl.col("call_id").is_not_null())
    sized = copies.join(
        memory_copies.select(pl.col("copy_id").cast(pl.Int32).alias("activity_id"), "direction", "size_bytes"),
        on="activity_id",
    ).sort("call_start_ns", maintain_order=True)
    length = pl.col("call_end_ns") - pl.col("call_start_ns")
    first = (
        sized.group_by("process_id", "direction", "size_bytes", maintain_order=True)
        .agg(pl.first("call_id", "call_start_ns"), first_ns=length.first(), later_ns=length.slice(1).median())
        .join(allocated, on="process_id")
        .filter(
            (pl.col("call_start_ns") >= pl.col("since_ns"))
            & (pl.col("first_ns") >= _LEAST_NS)
            & (pl.col("first_ns") >= _FAR_LONGER * pl.col("later_ns"))
        )
    )
    own = calls.join(first.select("call_id"), on="call_id", how="semi", maintain_order="left")
    return _shown(own, FIRST_TOUCH, "the first copy of its direction and size, far longer than the later ones")


def _shown(calls: pl.DataFrame, kind: str, reason: str) -> pl.DataFrame:
    return calls.select(
        pl.lit(kind).alias("kind"),
        pl.col("name").cast(pl.String),
        *(pl.col(name).cast(COLUMNS[name]) for name in (*_THREAD, "call_id", "start_ns", "end_ns")),
        pl.lit(reason).alias("reason"),
    )


def _matching(calls: pl.DataFrame, pattern: str, but: str | None = None) -> pl.DataFrame:
    found = calls_named(calls, pattern)
    return found if but is None else found.filter(~pl.col("name").cast(pl.String).str.contains(but))
