"""The process that runs a kernel: it loads one code object and launches it on request, until its input ends.

It contains none of the source's host code. `target` starts it and explains its death.
"""

import ctypes
import json
import mmap
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.targets.gpu.driver import LAUNCH_ERRORS, MEMORY_ERRORS, VENDORS, Driver, DriverError

#: Alignment of a driver's own allocations; the same in every layout.
ALIGNMENT: Final = 256
#: The smallest band between two buffers, before the first and after the last.
BAND_BYTES: Final = 1 << 20
_MOST_STEPS: Final = 1024
_MOST_DECOYS: Final = 3


@dataclass(frozen=True)
class Arena:
    """Offsets of buffers in the given order, bands as (offset, bytes), and the total size. Bands fill every gap.

    `decoys` is the number of module copies loaded before the used one, so that its code gets another address.
    """

    offsets: tuple[int, ...]
    bands: tuple[tuple[int, int], ...]
    size: int
    decoys: int


def arrange(sizes: Sequence[int], seed: int) -> Arena:
    """Place buffers of `sizes` bytes: `seed` determines their order, their padding and the number of decoy modules."""
    generator = random.Random(seed)
    order = generator.sample(range(len(sizes)), len(sizes))
    offsets = [0] * len(sizes)
    bands = []
    end = 0
    for index in order:
        begin = _aligned(end + BAND_BYTES) + ALIGNMENT * generator.randrange(_MOST_STEPS)
        bands.append((end, begin - end))
        offsets[index] = begin
        end = begin + sizes[index]
    size = _aligned(end + BAND_BYTES)
    bands.append((end, size - end))
    return Arena(tuple(offsets), tuple(bands), size, generator.randint(0, _MOST_DECOYS))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVML: Final = "libnvidia-ml.so.1"
_NVML_GRAPHICS, _NVML_SM, _NVML_MEMORY = 0, 1, 2

Sample = dict[str, int | str | None]


class Conditions:
    """One device by its PCI address. `reason` explains why nothing can be read, and is otherwise None."""

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
        """Return clocks in MHz, power in mW, temperature in °C and NVML's throttle-reason bits; null if unknown."""
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


#: Bytes written before each timed launch: more than all caches in front of device memory hold (256 MiB on MI300X).
FLUSH_BYTES: Final = 512 << 20
#: Number of such writes: commands queued behind them do not wait for the host, and clocks have ramped up by then.
_FLUSHES: Final = 8
_CHECK_FLUSHES: Final = 256
#: Largest difference between the device's and the host's clock during the check, which lasts tens of milliseconds.
_CLOCK_TOLERANCE: Final = 0.1
_SET_PDEATHSIG: Final = 1
_FLOAT_POISON: Final = 0xFF

Bytes = NDArray[np.uint8]


class Unavailable(Exception):
    """The device or its driver is not fit for judging; the kernel is not at fault."""


@dataclass(frozen=True)
class Place:
    """A buffer: its bytes, and the offsets of its content and its result in the shared memory (null for none)."""

    size: int
    floating: bool
    content: int | None
    result: int | None


class Runner:
    """One device, one loaded kernel, one set of buffers."""

    def __init__(self, driver: Driver, shared: int) -> None:
        self._driver = driver
        self._shared_descriptor = shared
        self._device = driver.device()
        self._conditions = Conditions(self._device.bus)
        self._secret = np.random.default_rng(secrets.randbits(128))
        self._begin, self._end = driver.event(), driver.event()
        self._arena_address: int | None = None

    def device(self) -> dict[str, Any]:
        """Return the driver's description of the device."""
        return asdict(self._device)

    def load(self, artefact: str, symbol: str, seed: int) -> dict[str, Any]:
        """Load the code object after the number of copies that the layout's seed requires, and compare the clocks."""
        image = Path(artefact).read_bytes()
        self._seed = seed
        self._flush = self._driver.allocate(FLUSH_BYTES)
        try:
            for _ in range(arrange((), seed).decoys):
                self._driver.load(image, symbol)
            begin = time.monotonic_ns()
            self._function = self._driver.load(image, symbol)
        except DriverError as error:
            raise Refused("compile", f"the driver does not load the code object: {error}") from error
        return {"module_load_ns": time.monotonic_ns() - begin, **self._clocks_agree()}

    def buffers(self, places: Sequence[Place], shared_bytes: int) -> dict[str, Any]:
        """Create the buffers and their canary bands, replacing the existing ones."""
        self._shared = np.frombuffer(mmap.mmap(self._shared_descriptor, shared_bytes), dtype=np.uint8)
        if self._arena_address is not None:
            self._driver.free(self._arena_address)
        self._places = places
        self._arena: Arena = arrange([place.size for place in places], self._seed)
        self._arena_address = base = self._driver.allocate(self._arena.size)
        self._bands = [self._secret.integers(0, 256, size, dtype=np.uint8) for _, size in self._arena.bands]
        for (offset, size), pattern in zip(self._arena.bands, self._bands, strict=True):
            self._driver.write(base + offset, pattern.ctypes.data, size)
        largest = max(size for size in [*(size for _, size in self._arena.bands), *(place.size for place in places)])
        self._scratch = np.empty(largest, dtype=np.uint8)
        return {"addresses": [base + offset for offset in self._arena.offsets]}

    def call(
        self, grid: Sequence[int], block: Sequence[int], dynamic_lds_bytes: int, arguments: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Write contents, poison outputs, flush caches, time one launch between two events; then check everything."""
        poisons = self._fill_buffers()
        values = [self._argument(argument) for argument in arguments]
        duration = self._timed(grid, block, dynamic_lds_bytes, values)
        conditions = self._conditions.sample()
        self._check_inputs()
        self._check_bands()
        for place, address in self._placed():
            if place.result is not None:
                self._driver.read(self._shared.ctypes.data + place.result, address, place.size)
        return {"duration_ns": duration, "conditions": conditions, "poisons": poisons}

    def _timed(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        dynamic_lds_bytes: int,
        values: Sequence["ctypes.Array[ctypes.c_char]"],
    ) -> int:
        driver = self._driver
        try:
            if dynamic_lds_bytes:
                driver.allow_dynamic_lds(self._function, dynamic_lds_bytes)
            driver.wait_for_all()
            for count in range(_FLUSHES):
                driver.fill_in_order(self._flush, count, FLUSH_BYTES)
            host = time.monotonic_ns()
            driver.record(self._begin)
            driver.launch(self._function, grid, block, dynamic_lds_bytes, values)
            driver.record(self._end)
            driver.wait(self._end)
            host = time.monotonic_ns() - host
            driver.wait_for_all()
        except DriverError as error:
            raise _refusal(error) from error
        duration = driver.elapsed_ns(self._begin, self._end)
        if not 0 < duration <= host * (1 + _CLOCK_TOLERANCE):
            raise Unavailable(f"the device's clock says {duration} ns of what took the host {host} ns")
        return duration

    def _clocks_agree(self) -> dict[str, int]:
        """Compare the device's and the host's clock over a long piece of work; Unavailable if they differ."""
        driver = self._driver
        driver.fill_in_order(self._flush, 0, FLUSH_BYTES)
        driver.wait_for_all()
        host = time.monotonic_ns()
        driver.record(self._begin)
        for count in range(_CHECK_FLUSHES):
            driver.fill_in_order(self._flush, count % 256, FLUSH_BYTES)
        driver.record(self._end)
        driver.wait(self._end)
        host = time.monotonic_ns() - host
        device = driver.elapsed_ns(self._begin, self._end)
        if abs(device - host) > _CLOCK_TOLERANCE * host:
            raise Unavailable(f"the device's clock says {device} ns of work that took the host {host} ns")
        return {"check_device_ns": device, "check_host_ns": host}

    def _fill_buffers(self) -> list[int]:
        """Write contents, and poison `out` buffers: with a NaN for floats, an unlikely value for integers."""
        poisons = []
        for place, address in self._placed():
            poison = _FLOAT_POISON if place.floating else int(self._secret.integers(0x81, 0xFF))
            poisons.append(poison)
            if place.content is not None:
                self._driver.write(address, self._shared.ctypes.data + place.content, place.size)
            else:
                self._driver.fill(address, poison, place.size)
        return poisons

    def _placed(self) -> list[tuple[Place, int]]:
        assert self._arena_address is not None
        base = self._arena_address
        return [(place, base + offset) for place, offset in zip(self._places, self._arena.offsets, strict=True)]

    def _argument(self, argument: Mapping[str, Any]) -> "ctypes.Array[ctypes.c_char]":
        if "buffer" in argument:
            content = self._placed()[argument["buffer"]][1].to_bytes(8, "little")
        else:
            content = bytes.fromhex(argument["bytes"])
        return ctypes.create_string_buffer(content, len(content))

    def _check_inputs(self) -> None:
        for index, (place, address) in enumerate(self._placed()):
            if place.content is not None and place.result is None:
                expected = self._shared[place.content : place.content + place.size]
                if self._differs(address, expected) is not None:
                    raise Refused("inputs", f"input buffer {index + 1} was changed by the kernel")

    def _check_bands(self) -> None:
        assert self._arena_address is not None
        for (offset, size), pattern in zip(self._arena.bands, self._bands, strict=True):
            changed = self._differs(self._arena_address + offset, pattern)
            if changed is not None:
                raise Refused("memory", self._trespass(offset, size, changed))

    def _trespass(self, offset: int, size: int, changed: int) -> str:
        """Return the first overwritten byte of a canary band, as an offset from the nearer buffer."""
        ends = {begin + place.size: f"past buffer {index + 1}" for index, (place, begin) in enumerate(self._ranges())}
        begins = {begin: f"before buffer {index + 1}" for index, (_, begin) in enumerate(self._ranges())}
        near = [(changed + 1, ends.get(offset)), (size - changed, begins.get(offset + size))]
        distance, where = min((distance, where) for distance, where in near if where is not None)
        return f"the kernel wrote outside its buffers, {distance} bytes {where}"

    def _ranges(self) -> list[tuple[Place, int]]:
        return list(zip(self._places, self._arena.offsets, strict=True))

    def _differs(self, address: int, expected: Bytes) -> int | None:
        """Return the first unexpected byte of device memory."""
        held = self._scratch[: expected.size]
        self._driver.read(held.ctypes.data, address, expected.size)
        if np.array_equal(held, expected):
            return None
        return int(np.argmax(held != expected))


def _refusal(error: DriverError) -> Exception:
    if error.code in MEMORY_ERRORS:
        return Refused("memory", f"the kernel touched memory that it was not given: {error}")
    if error.code in LAUNCH_ERRORS:
        return Refused("resources", f"the device does not take the launch: {error}")
    return Refused("processes", f"the kernel did not finish: {error}")


def serve(commands: TextIO, answers: TextIO, shared: int) -> None:
    """Answer every command with one line, until the input ends or a command is refused."""
    first = json.loads(commands.readline())
    try:
        driver = Driver(replace(VENDORS[first["vendor"]], library=first["library"]))
        runner = Runner(driver, shared)
        answer = runner.device()
        _say(answers, first["nonce"], {"ok": answer})
        for line in commands:
            command = json.loads(line)
            _say(answers, command["nonce"], {"ok": _obey(runner, command["do"], command["with"])})
    except Refused as refused:
        _say(answers, first["nonce"], {"refused": [refused.guard, refused.reason]})
    except (Unavailable, DriverError, OSError) as error:
        _say(answers, first["nonce"], {"unavailable": str(error)})


def _obey(runner: Runner, what: str, given: dict[str, Any]) -> dict[str, Any]:
    if what == "load":
        return runner.load(**given)
    if what == "buffers":
        return runner.buffers([Place(**place) for place in given["places"]], given["shared_bytes"])
    return runner.call(**given)


def _say(answers: TextIO, nonce: str, answer: dict[str, Any]) -> None:
    answers.write(json.dumps({"nonce": nonce, **answer}) + "\n")
    answers.flush()


def main(arguments: Sequence[str]) -> None:
    """Bind this process to the life of its parent, and serve."""
    answers, shared, parent = map(int, arguments)
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    with os.fdopen(answers, "w") as stream:
        serve(sys.stdin, stream, shared)


if __name__ == "__main__":
    main(sys.argv[1:])
