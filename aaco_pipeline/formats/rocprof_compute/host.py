"""What a workload folder of rocprof-compute says of machine, devices, configuration and measured ceilings."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl
import yaml

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.csv_text import TextTable
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_value
from aaco_pipeline.formats.parsing.regular_files import is_regular
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import to_contract

#: Older releases' names of the facts of `sysinfo.csv`, by plain name.
_OLDER: Final = {
    "host_name": "hostname",
    "host_cpu": "cpu_model",
    "host_distro": "linux_distro",
    "host_kernel": "linux_kernel_version",
    "host_rocmver": "rocm_version",
    "date": "timestamp",
    "gpu_soc": "gpu_arch",
    "name": "gpu_model",
    "numse": "se_per_gpu",
    "numcu": "cu_per_gpu",
    "numsimd": "simd_per_cu",
    "wavesize": "wave_size",
    "maxwavespercu": "max_waves_per_cu",
    "maxworkgroupsize": "workgroup_max_size",
    "l1": "gpu_l1",
    "l2": "gpu_l2",
    "sclk": "max_sclk",
    "mclk": "max_mclk",
    "l2banks": "total_l2_chan",
    "numsqc": "sqc_per_gpu",
    "numpipes": "pipes_per_gpu",
    "hbmbw": "hbm_bw",
}
_CATEGORIES: Final = {
    "rocm_version": "rocm",
    "amd_gpu_kernel_version": "driver",
    "vbios": "firmware",
    "sbios": "firmware",
    "linux_kernel_version": "kernel",
}
#: What the tool writes has two levels.
_DEEPEST_NESTING: Final = 32
_OPENING: Final = (
    *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
)
_CLOSING: Final = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
_UNSTATED: Final = ("", "NA", "N/A", "nan", "None")
_LONGEST_CONFIGURATION: Final = 1 << 20
_LONGEST_LIST: Final = 100


def facts(info: TextTable) -> dict[str, str]:
    """The facts of `sysinfo.csv` by their present names; what is not stated is left out."""
    if not info.frame.height:
        return {}
    row = info.frame.row(0, named=True)
    stated = {name: value.strip() for name, value in row.items() if value is not None}
    return {_OLDER.get(name, name): value for name, value in stated.items() if value not in _UNSTATED}


def process(known: Mapping[str, str]) -> pl.DataFrame:
    """The one row of `processes`; each pass was another process of the same command, so it has no number."""
    command = known.get("command")
    row = {
        "process_id": [0],
        "host": [known.get("hostname")],
        "command": [None if command is None else safe_command(command)],
    }
    return to_contract("processes", pl.DataFrame(row, schema_overrides={"host": pl.String, "command": pl.String}))


def devices(handles: pl.DataFrame, known: Mapping[str, str]) -> pl.DataFrame:
    """The table `devices`: one row per device that ran kernels, each with the facts, which hold for all of a kind."""
    partition = [known[name] for name in ("compute_partition", "memory_partition") if name in known]
    l2_kilobytes = _whole(known, "gpu_l2")
    arch = known.get("gpu_arch")
    row = {
        "vendor": "AMD" if arch is not None and arch.startswith("gfx") else None,
        "arch": arch,
        "product": known.get("gpu_model"),
        "compute_units": _whole(known, "cu_per_gpu"),
        "xcc_count": _whole(known, "num_xcd"),
        "simd_per_cu": _whole(known, "simd_per_cu"),
        "wavefront_size": _whole(known, "wave_size"),
        "max_clock_mhz": _whole(known, "max_sclk"),
        "memory_clock_mhz": _whole(known, "max_mclk"),
        "l2_bytes": None if l2_kilobytes is None else l2_kilobytes * 1024,
        "partition_mode": "/".join(partition) or None,
    }
    return to_contract(
        "devices", handles.select("device_id", handle="device", **{k: pl.lit(v) for k, v in row.items()})
    )


def environment(known: Mapping[str, str], settings: Mapping[str, str]) -> pl.DataFrame:
    """The table `environment`: the facts of the machine, and the profiler's settings in the category `profiler`."""
    rows = [
        (_CATEGORIES.get(name, "machine"), name, _safe(name, value), name in _CATEGORIES)
        for name, value in known.items()
    ]
    rows += [("profiler", name, _safe(name, value), False) for name, value in settings.items()]
    schema = polars_types("environment")
    return to_contract("environment", pl.DataFrame(rows, schema=schema, orient="row"))


def configuration(path: Path, limits: Limits) -> dict[str, str] | None:
    """The settings of `profiling_config.yaml` that are single values or lists of such; None when it cannot be read."""
    if not is_regular(path):
        return None
    try:
        content = read_decompressed(path, replace(limits, whole_bytes=_LONGEST_CONFIGURATION))
        if not _is_plain(content):
            return None
        settings = yaml.safe_load(content)
    except (CaptureError, yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    texts = {str(name): _text(value) for name, value in settings.items() if isinstance(name, str)}
    return {name: text for name, text in texts.items() if text is not None}


def _is_plain(content: bytes) -> bool:
    """Whether a file is as the tool writes it: flat, and without mappings merged into one another, which may grow so.

    Over thousands of levels the parser takes seconds, until its stack ends.
    """
    depth = 0
    for token in yaml.scan(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > _DEEPEST_NESTING or (isinstance(token, yaml.ScalarToken) and token.value == "<<"):
            return False
    return True


def _whole(known: Mapping[str, str], name: str) -> int | None:
    """A positive whole number; 0 is how the tool writes what it could not find out."""
    text = known.get(name, "").removesuffix(".0")
    return int(text) if text.isascii() and text.isdecimal() and int(text[:18]) > 0 and len(text) <= 18 else None


def _safe(name: str, value: str) -> str:
    return safe_command(value) if name in ("command", "remaining") else safe_value(name, value)


def _text(value: object) -> str | None:
    """A single value, or a list of such, as text; None for anything deeper, and for nothing."""
    if isinstance(value, list) and len(value) <= _LONGEST_LIST:
        items = [_text(item) if not isinstance(item, list) else None for item in value]
        return None if None in items or not items else " ".join(item for item in items if item is not None)
    return str(value) if isinstance(value, (str, int, float)) else None
