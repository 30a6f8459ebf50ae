"""Read NVIDIA GPUs during a run with NVML, the driver's own library: raw integers with their times.

`aaco_pipeline.formats.native.nvml` interprets them; `sampler` schedules the readings.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, byref, c_char, c_int, c_int64, c_uint, c_uint64, c_void_p, sizeof
from typing import Any, Final

from aaco_pipeline.resources.telemetry.gpu_metrics import READING_LIMIT, GpuSource
from aaco_pipeline.resources.telemetry.sources import UnreadableError


class Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class MemoryApart(Structure):
    """Like `Memory`, but with the driver's reserved memory separate from the used memory."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_uint64),
        ("reserved", c_uint64),
        ("free", c_uint64),
        ("used", c_uint64),
    )


class Pci(Structure):
    _fields_ = (
        ("legacy_bus_id", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_and_vendor", c_uint),
        ("subsystem", c_uint),
        ("bus_id", c_char * 32),
    )


class Field(Structure):
    """An NVML value by its number; `bits` holds every value type that is requested here."""

    _fields_ = (
        ("number", c_uint),
        ("scope", c_uint),
        ("timestamp_us", c_int64),
        ("latency_us", c_int64),
        ("type", c_uint),
        ("status", c_uint),
        ("bits", c_uint64),
    )


#: The driver's library, as the loader finds it.
LIBRARY: Final = "libnvidia-ml.so.1"
#: Values that are requested together, by NVML number: `held_…` count the ns in which a limit held the clocks down.
FIELDS: Final[Mapping[str, int]] = {
    "memory_temperature_c": 82,
    "ecc_corrected": 3,
    "ecc_uncorrected": 4,
    "held_sw_power_cap_ns": 74,
    "held_sync_boost_ns": 76,
    "held_board_limit_ns": 77,
    "held_sw_thermal_slowdown_ns": 269,
    "held_hw_thermal_slowdown_ns": 270,
    "held_hw_power_brake_slowdown_ns": 271,
}
#: Longest call per reading: an H200 takes 2 us for a clock, 620 for the fields and 3,000 for the energy. A longer call
#: is made only at every second, third … reading.
CALL_SHARE_NS: Final = 100_000
_TRIALS: Final = 2
_OK: Final = 0
_NO_FUNCTION: Final = 13
#: NVML's results for a lost device: shut down, no driver, fallen off the bus, needs a reset, not found.
_GONE: Final = (1, 9, 15, 16, 28)
#: Errors that cannot change while a process runs: the call is not repeated.
_NEVER: Final = (2, 3, 4, _NO_FUNCTION, 25, 26)
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_SENSOR: Final = 0
_TEXT_BYTES: Final = 96
_CLOSED: Final = "the library is closed"

#: One call with the columns that it fills.
_Call = tuple[tuple[str, ...], Callable[[], Sequence[int | None]]]


#: Bytes of a field's value by its type: unsigned int, unsigned long, unsigned long long, long long, int, short.
_FIELD_BYTES: Final[Mapping[int, int]] = {1: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 2}


class NvmlError(Exception):
    """NVML returned an error; `number` is NVML's."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class Nvml:
    """Load and initialize the library. UnreadableError if it is missing or finds no driver."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise UnreadableError(f"{LIBRARY} cannot be loaded: {error}") from error
        try:
            self.call("nvmlInit_v2")
        except NvmlError as error:
            raise UnreadableError(f"NVML cannot be initialized: {error}") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. NvmlError if it fails, or if this version of the library lacks it."""
        self.check(self.function(name)(*arguments), name)

    def has(self, name: str) -> bool:
        """Return whether this version of the library has the function."""
        return hasattr(self._library, name)

    def function(self, name: str) -> Callable[..., int]:
        """Look up a function by name. NvmlError if this version of the library lacks it."""
        try:
            found: Callable[..., int] = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(_NO_FUNCTION, f"this driver's NVML has no {name}") from None
        return found

    def check(self, status: int, name: str) -> None:
        """Raise NvmlError, with NVML's own message, for an error status."""
        if status == _OK:
            return
        words = f"error {status}"
        if self.has("nvmlErrorString"):
            text = self._library.nvmlErrorString
            text.restype = ctypes.c_char_p
            words = (text(status) or words.encode()).decode("utf-8", "replace")
        raise NvmlError(status, f"{name}: {words}")

    def close(self) -> None:
        """Shut the library down; NVML counts initializations per process."""
        if self.has("nvmlShutdown"):
            self._library.nvmlShutdown()


class NvmlSource(GpuSource["tuple[int | None, ...]"]):
    """One NVML device; a reading is one integer, or None, for each of `names`."""

    def __init__(self, nvml: Nvml, index: int, *, reading_limit: int = READING_LIMIT) -> None:
        """Open the device; NvmlError if that fails. `index` is NVML's own, in PCI bus order."""
        super().__init__(f"GPU {index}", reading_limit)
        self._nvml = nvml
        self._handle = c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(self._handle))
        self.reasons: dict[str, str] = {}
        self.facts = self._facts()
        self._calls = list(self._all_calls())
        self.names: tuple[str, ...] = tuple(name for names, _ in self._calls for name in names)
        self._open = True
        self._taken_so_far = 0
        #: Interval, in readings, between two uses of each call.
        self._turns = [max(1, -(-self._cost_ns(call) // CALL_SHARE_NS)) for _, call in self._calls]

    def forget(self) -> None:
        """Drop the readings taken so far; the next one makes every call."""
        super().forget()
        self._taken_so_far = 0

    def _cost_ns(self, call: Callable[[], Sequence[int | None]]) -> int:
        """Return the shortest time of a call; a failing one counts as cheap, because readings report why it fails."""
        least = 1 << 62
        for _ in range(_TRIALS):
            begin = time.perf_counter_ns()
            try:
                call()
            except NvmlError:
                return 0
            least = min(least, time.perf_counter_ns() - begin)
        return least

    def _taken(self) -> tuple[int | None, ...]:
        if not self._open:
            self.failure = f"NVML of {self.device}: {_CLOSED}"
            raise UnreadableError(_CLOSED)
        values: list[int | None] = []
        turn, self._taken_so_far = self._taken_so_far, self._taken_so_far + 1
        for at, (names, call) in enumerate(self._calls):
            if turn % self._turns[at]:
                values += [None] * len(names)
                continue
            try:
                values += call()
            except NvmlError as error:
                values += [None] * len(names)
                self._without(at, names, error)
        if all(value is None for value in values):
            reason = next(iter(self.reasons.values()), "it states no value")
            self.failure = f"NVML of {self.device} gives no reading: {reason}"
            raise UnreadableError(self.failure)
        return tuple(values)

    def _without(self, at: int, names: tuple[str, ...], error: NvmlError) -> None:
        """Note why a call failed; permanent failures are not retried. Raises if the device is gone."""
        if error.number in _GONE:
            self.failure = f"NVML of {self.device}: {error}"
            raise UnreadableError(self.failure) from error
        for name in names:
            self.reasons.setdefault(name, str(error))
        if error.number in _NEVER:
            self._calls[at] = (names, lambda: (None,) * len(names))

    def recording(self) -> dict[str, Any]:
        """Return the readings for a JSON document: a list for each of `names`, with null for missing values."""
        return {
            **self._kept(),
            "library": "nvml",
            "facts": self.facts,
            "reasons": dict(self.reasons),
            "turns": {names[0]: turn for (names, _), turn in zip(self._calls, self._turns, strict=True) if turn > 1},
            "columns": {name: [reading[at] for reading in self._readings] for at, name in enumerate(self.names)},
        }

    def close(self) -> None:
        """Release the device; its readings stay."""
        if self._open:
            self._open = False
            self._nvml.close()

    def _all_calls(self) -> Sequence[_Call]:
        """Return all calls of a reading; newer functions come before those that they replaced."""
        reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        if not self._nvml.has(reasons):
            reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return (
            self._number("power_mw", "nvmlDeviceGetPowerUsage"),
            self._number("energy_mj", "nvmlDeviceGetTotalEnergyConsumption", c_uint64),
            self._number("gpu_temperature_c", "nvmlDeviceGetTemperature", c_uint, _GPU_SENSOR),
            self._number("sm_clock_mhz", "nvmlDeviceGetClockInfo", c_uint, _SM_CLOCK),
            self._number("memory_clock_mhz", "nvmlDeviceGetClockInfo", c_uint, _MEMORY_CLOCK),
            self._utilization(),
            self._memory_used(),
            self._number("event_reasons", reasons, c_uint64),
            self._number("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            self._number("pcie_lanes", "nvmlDeviceGetCurrPcieLinkWidth"),
            self._fields(),
        )

    def _call(
        self, columns: tuple[str, ...], name: str, value: Any, take: Callable[[], Sequence[int | None]], *before: Any
    ) -> _Call:
        """Return a call that fills `value`: resolved once, so a reading costs little more than the driver's work."""
        check, handle, reference = self._nvml.check, self._handle, byref(value)
        try:
            function = self._nvml.function(name)
        except NvmlError as error:
            missing = error

            def fail() -> Sequence[int | None]:
                raise missing

            return columns, fail

        def call() -> Sequence[int | None]:
            check(function(handle, *before, reference), name)
            return take()

        return columns, call

    def _number(self, column: str, name: str, of: Any = c_uint, kind: int | None = None) -> _Call:
        """Return a function that reads one unsigned number, of the sensor or clock `kind` if it has several."""
        value = of()
        before = () if kind is None else (c_uint(kind),)
        return self._call((column,), name, value, lambda: (_known(value.value, sizeof(of)),), *before)

    def _utilization(self) -> _Call:
        value = Utilization()
        columns = ("gpu_busy_percent", "memory_busy_percent")
        return self._call(columns, "nvmlDeviceGetUtilizationRates", value, lambda: (value.gpu, value.memory))

    def _memory_used(self) -> _Call:
        value, name = self._memory()
        return self._call(("memory_used_bytes",), name, value, lambda: (_known(value.used, 8),))

    def _memory(self) -> tuple[Any, str]:
        """Return structure and function for the memory sizes; older drivers count reserved memory as used."""
        if self._nvml.has("nvmlDeviceGetMemoryInfo_v2"):
            return MemoryApart(version=2 << 24 | sizeof(MemoryApart)), "nvmlDeviceGetMemoryInfo_v2"
        return Memory(), "nvmlDeviceGetMemoryInfo"

    def _fields(self) -> _Call:
        asked = (Field * len(FIELDS))(*(Field(number=number) for number in FIELDS.values()))

        def values() -> Sequence[int | None]:
            return [self._field(name, one) for name, one in zip(FIELDS, asked, strict=True)]

        return self._call(tuple(FIELDS), "nvmlDeviceGetFieldValues", asked, values, c_int(len(asked)))

    def _field(self, name: str, field: Field) -> int | None:
        """Return a value requested by number; None, with a reason, if the device does not have it."""
        if field.status == _OK and field.type in _FIELD_BYTES:
            size = _FIELD_BYTES[field.type]
            return _known(field.bits & ((1 << 8 * size) - 1), size)
        if field.status in _GONE:
            self._nvml.check(field.status, name)
        if name not in self.reasons:
            try:
                self._nvml.check(field.status or 999, f"field {field.number}")
            except NvmlError as error:
                self.reasons[name] = str(error)
        return None

    def _facts(self) -> dict[str, Any]:
        """Describe the device; values are null if NVML does not return them."""
        pci, (memory, memory_call) = Pci(), self._memory()
        major, minor, mig, pending = c_int(), c_int(), c_uint(), c_uint()
        has_pci = self._answers("nvmlDeviceGetPciInfo_v3", byref(pci))
        has_memory = self._answers(memory_call, byref(memory))
        capable = self._answers("nvmlDeviceGetCudaComputeCapability", byref(major), byref(minor))
        divided = self._answers("nvmlDeviceGetMigMode", byref(mig), byref(pending))
        return {
            "product": self._text("nvmlDeviceGetName"),
            "uuid": self._text("nvmlDeviceGetUUID"),
            "pci_address": pci.bus_id.decode("ascii", "replace").lower() if has_pci else None,
            "compute_capability": f"{major.value}.{minor.value}" if capable else None,
            "memory_bytes": _known(memory.total, 8) if has_memory else None,
            "max_sm_clock_mhz": self._fact("nvmlDeviceGetMaxClockInfo", c_uint(_SM_CLOCK)),
            "max_memory_clock_mhz": self._fact("nvmlDeviceGetMaxClockInfo", c_uint(_MEMORY_CLOCK)),
            "memory_bus_bits": self._fact("nvmlDeviceGetMemoryBusWidth"),
            "power_limit_mw": self._fact("nvmlDeviceGetEnforcedPowerLimit"),
            "mig": bool(mig.value) if divided else None,
        }

    def _answers(self, name: str, *arguments: Any) -> bool:
        """Return whether NVML answers a query about the device."""
        try:
            self._nvml.call(name, self._handle, *arguments)
        except NvmlError:
            return False
        return True

    def _fact(self, name: str, *before: Any) -> int | None:
        value = c_uint()
        return value.value if self._answers(name, *before, byref(value)) else None

    def _text(self, name: str) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        return buffer.value.decode("utf-8", "replace") if self._answers(name, buffer, c_uint(_TEXT_BYTES)) else None


def _known(value: int, size: int) -> int | None:
    """Return an unsigned number of `size` bytes as 63 bits; None for all ones, which NVML uses for no value."""
    return value if value < min(1 << 63, (1 << 8 * size) - 1) else None


def open_devices(library: str = LIBRARY) -> tuple[list[NvmlSource], Mapping[str, str]]:
    """Return a source for each GPU that NVML lists, and the reasons why others have none. Never raises for them.

    Raises UnreadableError if there is no library, no driver, or no device list.
    """
    nvml = Nvml(library)
    count = c_uint()
    sources: list[NvmlSource] = []
    reasons: dict[str, str] = {}
    try:
        nvml.call("nvmlDeviceGetCount_v2", byref(count))
        for index in range(count.value):
            own = Nvml(library)
            try:
                sources.append(NvmlSource(own, index))
            except NvmlError as error:
                own.close()
                reasons[f"GPU {index}"] = f"NVML of GPU {index}: {error}"
    except NvmlError as error:
        raise UnreadableError(f"NVML cannot list its devices: {error}") from error
    finally:
        nvml.close()
    return sources, reasons
