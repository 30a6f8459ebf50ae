"""Calibrations in the lake: measured ceilings of a machine, one file per number of threads and per GPU.

They are written, read, checked, and matched with sessions on the same machine and number of threads, or the same GPU.
Measuring is `aaco_pipeline.resources.calibrate`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import CALIBRATIONS
from aaco_pipeline.lake.storage import STORAGE

if TYPE_CHECKING:
    import polars as pl

FORMAT_VERSION: Final = 1
#: Facts in `environment` that identify the machine and its speed limits. A calibration applies to a session if all of
#: them, including unknown ones, are equal.
MACHINE_FACTS: Final = (
    ("host", "name"),
    ("cpu", "model"),
    ("cpu", "family"),
    ("cpu", "model_number"),
    ("cpu", "stepping"),
    ("cpu", "logical_cpus"),
    ("cpu", "usable_cpus"),
    ("cpu", "simultaneous_multithreading"),
    ("cpu", "governor"),
    ("cpu", "boost"),
    ("cpu", "no_turbo"),
    ("cpu", "scaling_max_khz"),
    ("container", "cgroup_cpu_max"),
)
#: Facts that identify a GPU: GPUs of one host, architecture and size share a calibration.
GPU_FACTS: Final = ("host.name", "gpu.arch", "gpu.compute_units")
#: Far larger than any calibration with all its measurements.
MOST_BYTES: Final = 4 << 20
_HOST_NAME: Final = "host.name"
_CPU_MODEL: Final = "cpu.model"
_FILE: Final = re.compile(r"([0-9a-f]{16})-(gpu|[1-9][0-9]{0,5})\.json")
_GPU_ARCH: Final = "gpu.arch"


class DamagedCalibrationError(LakeError):
    """A calibration's file has the wrong content; measuring again repairs it."""


@dataclass(frozen=True)
class Ceiling:
    """The best rate that a resource reached, in `unit`; `reference` gives the kernel, repetitions and spread."""

    resource: str
    dtype: str | None
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: Literal["flop/s", "op/s", "byte/s"]
    reference: str


@dataclass(frozen=True)
class Calibration:
    """Ceilings of one machine with `threads` threads, or of one of its GPUs (`threads` is null).

    `machine` holds `MACHINE_FACTS` by `category.key`, or for a GPU `GPU_FACTS` and its product name; `absent` gives the
    reason for each unmeasured resource, `reservations` doubts about the measurement, and `details` everything else:
    kernels tried, caches, noise, versions.
    """

    machine: Mapping[str, str | None]
    threads: Annotated[int, Field(gt=0)] | None
    measured_at: str
    ceilings: tuple[Ceiling, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    reservations: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Return its name in `calibrations/`: the digest of the machine or GPU, and the number of threads or `gpu`."""
        return _file_name(self.machine, self.threads)

    def document(self) -> dict[str, Any]:
        """Return the content of the calibration's file."""
        return {"calibration_version": FORMAT_VERSION, **asdict(self)}

    def to_bytes(self) -> bytes:
        """Encode the file; equal calibrations give equal bytes."""
        return (json.dumps(self.document(), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    @staticmethod
    def from_bytes(content: bytes, source: str) -> "Calibration":
        """Parse and check a calibration read from `source`; LakeError if it is newer or damaged."""
        try:
            document = json.loads(content)
            version = document["calibration_version"]
            if type(version) is not int or version < 1:
                raise ValueError(f"calibration_version is {version!r}")
            if version > FORMAT_VERSION:
                raise LakeError(
                    f"{source}: calibration version {version} is newer than {FORMAT_VERSION}, the newest this "
                    "aaco_pipeline reads; upgrade aaco_pipeline"
                )
            return TypeAdapter(Calibration).validate_json(content, strict=True)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DamagedCalibrationError(
                f"{source}: not a calibration ({reason}); `aaco calibrate` writes it anew"
            ) from error


@dataclass(frozen=True)
class MeasuredCeilings:
    """Rows of `ceilings` without session_id in `frame`, or the `reason` why there are none."""

    frame: "pl.DataFrame | None"
    reason: str | None


def machine_digest(machine: Mapping[str, str | None]) -> str:
    """Return the first 16 hex digits of the SHA-256 over the facts, ordered as in `MACHINE_FACTS` or `GPU_FACTS`."""
    names = GPU_FACTS if _GPU_ARCH in machine else [f"{category}.{key}" for category, key in MACHINE_FACTS]
    values = [machine.get(name) for name in names]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def machine_of(facts: "Mapping[tuple[str, str], str | None]") -> dict[str, str | None]:
    """Select the machine's facts from those of a host or session, by `category.key`; null if not stated."""
    return {f"{category}.{key}": facts.get((category, key)) for category, key in MACHINE_FACTS}


def gpu_of(host: str | None, arch: str, compute_units: int, product: str | None) -> dict[str, str | None]:
    """Return a GPU's facts by `GPU_FACTS`, and its product name; features after the name in `arch` are dropped."""
    facts = (host, arch.partition(":")[0], str(compute_units))
    return {**dict(zip(GPU_FACTS, facts, strict=True)), "gpu.product": product}


def write_calibration(lake: Path, calibration: Calibration) -> Path:
    """Write the calibration to the lake, replacing an earlier one for the same case; return its file."""
    path = lake / CALIBRATIONS / calibration.file_name
    with lake_errors(path):
        STORAGE.write(path, calibration.to_bytes())
    return path


def read_calibration(lake: Path, machine: Mapping[str, str | None], threads: int | None) -> Calibration | None:
    """Read the calibration of a machine and number of threads, or of a GPU; None if there is none.

    LakeError if it cannot be read.
    """
    return _read(lake, _file_name(machine, threads))


def ceilings_for(
    lake: Path, environment: "pl.DataFrame", devices: "pl.DataFrame", threads: int | None
) -> MeasuredCeilings:
    """Find the measured ceilings of a session's CPU, by its machine and number of threads.

    `environment` and `devices` are the session's tables, `threads` is `sessions.threads`. Raises LakeError when the
    matching calibration is damaged or of a newer version.
    """
    cpu = devices.filter(devices["handle"] == "cpu")
    if cpu.is_empty():
        return MeasuredCeilings(None, "the session's devices do not include its CPU")
    rows = environment.select("category", "key", "value").rows()
    machine = machine_of({(category, key): value for category, key, value in rows})
    if machine[_CPU_MODEL] is None or machine[_HOST_NAME] is None:
        return MeasuredCeilings(None, "the session does not state on which host and CPU it ran")
    if threads is None:
        return MeasuredCeilings(None, "the session does not state with how many threads it ran")
    calibration = read_calibration(lake, machine, threads)
    if calibration is None:
        return MeasuredCeilings(None, _why_none(lake, machine, threads))
    return MeasuredCeilings(_frame(calibration, int(cpu["device_id"][0])), None)


def gpu_ceilings_for(lake: Path, environment: "pl.DataFrame", devices: "pl.DataFrame") -> "dict[int, MeasuredCeilings]":
    """Find the measured ceilings of each GPU of a session, by device_id. LakeError for a damaged or newer calibration.

    `environment` and `devices` are the session's tables.
    """
    import polars as pl

    named = environment.filter((pl.col("category") == "host") & (pl.col("key") == "name")).get_column("value")
    host = named[0] if len(named) else None
    found = {}
    gpus = devices.filter(pl.col("handle").ne_missing("cpu"))
    for device, arch, units, product in gpus.select("device_id", "arch", "compute_units", "product").iter_rows():
        if host is None or arch is None or units is None:
            found[device] = MeasuredCeilings(None, "the session does not state host, architecture and size of the GPU")
            continue
        calibration = read_calibration(lake, gpu_of(host, arch, units, product), None)
        if calibration is None:
            reason = "its GPU was not calibrated; run `aaco calibrate --device NUMBER` on that host"
            found[device] = MeasuredCeilings(None, reason)
        else:
            found[device] = MeasuredCeilings(_frame(calibration, device), None)
    return found


def _file_name(machine: Mapping[str, str | None], threads: int | None) -> str:
    return f"{machine_digest(machine)}-{'gpu' if threads is None else threads}.json"


def _frame(calibration: Calibration, device_id: int) -> "pl.DataFrame":
    import polars as pl

    from aaco_pipeline.lake.contracts import polars_types

    rows = [{"device_id": device_id, "source": "measured", **vars(ceiling)} for ceiling in calibration.ceilings]
    return pl.DataFrame(rows, schema=polars_types("ceilings")).sort("device_id", "resource", "dtype", "source")


def _why_none(lake: Path, machine: Mapping[str, str | None], threads: int) -> str:
    """Explain how the closest calibration differs, so that the user knows which calibration to run."""
    advice = f"run `aaco calibrate --threads {threads}` on that machine, as the session ran there"
    others = _calibrations_of_host(lake, machine)
    digest = machine_digest(machine)
    same = sorted(c.threads for c in others if c.threads is not None and machine_digest(c.machine) == digest)
    if same:
        measured = ", ".join(map(str, same))
        return f"its machine was calibrated with {measured} threads, and the session ran with {threads}; {advice}"
    if others:
        nearest = min(others, key=lambda c: len(_differences(c.machine, machine)))
        told = ", ".join(
            f"{name} (calibrated {nearest.machine.get(name) or 'not known'}, session {machine[name] or 'not known'})"
            for name in _differences(nearest.machine, machine)
        )
        return f"its host was calibrated in another state: {told}; {advice}"
    return f"its machine was not calibrated; {advice}"


def _differences(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> list[str]:
    names = (f"{category}.{key}" for category, key in MACHINE_FACTS)
    return [name for name in names if one.get(name) != other.get(name)]


def _calibrations_of_host(lake: Path, machine: Mapping[str, str | None]) -> list[Calibration]:
    """Return the readable CPU calibrations with the same host name."""
    found = []
    for name in STORAGE.names(lake / CALIBRATIONS):
        with suppress(LakeError):
            calibration = _read(lake, name) if _FILE.fullmatch(name) else None
            if calibration is None or calibration.threads is None:
                continue
            if calibration.machine.get(_HOST_NAME) == machine[_HOST_NAME]:
                found.append(calibration)
    return found


def _read(lake: Path, name: str) -> Calibration | None:
    path, storage = lake / CALIBRATIONS / name, STORAGE
    with lake_errors(path):
        state = storage.state(path)
        is_small = state is None or state.bytes <= MOST_BYTES
        try:
            content = storage.read(path) if is_small else None
        except FileNotFoundError:
            return None
    if content is None:
        raise DamagedCalibrationError(
            f"{path}: larger than {MOST_BYTES} bytes, so not a calibration; `aaco calibrate` writes it anew"
        )
    calibration = Calibration.from_bytes(content, str(path))
    if calibration.file_name != path.name:
        raise DamagedCalibrationError(
            f"{path}: holds the calibration that belongs in {calibration.file_name}; `aaco calibrate` writes it anew"
        )
    return calibration
