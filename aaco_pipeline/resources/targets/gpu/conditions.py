"""In what state a GPU ran: its clocks, power, temperature and what holds its clocks down. Read, never set."""

import ctypes
from pathlib import Path
from typing import Final

_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVML: Final = "libnvidia-ml.so.1"
_NVML_GRAPHICS, _NVML_SM, _NVML_MEMORY = 0, 1, 2

Sample = dict[str, int | str | None]


class Conditions:
    """One device by its PCI address. `reason` says why nothing can be read, and is null where something can."""

    def __init__(self, bus: str) -> None:
        self.reason: str | None = None
        self._handle = ctypes.c_void_p()
        self._hwmon: Path | None = next((_PCI_DEVICES / bus.lower()).glob("hwmon/hwmon*"), None)
        try:
            self._nvml: ctypes.CDLL | None = ctypes.CDLL(_NVML)
        except OSError:
            self._nvml = None
        if self._nvml is not None and not (
            self._nvml.nvmlInit_v2() == 0
            and self._nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(self._handle)) == 0
        ):
            self._nvml = None
        if self._nvml is None and self._hwmon is None:
            self.reason = f"neither NVML nor a hwmon folder knows the device {bus}"

    def sample(self) -> Sample:
        """Clocks in MHz, power in mW, temperature in °C and NVML's bits of throttle reasons; null where not told."""
        if self._nvml is not None:
            return {
                "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", _NVML_SM),
                "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", _NVML_MEMORY),
                "power_mw": self._number("nvmlDeviceGetPowerUsage"),
                "temperature_c": self._number("nvmlDeviceGetTemperature", 0),
                "throttle_reasons": self._reasons(),
            }
        if self._hwmon is not None:
            return {
                "sm_clock_mhz": _scaled(self._hwmon / "freq1_input", 1_000_000),
                "memory_clock_mhz": _scaled(self._hwmon / "freq2_input", 1_000_000),
                "power_mw": self._power(self._hwmon),
                "temperature_c": _scaled(self._hwmon / "temp1_input", 1_000),
                "throttle_reasons": None,
            }
        return {"unread": self.reason}

    @staticmethod
    def _power(hwmon: Path) -> int | None:
        average = _scaled(hwmon / "power1_average", 1_000)
        return _scaled(hwmon / "power1_input", 1_000) if average is None else average

    def _number(self, name: str, *which: int) -> int | None:
        value = ctypes.c_uint()
        code = getattr(self._nvml, name)(self._handle, *which, ctypes.byref(value))
        return None if code else value.value

    def _reasons(self) -> int | None:
        value = ctypes.c_ulonglong()
        code = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(value))  # type: ignore[union-attr]
        return None if code else value.value


def _scaled(file: Path, divisor: int) -> int | None:
    try:
        return int(file.read_text()) // divisor
    except (OSError, ValueError):
        return None
