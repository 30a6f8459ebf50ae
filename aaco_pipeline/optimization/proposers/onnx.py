"""Propose changes that may speed up an ONNX model without editing it: graph rewriting, threads, options, batch.

Each proposal is the candidate of an A/B comparison: the measured request with a few fields changed. None lowers the
precision. ONNX Runtime documents the options: graph optimizations, thread management, and the page of each execution
provider.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aaco_pipeline.optimization.candidates import NotApplicable
from aaco_pipeline.providers import CPU_PROVIDER, CUDA_PROVIDER, MIGRAPHX_PROVIDER, ROCM_PROVIDER

Level = Literal["none", "basic", "extended", "all"]
#: Settings by provider, in the order of trial, each with the reason.
_OPTIONS: Final[Mapping[str, tuple[tuple[Mapping[str, str], str], ...]]] = {
    MIGRAPHX_PROVIDER: (
        ({"migraphx_exhaustive_tune": "1"}, "MIGraphX then times every possible kernel; compiling takes longer"),
    ),
    ROCM_PROVIDER: (
        (
            {"tunable_op_enable": "1", "tunable_op_tuning_enable": "1"},
            "matrix products then take the fastest of the libraries' kernels, timed at the first call",
        ),
        ({"miopen_conv_exhaustive_search": "1"}, "MIOpen then times every algorithm of a convolution"),
    ),
    CUDA_PROVIDER: (
        ({"cudnn_conv_algo_search": "EXHAUSTIVE"}, "cuDNN then times every algorithm of a convolution"),
        ({"prefer_nhwc": "1"}, "convolutions on tensor cores then need no change of layout"),
    ),
}
#: The value of an option that a request omits.
_DEFAULTS: Final = {"cudnn_conv_algo_search": "EXHAUSTIVE"}
#: Larger batches to try, as multiples of the present one.
_BATCHES: Final = (2, 4, 8)
LARGEST_BATCH_FACTOR: Final = max(_BATCHES)


@dataclass(frozen=True)
class Measured:
    """A session's request as it was measured.

    `threads` are intra-operator threads, None if not set; `cores` the physical cores available to the process, None if
    unknown. `batch_is_free` is set if the model's first dimension is dynamic.
    """

    provider: str
    optimization: Level = "all"
    threads: int | None = None
    cores: int | None = None
    batch_size: int | None = None
    batch_is_free: bool = False
    provider_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxCandidate:
    """Fields of the request that the candidate's arm changes, and why that may help.

    `same_work` is False if an iteration does different work than the baseline's (a batch): times are then compared per
    item, and `aaco compare`, which requires equal shapes, does not accept the pair.
    """

    changes: Mapping[str, Any]
    why: str
    same_work: bool = True


def onnx_candidates(measured: Measured) -> list[OnnxCandidate | NotApplicable]:
    """List the settings to try, most promising first, and why a kind has none."""
    return [*_levels(measured), *_threads(measured), *_options(measured), *_batches(measured)]


def _levels(measured: Measured) -> Iterator[OnnxCandidate | NotApplicable]:
    if measured.optimization != "all":
        yield OnnxCandidate({"optimization": "all"}, "all rewritings of the graph: fused nodes, better layouts")
        return
    if measured.provider != CPU_PROVIDER:
        reason = f"the graph is rewritten as far as it goes, and {measured.provider} compiles it anew"
        yield NotApplicable("onnx", reason)
        return
    why = "without changes of layout, which cost more than they gain on some models"
    yield OnnxCandidate({"optimization": "extended"}, why)


def _threads(measured: Measured) -> Iterator[OnnxCandidate | NotApplicable]:
    if measured.provider != CPU_PROVIDER:
        yield NotApplicable("onnx", f"threads of the host only submit the work of {measured.provider}")
        return
    if measured.cores is None:
        yield NotApplicable("onnx", "it is not known how many cores the process may use")
        return
    tried = [measured.cores, measured.cores // 2, 2, 1]
    fitting = [one for one in dict.fromkeys(tried) if 0 < one <= measured.cores and one != measured.threads]
    if not fitting:
        yield NotApplicable("onnx", "there is one core, and the model runs on one thread")
    for threads in fitting:
        whole = threads == measured.cores
        why = "a thread on every core that there is" if whole else "fewer threads, which wait less for one another"
        yield OnnxCandidate({"threads": threads}, why)


def _options(measured: Measured) -> Iterator[OnnxCandidate | NotApplicable]:
    known = _OPTIONS.get(measured.provider, ())
    if not known:
        yield NotApplicable("onnx", f"no option of {measured.provider} is known to change speed alone")
    for options, why in known:
        present = {**_DEFAULTS, **measured.provider_options}
        if any(present.get(name) != value for name, value in options.items()):
            yield OnnxCandidate({"provider_options": {**measured.provider_options, **options}}, why)
        else:
            yield NotApplicable("onnx", f"{', '.join(options)} is set already")


def _batches(measured: Measured) -> Iterator[OnnxCandidate | NotApplicable]:
    if not measured.batch_is_free:
        yield NotApplicable("onnx", "the model's first dimension is fixed, so that its batch is too")
        return
    for factor in _BATCHES:
        batch = (measured.batch_size or 1) * factor
        yield OnnxCandidate({"batch_size": batch}, "more items share one reading of the weights", same_work=False)
