"""A GPU's driver over ctypes: modules, memory, launches and events, with the names of either vendor.

The library is loaded only in the process that runs a kernel (`runner`). The result of every call is checked.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

VendorName = Literal["cuda", "amd"]


@dataclass(frozen=True)
class Vendor:
    """A vendor's names. `entry_points` has the same keys for both; `attributes` are numbers of device attributes.

    `dynamic_lds_attribute` is the function attribute to raise for a large dynamic LDS, null if there is none.
    """

    name: VendorName
    people: str
    library: str
    entry_points: Mapping[str, str]
    attributes: Mapping[str, int]
    dynamic_lds_attribute: int | None


#: Entry points of both drivers: CUDA and HIP.
_ENTRY_POINTS: Final = {
    "initialize": ("cuInit", "hipInit"),
    "device": ("cuDeviceGet", "hipDeviceGet"),
    "device_name": ("cuDeviceGetName", "hipDeviceGetName"),
    "device_attribute": ("cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    "device_bus": ("cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId"),
    "driver_version": ("cuDriverGetVersion", "hipDriverGetVersion"),
    "retain_context": ("cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain"),
    "use_context": ("cuCtxSetCurrent", "hipCtxSetCurrent"),
    "allocate": ("cuMemAlloc_v2", "hipMalloc"),
    "free": ("cuMemFree_v2", "hipFree"),
    "to_device": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD"),
    "from_device": ("cuMemcpyDtoH_v2", "hipMemcpyDtoH"),
    "fill": ("cuMemsetD8_v2", "hipMemsetD8"),
    "fill_in_order": ("cuMemsetD8Async", "hipMemsetD8Async"),
    "load": ("cuModuleLoadData", "hipModuleLoadData"),
    "function": ("cuModuleGetFunction", "hipModuleGetFunction"),
    "function_attribute": ("cuFuncGetAttribute", "hipFuncGetAttribute"),
    "launch": ("cuLaunchKernel", "hipModuleLaunchKernel"),
    "make_event": ("cuEventCreate", "hipEventCreateWithFlags"),
    "record": ("cuEventRecord", "hipEventRecord"),
    "wait": ("cuEventSynchronize", "hipEventSynchronize"),
    "elapsed": ("cuEventElapsedTime", "hipEventElapsedTime"),
    "wait_for_all": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    "error_name": ("cuGetErrorName", "hipDrvGetErrorName"),
    "set_function_attribute": ("cuFuncSetAttribute", "hipFuncSetAttribute"),
}
VENDORS: Final[Mapping[str, Vendor]] = {
    "cuda": Vendor(
        name="cuda",
        people="NVIDIA",
        library="libcuda.so.1",
        entry_points={key: cuda for key, (cuda, _) in _ENTRY_POINTS.items()},
        attributes={"wavefront_size": 10, "major": 75, "minor": 76},
        dynamic_lds_attribute=8,
    ),
    "amd": Vendor(
        name="amd",
        people="AMD",
        library="libamdhip64.so",
        entry_points={key: hip for key, (_, hip) in _ENTRY_POINTS.items()},
        attributes={},
        dynamic_lds_attribute=None,
    ),
}


#: Results that report an illegal access by a kernel: the same numbers in CUDA and HIP.
MEMORY_ERRORS: Final = (700, 714, 716, 717, 718)
#: Results that refuse a launch: invalid values and configurations, too many resources.
LAUNCH_ERRORS: Final = (1, 9, 701)
_NAME_BYTES: Final = 256


class DriverError(Exception):
    """A driver call failed; `code` is its number, `name` the driver's own name for it."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with {name} ({code})")
        self.code = code
        self.name = name


@dataclass(frozen=True)
class Device:
    """The driver's description of a device. `architecture` is CUDA's compute capability, null for HIP."""

    name: str
    bus: str
    driver_version: int
    architecture: str | None
    wavefront_size: int | None


class Driver:
    """The first visible device's context in this process. DriverError if a call fails; OSError without a library."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._library = ctypes.CDLL(vendor.library)
        self._call("initialize", ctypes.c_uint(0))
        device = ctypes.c_int()
        self._call("device", ctypes.byref(device), ctypes.c_int(0))
        self._device = device
        context = ctypes.c_void_p()
        self._call("retain_context", ctypes.byref(context), device)
        self._call("use_context", context)

    def device(self) -> Device:
        """Return the device's description."""
        name, bus = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_NAME_BYTES)
        version = ctypes.c_int()
        self._call("device_name", name, ctypes.c_int(_NAME_BYTES), self._device)
        self._call("device_bus", bus, ctypes.c_int(_NAME_BYTES), self._device)
        self._call("driver_version", ctypes.byref(version))
        asked = {key: self._attribute(number) for key, number in self._vendor.attributes.items()}
        architecture = f"sm_{asked['major']}{asked['minor']}" if "major" in asked else None
        return Device(name.value.decode(), bus.value.decode(), version.value, architecture, asked.get("wavefront_size"))

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes on the device and return the address."""
        address = ctypes.c_void_p()
        self._call("allocate", ctypes.byref(address), ctypes.c_size_t(size))
        if address.value is None:
            raise DriverError(self._vendor.entry_points["allocate"], 0, "a null address")
        return address.value

    def free(self, address: int) -> None:
        """Free memory."""
        self._call("free", ctypes.c_void_p(address))

    def write(self, address: int, host: int, size: int) -> None:
        """Copy host memory to the device."""
        if size:
            self._call("to_device", ctypes.c_void_p(address), ctypes.c_void_p(host), ctypes.c_size_t(size))

    def read(self, host: int, address: int, size: int) -> None:
        """Copy device memory to the host."""
        if size:
            self._call("from_device", ctypes.c_void_p(host), ctypes.c_void_p(address), ctypes.c_size_t(size))

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set device memory to a byte value; complete, or ordered before later commands, on return."""
        if size:
            self._call("fill", ctypes.c_void_p(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def fill_in_order(self, address: int, byte: int, size: int) -> None:
        """Queue a fill before the next commands."""
        self._call("fill_in_order", ctypes.c_void_p(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size), None)

    def load(self, image: bytes, symbol: str) -> ctypes.c_void_p:
        """Load the code object and return a function of it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("load", ctypes.byref(module), ctypes.c_char_p(image))
        self._call("function", ctypes.byref(function), module, ctypes.c_char_p(symbol.encode()))
        return function

    def allow_dynamic_lds(self, function: ctypes.c_void_p, size: int) -> None:
        """Allow a function to be launched with `size` bytes of dynamic LDS, if the driver requires permission."""
        attribute = self._vendor.dynamic_lds_attribute
        if attribute is not None:
            self._call("set_function_attribute", function, ctypes.c_int(attribute), ctypes.c_int(size))

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        dynamic_lds_bytes: int,
        arguments: Sequence["ctypes.Array[ctypes.c_char]"],
    ) -> None:
        """Queue a kernel. `arguments` are the bytes of each argument, in order."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = [ctypes.c_uint(size) for size in (*grid, *block, dynamic_lds_bytes)]
        self._call("launch", function, *sizes, None, pointers, None)

    def event(self) -> ctypes.c_void_p:
        """Create an event that records the device's time."""
        event = ctypes.c_void_p()
        self._call("make_event", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        """Queue an event."""
        self._call("record", event, None)

    def wait(self, event: ctypes.c_void_p) -> None:
        """Wait until the device has reached an event."""
        self._call("wait", event)

    def wait_for_all(self) -> None:
        """Wait until the device has finished all queued work."""
        self._call("wait_for_all")

    def elapsed_ns(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> int:
        """Return the device's time between two events. The driver returns milliseconds as a 32-bit float."""
        milliseconds = ctypes.c_float()
        self._call("elapsed", ctypes.byref(milliseconds), begin, end)
        return round(milliseconds.value * 1e6)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("device_attribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        return value.value

    def _call(self, key: str, *arguments: object) -> None:
        name = self._vendor.entry_points[key]
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise DriverError(name, code, self._error_name(code))

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        ask = getattr(self._library, self._vendor.entry_points["error_name"])
        if int(ask(ctypes.c_int(code), ctypes.byref(text))) or text.value is None:
            return "an error without a name"
        return text.value.decode()
