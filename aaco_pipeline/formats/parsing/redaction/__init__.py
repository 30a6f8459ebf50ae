"""Keep secrets out of stored data: environments, command lines, texts and files on their way into the lake.

`text` recognizes secrets in text by their form, `commands` passwords on command lines.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.formats.parsing.redaction.commands import (
    ANCHORED,
    command_spans,
    may_hold_secrets,
    safe_command,
    safe_prose,
    safe_words,
)
from aaco_pipeline.formats.parsing.redaction.text import (
    LONGEST,
    LONGEST_BEFORE,
    REDACTED,
    Announced,
    announced,
    apart,
    redacted_bytes,
    redacted_text,
    replaced,
    safe_name,
    safe_text,
    safe_value,
    spans,
    suspects,
)

#: Names from `commands` and `text` that callers import from here, in addition to those defined below.
__all__ = [
    "REDACTED",
    "may_hold_secrets",
    "redacted_bytes",
    "redacted_text",
    "safe_command",
    "safe_name",
    "safe_prose",
    "safe_text",
    "safe_value",
    "safe_words",
]

#: Environment variables that affect results or speed; no others are ever read.
MEASURED_VARIABLES: Final = (
    # the C library, threads and memory
    *("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_CONF", "NUMEXPR_NUM_THREADS"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_WAIT_POLICY"),
    # ONNX Runtime
    *("ORT_LOAD_CONFIG_FROM_MODEL", "ORT_MIGRAPHX_BF16_ENABLE", "ORT_MIGRAPHX_CACHE_PATH"),
    *("ORT_MIGRAPHX_EXHAUSTIVE_TUNE", "ORT_MIGRAPHX_FP16_ENABLE", "ORT_MIGRAPHX_FP8_ENABLE"),
    *("ORT_MIGRAPHX_INT8_CALIBRATION_TABLE_NAME", "ORT_MIGRAPHX_INT8_ENABLE", "ORT_MIGRAPHX_LOAD_COMPILED_MODEL"),
    *("ORT_MIGRAPHX_LOAD_COMPILED_PATH", "ORT_MIGRAPHX_MODEL_CACHE_PATH", "ORT_MIGRAPHX_SAVE_COMPILED_MODEL"),
    *("ORT_MIGRAPHX_SAVE_COMPILED_PATH", "ORT_MIGRAPHX_USE_NATIVE_CALIBRATION_TABLE"),
    # MIGraphX
    *("MIGRAPHX_DISABLE_MIOPEN_FUSION", "MIGRAPHX_DISABLE_MLIR", "MIGRAPHX_DISABLE_POINTWISE_FUSION"),
    *("MIGRAPHX_DISABLE_REDUCE_FUSION", "MIGRAPHX_DISABLE_SCHEDULE_PASS", "MIGRAPHX_ENABLE_CK"),
    *("MIGRAPHX_ENABLE_HIPBLASLT_GEMM", "MIGRAPHX_ENABLE_NHWC", "MIGRAPHX_ENABLE_NULL_STREAM"),
    *("MIGRAPHX_ENABLE_SPLIT_REDUCE", "MIGRAPHX_GPU_COMPILE_PARALLEL", "MIGRAPHX_GPU_HIP_FLAGS"),
    *("MIGRAPHX_GPU_OPTIMIZE", "MIGRAPHX_MLIR_ENABLE_SPLITK", "MIGRAPHX_MLIR_TUNE_EXHAUSTIVE"),
    *("MIGRAPHX_MLIR_TUNING_CFG", "MIGRAPHX_MLIR_TUNING_DB", "MIGRAPHX_MLIR_USE_SPECIFIC_OPS", "MIGRAPHX_NSTREAMS"),
    *("MIGRAPHX_PROBLEM_CACHE", "MIGRAPHX_SET_GEMM_PROVIDER", "MIGRAPHX_TRACE_BENCHMARKING"),
    # HIP and the ROCm runtime
    *("AMD_DIRECT_DISPATCH", "AMD_LOG_LEVEL", "AMD_SERIALIZE_COPY", "AMD_SERIALIZE_KERNEL", "CUDA_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "HIP_FORCE_DEV_KERNARG", "HIP_HOST_COHERENT", "HIP_LAUNCH_BLOCKING"),
    *("HIP_VISIBLE_DEVICES", "HSA_CU_MASK", "HSA_DISABLE_CACHE", "HSA_ENABLE_DEBUG", "HSA_ENABLE_INTERRUPT"),
    *("HSA_ENABLE_PEER_SDMA", "HSA_ENABLE_SDMA", "HSA_FORCE_FINE_GRAIN_PCIE", "HSA_NO_SCRATCH_RECLAIM"),
    *("HSA_OVERRIDE_GFX_VERSION", "HSA_SCRATCH_SINGLE_LIMIT", "HSA_TOOLS_LIB", "HSA_XNACK", "ROCR_VISIBLE_DEVICES"),
    # the ROCm libraries
    *("HIPBLASLT_TENSILE_LIBPATH", "HIPBLASLT_TUNING_FILE", "HIPBLASLT_TUNING_OVERRIDE_FILE"),
    *("MIOPEN_COMPILE_PARALLEL_LEVEL", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_DEBUG_CONV_DIRECT", "MIOPEN_DEBUG_CONV_FFT"),
    *("MIOPEN_DEBUG_CONV_GEMM", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM", "MIOPEN_DEBUG_CONV_WINOGRAD"),
    *("MIOPEN_DEBUG_DISABLE_FIND_DB", "MIOPEN_DISABLE_CACHE", "MIOPEN_ENABLE_LOGGING", "MIOPEN_FIND_ENFORCE"),
    *("MIOPEN_FIND_MODE", "MIOPEN_LOG_LEVEL", "MIOPEN_SYSTEM_DB_PATH", "MIOPEN_USER_DB_PATH"),
    *("ROCBLAS_DEFAULT_ATOMICS_MODE", "ROCBLAS_LAYER", "ROCBLAS_TENSILE_LIBPATH", "ROCBLAS_USE_HIPBLASLT"),
    *("TENSILE_SOLUTION_SELECTION_METHOD", "NCCL_DEBUG", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"),
    # Triton and PyTorch
    *("PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_FILENAME", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_DIR"),
    *("TRITON_DEFAULT_FP_FUSION", "TRITON_HIP_GLOBAL_PREFETCH", "TRITON_HIP_LOCAL_PREFETCH"),
    *("TRITON_HIP_USE_BLOCK_PINGPONG", "TRITON_HOME"),
)
#: Environment variables in which launchers of distributed jobs state the rank. PyTorch's comes first: torchrun sets it
#: per process, while all its processes inherit an outer launcher's single number.
RANK_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Names under which a settings table stores an environment: one variable per row, or all in one value.
_ONE_VARIABLE: Final = "ENVIRONMENT_VARIABLE"
_ALL_VARIABLES: Final = "DeviceEnvironment"
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
#: A block with fewer entries between zero bytes is not an environment.
_LEAST_OF_A_BLOCK: Final = 2
#: A longer value is not a setting.
_LONGEST_VALUE: Final = 200


def safe_environment(variables: Mapping[str, object]) -> dict[str, str]:
    """Return the variables in `MEASURED_VARIABLES`, without secrets, in order of name."""
    return {name: safe_variable(str(variables[name])) for name in sorted(MEASURED_VARIABLES) if name in variables}


def safe_variable(value: str) -> str:
    """Return the value of an allowed variable without secrets, or `(empty)`."""
    return (REDACTED if len(value) > _LONGEST_VALUE else safe_prose(value)) or "(empty)"


def safe_environment_text(text: str) -> str:
    """Reduce an environment in JSON text to the permitted variables, including ranks of a distributed job."""
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(variables, dict):
        return "{}"
    stated = {name: str(variables.get(name, "")) for name in RANK_VARIABLES}
    ranks = {name: value for name, value in stated.items() if value.isascii() and value.isdigit()}
    kept = {**safe_environment(variables), **ranks}
    return text if kept == variables else json.dumps(kept)


def safe_environment_block(text: str) -> str:
    """Reduce an environment block (`NAME=value` entries separated by zero bytes) to its permitted variables; any other
    text is returned unchanged. Nsight Systems stores the blocks of all processes among its names.
    """
    parts = text.split("\0")
    assigned = sum(_ASSIGNED.fullmatch(part) is not None for part in parts)
    if len(parts) < _LEAST_OF_A_BLOCK or assigned * 2 < len(parts):
        return text
    return "\0".join(filter(None, map(_safe_assignment, parts)))


def safe_setting(name: str, value: str) -> str:
    """Hide the secrets in a settings table's value, as required by its name.

    An environment (`PROCESS_0:ENVIRONMENT_VARIABLE` with `NAME="value"`, or `DeviceEnvironment` with all variables in a
    row, as Nsight Systems exports them) is reduced to the permitted variables, including ranks of a distributed job.
    """
    kind = name.rpartition(":")[2]
    if kind == _ONE_VARIABLE:
        return _safe_assignment(value) or REDACTED
    if kind == _ALL_VARIABLES:
        return ";".join(filter(None, map(_safe_assignment, value.split(";"))))
    return safe_value(name, value)


def _safe_assignment(text: str) -> str | None:
    """Return `NAME=value` or `NAME="value"` if the variable is permitted; None otherwise."""
    found = _ASSIGNED.fullmatch(text)
    if found is None:
        return None
    name, value = found.groups()
    if name in MEASURED_VARIABLES:
        clean = safe_variable(value)
        return text if clean == value or not value.strip('"') else f"{name}={clean}"
    digits = value.strip('"')
    return text if name in RANK_VARIABLES and digits.isascii() and digits.isdigit() else None


#: Increments whenever a rule hides or keeps something new; recorded in the list of a session's files.
RULES_VERSION: Final = 7


#: Columns and keys for command lines, and those for environments.
COMMANDS: Final = frozenset({"command", "cmd", "cmdline", "command_line", "commandline", "argv", "remaining"})
ENVIRONMENTS: Final = frozenset({"environment", "environ", "env"})
NAMES: Final = frozenset({"name", "key", "tag", "variable"})
#: The columns of a larger table are not checked one by one.
_LARGEST_TABLE: Final = 4 << 20
_SHORTEST_CELL: Final = 4
_DOCUMENTS: Final = "|".join(sorted(COMMANDS | ENVIRONMENTS))
_JSON_KEY: Final = re.compile(rb'"(%s)"\s{0,16}:\s{0,16}(?=["\[{])' % _DOCUMENTS.encode(), re.IGNORECASE)
#: Prefixes after which a secret is only recognizable on a command line or by a document's key.
_FURTHER: Final = f'|{ANCHORED}|"(?i:{_DOCUMENTS})"'
_DECODER: Final = json.JSONDecoder()


def redacted_pieces(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Redact a file piece by piece, yielding each piece and its number of secrets; finds secrets across boundaries."""
    held, given = b"", 0
    ahead = iter(pieces)
    piece = next(ahead, b"")
    first = True
    while piece:
        following = next(ahead, b"")
        content, hits = held + piece, 0
        if first and not following and len(content) <= _LARGEST_TABLE:
            content, hits = _without_cells(content)
        first = False
        clean, more, held, given = _redacted(content, given, last=not following)
        yield clean, hits + more
        piece = following


def redacted_whole(text: str) -> str:
    """Redact a text that may be a document, a table's cell or a name, exactly like a file with this text."""
    clean, hits, _, _ = _redacted(text.encode("utf-8", "surrogateescape"), 0, last=True)
    return clean.decode("utf-8", "surrogateescape") if hits else text


def _redacted(content: bytes, given: int, *, last: bool) -> tuple[bytes, int, bytes, int]:
    """Redact the content as far as possible without the next piece.

    Returns the redacted content after the `given` part, the number of secrets, the tail to prepend to the next piece,
    and how much of that tail has already been returned, which a secret's name or line may still need.
    """
    regions = suspects(content, _FURTHER)
    content, documents = _without_documents(content, given, regions, last=last)
    if documents:
        regions = suspects(content, _FURTHER)
    found = [(start, end) for begin, stop in regions for start, end in _spans_in(content, begin, stop)]
    cut = len(content) if last else max(given, len(content) - LONGEST)
    inside = [(max(start, given), end) for start, end in found if start < cut and end > given]
    if inside:
        cut = max(cut, inside[-1][1])
    clean = replaced(content[:cut], inside)[given:]
    before = max(0, cut - LONGEST_BEFORE)
    return clean, len(inside) + documents, content[before:], cut - before


def _spans_in(content: bytes, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Locate the secrets in a part of the content, as positions in the full content, in order and disjoint."""
    part = content[begin:stop]
    return ((begin + start, begin + end) for start, end in apart([*spans(part), *command_spans(part)]))


def _without_documents(
    content: bytes, given: int, regions: Sequence[tuple[int, int]], *, last: bool
) -> tuple[bytes, int]:
    """Redact command lines and environments in the content's JSON; return it with the number of secrets."""
    pieces: list[bytes] = []
    after = hits = 0
    for key in (key for region in regions for key in _JSON_KEY.finditer(content, *region)):
        if key.start() < after or key.end() < given or (not last and key.end() >= len(content) - LONGEST):
            continue
        text = content[key.end() : key.end() + LONGEST].decode("utf-8", "surrogateescape")
        try:
            value, length = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            continue
        safe = _safe_document(key[1].decode().lower(), value)
        if safe != value:
            end = key.end() + len(text[:length].encode("utf-8", "surrogateescape"))
            pieces += [content[after : key.end()], json.dumps(safe).encode()]
            after, hits = end, hits + 1
    return (b"".join([*pieces, content[after:]]), hits) if hits else (content, 0)


def _safe_document(key: str, value: Any) -> Any:
    if key in ENVIRONMENTS:
        return _safe_environment(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return safe_words(value)
    return safe_command(value) if isinstance(value, str) else value


def _safe_environment(value: Any) -> Any:
    """Redact an environment given as an object, as a list of `NAME=value`, or as one of these in a text."""
    if isinstance(value, dict):
        return json.loads(safe_environment_text(json.dumps(value)))
    if isinstance(value, list) and all(isinstance(one, str) and "=" in one for one in value):
        kept = json.loads(safe_environment_text(json.dumps(dict(one.split("=", 1) for one in value))))
        return [f"{name}={kept[name]}" for name in kept]
    return safe_environment_text(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


def _without_cells(content: bytes) -> tuple[bytes, int]:
    """Redact table cells in columns of commands, or in columns whose names announce secrets."""
    head = content.partition(b"\n")[0].decode("utf-8", "replace").lower()
    if "," not in head or not any(hint in head for hint in _HEADINGS):
        return content, 0
    hits = 0
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""))
        headings = [heading.strip() for heading in next(rows)]
        for row in rows:
            for heading, cell, safe in _safe_cells(headings, row):
                if safe != cell and len(cell) >= _SHORTEST_CELL and heading:
                    content = content.replace(_as_bytes(cell), _as_bytes(safe))
                    hits += 1
    except (csv.Error, StopIteration):
        return redacted_bytes(content)
    return content, hits


_HEADINGS: Final = (*COMMANDS, *ENVIRONMENTS, "pass", "secret", "token", "key", "cred", "value")


def _safe_cells(headings: list[str], row: list[str]) -> Iterator[tuple[str, str, str]]:
    named = next((cell for heading, cell in zip(headings, row, strict=False) if heading.lower() in NAMES), "")
    for heading, cell in zip(headings, row, strict=False):
        kind = heading.lower()
        if kind in COMMANDS:
            yield heading, cell, safe_command(cell)
        elif kind in ENVIRONMENTS:
            yield heading, cell, safe_environment_text(cell)
        elif announced(heading) >= Announced.LIKELY:
            yield heading, cell, safe_value(heading, cell)
        elif kind == "value" and named:
            yield heading, cell, safe_value(named, cell)


def _as_bytes(cell: str) -> bytes:
    return cell.replace('"', '""').encode("utf-8", "surrogateescape")
