"""What differs between the two vendors: names of libraries and entry points, compilers, and numbers of attributes.

Everything else of these targets is one piece of code for both, so that what holds on one holds on the other but for
the names in this table. Names are those of the CUDA driver API and of the HIP runtime's module API.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

VendorName = Literal["cuda", "amd"]


@dataclass(frozen=True)
class Vendor:
    """A vendor's names. `entry_points` has the same keys for each; `attributes` are numbers of device attributes.

    `dynamic_lds_attribute` is the function attribute that must be raised for a large dynamic LDS, null where none is.
    """

    name: VendorName
    people: str
    library: str
    entry_points: Mapping[str, str]
    attributes: Mapping[str, int]
    dynamic_lds_attribute: int | None


CUDA: Final = Vendor(
    name="cuda",
    people="NVIDIA",
    library="libcuda.so.1",
    entry_points={
        "initialize": "cuInit",
        "device": "cuDeviceGet",
        "device_name": "cuDeviceGetName",
        "device_attribute": "cuDeviceGetAttribute",
        "device_bus": "cuDeviceGetPCIBusId",
        "driver_version": "cuDriverGetVersion",
        "retain_context": "cuDevicePrimaryCtxRetain",
        "use_context": "cuCtxSetCurrent",
        "allocate": "cuMemAlloc_v2",
        "free": "cuMemFree_v2",
        "to_device": "cuMemcpyHtoD_v2",
        "from_device": "cuMemcpyDtoH_v2",
        "fill": "cuMemsetD8_v2",
        "fill_in_order": "cuMemsetD8Async",
        "load": "cuModuleLoadData",
        "function": "cuModuleGetFunction",
        "function_attribute": "cuFuncGetAttribute",
        "launch": "cuLaunchKernel",
        "make_event": "cuEventCreate",
        "record": "cuEventRecord",
        "wait": "cuEventSynchronize",
        "elapsed": "cuEventElapsedTime",
        "wait_for_all": "cuCtxSynchronize",
        "error_name": "cuGetErrorName",
        "set_function_attribute": "cuFuncSetAttribute",
    },
    attributes={"wavefront_size": 10, "major": 75, "minor": 76},
    dynamic_lds_attribute=8,
)

AMD: Final = Vendor(
    name="amd",
    people="AMD",
    library="libamdhip64.so",
    entry_points={
        "initialize": "hipInit",
        "device": "hipDeviceGet",
        "device_name": "hipDeviceGetName",
        "device_attribute": "hipDeviceGetAttribute",
        "device_bus": "hipDeviceGetPCIBusId",
        "driver_version": "hipDriverGetVersion",
        "retain_context": "hipDevicePrimaryCtxRetain",
        "use_context": "hipCtxSetCurrent",
        "allocate": "hipMalloc",
        "free": "hipFree",
        "to_device": "hipMemcpyHtoD",
        "from_device": "hipMemcpyDtoH",
        "fill": "hipMemsetD8",
        "fill_in_order": "hipMemsetD8Async",
        "load": "hipModuleLoadData",
        "function": "hipModuleGetFunction",
        "function_attribute": "hipFuncGetAttribute",
        "launch": "hipModuleLaunchKernel",
        "make_event": "hipEventCreateWithFlags",
        "record": "hipEventRecord",
        "wait": "hipEventSynchronize",
        "elapsed": "hipEventElapsedTime",
        "wait_for_all": "hipDeviceSynchronize",
        "error_name": "hipDrvGetErrorName",
        "set_function_attribute": "hipFuncSetAttribute",
    },
    attributes={},
    dynamic_lds_attribute=None,
)

VENDORS: Final[Mapping[str, Vendor]] = {CUDA.name: CUDA, AMD.name: AMD}
