"""What NVML fills in, laid out as its API reference says."""

from ctypes import Structure, c_char, c_int64, c_uint, c_uint64


class Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class MemoryApart(Structure):
    """As `Memory`, with what the driver keeps for itself told apart from what is used."""

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
    """A value that NVML is asked for by number; every type of value that is asked for here is in `bits`."""

    _fields_ = (
        ("number", c_uint),
        ("scope", c_uint),
        ("timestamp_us", c_int64),
        ("latency_us", c_int64),
        ("type", c_uint),
        ("status", c_uint),
        ("bits", c_uint64),
    )
