"""A linked code object as a loader places it in memory, and the initial registers and arguments of a launch.

Implements the "User Guide for AMDGPU Backend" of LLVM (https://llvm.org/docs/AMDGPUUsage.html): kernel descriptor,
initial kernel execution state, metadata of code objects 4 and 5; and the HSA standard's kernel dispatch packet. This
replaces the work of a driver and a command processor, because the emulator only executes instructions.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from aaco_pipeline.optimization.targets import Buffer, Call, Launch, NotEmulated
from aaco_pipeline.resources.elf import RELOCATIONS, WRITE
from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, KernelMetadata

_MOST_IMAGE_BYTES: Final = 64 << 20
_PACKET: Final = struct.Struct("<HHHHHHIIIIIQQQQ")
#: Property bits of a descriptor, in the order of the registers that they request, with the number of registers.
_USER_REGISTERS: Final = (
    ("private segment buffer", 4),
    ("dispatch packet", 2),
    ("queue", 2),
    ("arguments", 2),
    ("dispatch id", 2),
    ("flat scratch", 2),
    ("private segment size", 1),
)
_GROUP_BITS: Final = (1 << 7, 1 << 8, 1 << 9)
#: FLOAT_MODE of COMPUTE_PGM_RSRC1: keep both kinds of denormals, round to nearest, as HIP compiles code for.
_FLOAT_MODE: Final = 0xF0


@dataclass(frozen=True)
class Program:
    """A kernel in memory. Offsets are from the start of `image`; `writable` has (offset, bytes) of its variables.

    `code` is the range that may contain instructions. `user_registers` names the content of the first SGPRs, one name
    per register: `arguments.0` is the low half of the arguments' address, `packet.0` that of the dispatch packet, null
    is 0. The workgroup's numbers follow, for the dimensions in `group_registers`.
    """

    image: bytes
    entry: int
    code: tuple[int, int]
    writable: tuple[tuple[int, int], ...]
    user_registers: tuple[str | None, ...]
    group_registers: tuple[int, ...]
    wavefront_size: int
    kernel: KernelMetadata


def read_program(data: bytes, kernel: str) -> Program:
    """Load the program of one kernel. NotEmulated if it needs unsupported features; CodeObjectError if malformed."""
    code = CodeObject(data)
    stated = code.kernel(kernel)
    placed = [one for one in code.sections if one.address]
    size = max((one.address + one.size for one in placed), default=0)
    if size > _MOST_IMAGE_BYTES:
        raise NotEmulated(f"the code object takes {size} bytes in memory; {_MOST_IMAGE_BYTES} are the most")
    if any(one.kind == RELOCATIONS and one.size for one in placed):
        raise NotEmulated("the code object has addresses to be filled in when it is loaded")
    image = bytearray(size)
    for one in placed:
        image[one.address : one.address + len(one.content)] = one.content
    descriptor = code.symbols_by_name[f"{stated.symbol}.kd"]
    function = code.symbols_by_name.get(stated.symbol)
    if function is None or function.section is None:
        raise NotEmulated(f"the code object has a kernel {stated.symbol} and no code of it")
    text = code.sections[function.section]  # including the functions that it calls
    (entry,) = struct.unpack_from("<q", code.content(descriptor), 16)
    _, first, second, properties, preloaded = struct.unpack_from("<IIIHH", code.content(descriptor), 44)
    if stated.dynamic_stack:
        raise NotEmulated("the kernel's stack has no size that is known before it runs")
    if first >> 12 & 0xFF != _FLOAT_MODE:
        raise NotEmulated(
            f"the kernel asks for the floating-point mode {first >> 12 & 0xFF:#04x}, and not {_FLOAT_MODE:#04x}"
        )
    return Program(
        image=bytes(image),
        entry=descriptor.value + entry,
        code=(text.address, text.size),
        writable=tuple((one.address, one.size) for one in placed if one.flags & WRITE and one.name not in _LOADERS),
        user_registers=_user_registers(properties, preloaded & 0x7F),
        group_registers=tuple(dimension for dimension, bit in enumerate(_GROUP_BITS) if second & bit),
        wavefront_size=stated.wavefront_size,
        kernel=stated,
    )


#: Sections that a loader writes and no kernel reads.
_LOADERS: Final = (".dynamic", ".relro_padding")


def _user_registers(properties: int, preloaded: int) -> tuple[str | None, ...]:
    """Return the initial user registers by the kernel's properties. The kernel itself loads its arguments."""
    names: list[str | None] = []
    for bit, (what, count) in enumerate(_USER_REGISTERS):
        if not properties >> bit & 1:
            continue
        if what == "arguments":
            names += ["arguments.0", "arguments.1"]
        elif what == "dispatch packet":
            names += ["packet.0", "packet.1"]
        elif what in ("private segment buffer", "flat scratch", "private segment size"):
            raise NotEmulated(f"the kernel asks for the {what} in registers, as GPUs before gfx942 do")
        else:
            names += [None] * count
    return (*names, *[None] * preloaded)


def argument_bytes(program: Program, call: Call) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the argument segment of a call, and the positions of buffer addresses: (offset, buffer number).

    Raises NotEmulated for a hidden argument of a runtime service (printing, allocation, queues).
    """
    kernel, content, addresses = program.kernel, bytearray(program.kernel.kernarg_bytes), list[tuple[int, int]]()
    stated = [one for one in kernel.arguments if not one.kind.startswith("hidden_")]
    if len(stated) != len(call.arguments):
        raise NotEmulated(f"the kernel takes {len(stated)} arguments and the call gives {len(call.arguments)}")
    buffers = 0
    for place, given in zip(stated, call.arguments, strict=True):
        if isinstance(given, Buffer):
            if place.kind != "global_buffer" or place.size != 8:
                raise NotEmulated(f"{given.name} is a buffer, and the kernel takes it as {place.kind}")
            addresses.append((place.offset, buffers))
            buffers += 1
        else:
            value = np.array(given.value, dtype=given.dtype).tobytes()
            if place.kind != "by_value" or place.size != len(value):
                raise NotEmulated(
                    f"{given.name} has {len(value)} bytes, and the kernel takes {place.size} ({place.kind})"
                )
            content[place.offset : place.offset + place.size] = value
    for place in kernel.arguments:
        if place.kind.startswith("hidden_"):
            content[place.offset : place.offset + place.size] = _hidden(place.kind, call.launch).to_bytes(
                place.size, "little"
            )
    return bytes(content), addresses


def dispatch_packet(program: Program, launch: Launch) -> bytes:
    """Return HSA's dispatch packet, without addresses: older device libraries read its sizes."""
    items = [groups * size for groups, size in zip(launch.grid, launch.block, strict=True)]
    return _PACKET.pack(
        *(2, _dimensions(launch), *launch.block, 0, *items),
        *(program.kernel.scratch_bytes, program.kernel.lds_bytes + launch.dynamic_lds_bytes, 0, 0, 0, 0),
    )


def _hidden(kind: str, launch: Launch) -> int:
    name, _, dimension = kind.removeprefix("hidden_").rpartition("_")
    by_dimension: Mapping[str, Callable[[int], int]] = {
        "block_count": lambda at: launch.grid[at],
        "group_size": lambda at: launch.block[at],
        "remainder": lambda at: 0,  # a HIP launch has only complete workgroups
        "global_offset": lambda at: 0,
    }
    if name in by_dimension and dimension in ("x", "y", "z"):
        return by_dimension[name]("xyz".index(dimension))
    whole = {
        "hidden_grid_dims": _dimensions(launch),
        "hidden_dynamic_lds_size": launch.dynamic_lds_bytes,
        "hidden_none": 0,
    }
    if kind not in whole:
        raise NotEmulated(f"the kernel wants {kind} of the runtime")
    return whole[kind]


def _dimensions(launch: Launch) -> int:
    sizes = [groups * size for groups, size in zip(launch.grid, launch.block, strict=True)]
    return max((at + 1 for at, size in enumerate(sizes) if size > 1), default=1)
