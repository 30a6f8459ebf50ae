"""The emulating process: it drives the instruction emulator of a tinygrad checkout, one workgroup after another.

The checkout (`test/mockgpu/amd`, MIT) implements the instructions; memory, initial registers, wavefront order and
counts are implemented here. Commands arrive as lines of JSON on standard input, answers leave on a separate pipe
(`process` is the other end). The process confines itself before it runs a kernel: the emulator passes a kernel's
addresses to the host unchanged.

The emulator's LDS writes and atomics also access the addresses of inactive lanes. Here those lanes temporarily get the
address of an active lane, so that stale values in them cannot cause a fault.
"""

import base64
import ctypes
import itertools
import json
import mmap
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

PAGE: Final = mmap.PAGESIZE
_PROTECT_NONE, _PROTECT_READ, _PROTECT_WRITE = 0, 1, 2
_EXEC_LO: Final = 126
#: The checkout's name for an architecture, and the instruction that ends its programs.
_ARCHITECTURES: Final = {
    "gfx950": ("cdna", 0xBF810000),
    "gfx942": ("cdna", 0xBF810000),
    "gfx1100": ("rdna3", 0xBFB00000),
}
_ADDRESS_FIELDS: Final = ("addr", "vaddr")
_NULL_SGPR: Final = 124
_CLASSES: Final = (
    (("SOPP", "SOPK", "SOP1", "SOP2", "SOPC"), "scalar"),
    (("SMEM",), "scalar_memory"),
    (("DS",), "lds"),
    (("FLAT", "GLOBAL", "SCRATCH", "VFLAT", "VGLOBAL", "VSCRATCH", "MUBUF"), "vector_memory"),
)
_MATRIX: Final = ("MFMA", "WMMA")
_CONTROL: Final = ("S_BRANCH", "S_CBRANCH", "S_ENDPGM", "S_BARRIER", "S_WAITCNT", "S_NOP", "S_SETPRIO", "S_SLEEP")

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Lacking(Exception):
    """The emulator does not support this; the kernel is not at fault."""


class Memory:
    """Bytes between two inaccessible pages, ending at the second one; `poison` fills the rest."""

    def __init__(self, size: int, *, poison: int, alignment: int = 4) -> None:
        held = -(-max(size, 1) // alignment) * alignment
        pages = -(-held // PAGE) * PAGE
        self._map = mmap.mmap(-1, pages + 2 * PAGE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size
        self.address = self._base + PAGE + pages - held
        self._before = self.address - self._base - PAGE
        self._after = held - size
        ctypes.memset(self._base + PAGE, poison, pages)
        self._poison = poison
        self._protect(self._base, PAGE, _PROTECT_NONE)
        self._protect(self._base + PAGE + pages, PAGE, _PROTECT_NONE)
        self._pages = pages

    def write(self, content: bytes, at: int = 0) -> None:
        ctypes.memmove(self.address + at, content, len(content))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)

    def fill(self, byte: int) -> None:
        ctypes.memset(self.address, byte, self.size)

    def is_whole(self) -> bool:
        """Return whether the bytes before and after it, up to the page boundaries, are unchanged."""
        before = ctypes.string_at(self._base + PAGE, self._before)
        after = ctypes.string_at(self.address + self.size, self._after)
        return before + after == bytes([self._poison]) * (self._before + self._after)

    def read_only(self) -> None:
        self._protect(self._base + PAGE, self._pages, _PROTECT_READ)

    def _protect(self, address: int, size: int, how: int) -> None:
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), how) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")


class Emulator:
    """The parts of a tinygrad checkout that are used, by their names there. Lacking if one is missing."""

    def __init__(self, architecture: str) -> None:
        try:
            from test.mockgpu.amd import emu  # type: ignore[import-not-found]
            from tinygrad.renderer.amd import decode_inst  # type: ignore[import-not-found]

            self._emulate: Any = emu
            self.decode: Callable[[bytes, str], Any] = decode_inst
            self.compiled: Callable[[int, str], Any] = self._emulate._decode_at
            self._wave: Callable[[int, int], Any] = self._emulate.WaveState
            self._stride_register: int = self._emulate.SCRATCH_STRIDE_IDX
            self._registers: int = self._emulate.SGPR_COUNT
            self.end: int = self._emulate.ENDPGM_PC
        except (ImportError, AttributeError, KeyError, OSError, RuntimeError) as error:
            raise Lacking(f"this checkout of tinygrad cannot be driven: {type(error).__name__}: {error}") from error
        self.name, end = _ARCHITECTURES[architecture]
        # The compiler that turns instructions into host code is loaded with the first one, while this is still
        # possible.
        self.wave(1, 64, 0, 0)
        first = ctypes.create_string_buffer(end.to_bytes(4, "little") + bytes(16))
        self.compiled(ctypes.addressof(first), self.name)

    def wave(self, lanes: int, size: int, scratch: int, number: int) -> Any:
        state = self._wave(lanes, size)
        state._write_sgpr(self._stride_register, scratch)
        # HW_ID, from which a wavefront can read its number in its workgroup.
        state._write_sgpr(self._registers - 16 + 4, (number & 0xF) | ((number & 0x3) << 4))
        return state


class Kernel:
    """A loaded program: its image in memory, and its decoded instructions."""

    def __init__(self, emulator: Emulator, given: Mapping[str, Any]) -> None:
        self._emulator = emulator
        self._given = given
        image = Path(given["image"]).read_bytes()
        self._image = image
        # The emulator fetches a few bytes beyond an instruction.
        self._memory = Memory(len(image) + 64, poison=0, alignment=PAGE)
        self._memory.write(image)
        if not given["writable"]:
            self._memory.read_only()
        self._base = self._memory.address
        self._wavefront = int(given["wavefront_size"])
        self._known: dict[int, tuple[Any, Sequence[int], bool, int, tuple[int, bool] | None, str]] = {}
        self._counts: dict[int, list[int]] = {}
        self._where = ctypes.c_int64.from_buffer(mmap.mmap(given["progress"], 8))

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run one launch: reset memory, poison outputs and LDS, run the wavefronts in the given order."""
        poison = int(given["poison"])
        for offset, size in self._given["writable"]:
            self._memory.write(self._image[offset : offset + size], offset)
        buffers = []
        for one in given["buffers"]:
            memory = Memory(one["size"], poison=0xFF if one["floating"] else poison)
            if one["content"] is not None:
                memory.write(base64.b64decode(one["content"]))
                if not one["result"]:
                    memory.read_only()
            buffers.append(memory)
        arguments = Memory(len(given["arguments"]) // 2, poison=poison, alignment=16)
        arguments.write(bytes.fromhex(given["arguments"]))
        for offset, number in given["addresses"]:
            arguments.write(buffers[number].address.to_bytes(8, "little"), offset)
        packet = Memory(64, poison=poison, alignment=16)
        packet.write(bytes.fromhex(given["packet"]))
        packet.write(arguments.address.to_bytes(8, "little"), 40)
        local = Memory(given["lds_bytes"], poison=poison, alignment=16)
        addresses = {"arguments": arguments.address, "packet": packet.address}
        user = [
            0 if name is None else addresses[name[:-2]] >> (32 * int(name[-1])) & 0xFFFFFFFF
            for name in self._given["user_registers"]
        ]
        self._counts = {}
        self._left = int(given["most_instructions"])
        groups = list(itertools.product(*(range(size) for size in reversed(given["grid"]))))
        for group in reversed(groups) if given["backwards"] else groups:
            local.fill(poison)
            self._workgroup(group[::-1], given, user, local, poison)
            if not local.is_whole():
                return {"trespass": "local memory"}
        for number, memory in enumerate(buffers):
            if not memory.is_whole():
                return {"trespass": f"buffer {number + 1}"}
        return {
            "results": [
                base64.b64encode(memory.read()).decode() if one["result"] else None
                for memory, one in zip(buffers, given["buffers"], strict=True)
            ],
            "instructions": self._by_class(),
        }

    def _workgroup(
        self, group: Sequence[int], given: Mapping[str, Any], user: Sequence[int], local: Memory, poison: int
    ) -> None:
        x, y, z = given["block"]
        items, size, scratch = x * y * z, self._wavefront, int(given["scratch_bytes"])
        waves = []
        for number, first in enumerate(range(0, items, size)):
            lanes = min(size, items - first)
            state = self._emulator.wave(lanes, size, scratch, number)
            state.pc = self._base + self._given["entry"]
            for register, value in enumerate(user):
                state._write_sgpr(register, value)
            for register, dimension in enumerate(self._given["group_registers"], start=len(user)):
                state._write_sgpr(register, group[dimension])
            for lane in range(lanes):
                item = first + lane
                state._write_vgpr(0, lane, item // (x * y) << 20 | item // x % y << 10 | item % x)
            stack = Memory(max(scratch * size, 4), poison=poison)
            places = (state.sgpr_buf, state.vgpr_buf, None, local, stack, state.accvgpr_buf)
            waves.append((state, [_address(one) for one in places], stack))
        if given["backwards"]:
            waves.reverse()
        waiting = waves
        while waiting:
            # Each wavefront runs to its next barrier or its end, one after another.
            waiting = [wave for wave in waiting if self._to_barrier(wave[0], wave[1])]

    def _to_barrier(self, state: Any, places: Sequence[ctypes.c_uint64]) -> bool:
        """Run a wavefront until it waits at a barrier; False if it has ended."""
        known, counts, where, base, end = self._known, self._counts, self._where, self._base, self._emulator.end
        while True:
            at = state.pc
            if at == end:
                return False
            if at not in known:
                known[at] = self._decoded(at)
            call, order, is_barrier, size, address, _ = known[at]
            where.value = at - base
            count = counts.setdefault(at, [0])
            count[0] += 1
            self._left -= 1
            if self._left < 0:
                raise Lacking("the launch takes more instructions than it is given")
            if address is not None and not _all_on(state):
                self._with_safe_addresses(state, address, size, call, [places[number] for number in order])
            else:
                call(*[places[number] for number in order])
            if is_barrier:
                return True

    def _decoded(self, at: int) -> tuple[Any, Sequence[int], bool, int, tuple[int, bool] | None, str]:
        begin, size = self._given["code"]
        if not begin <= at - self._base < begin + size:
            raise Lacking(f"the kernel goes on at {at - self._base:#x}, which is none of its own code")
        try:
            (program, runtime), instruction = self._emulator.compiled(at, self._emulator.name)
        except Exception as error:
            raise Lacking(f"{self._named(at)}: {error}") from error
        name = _name(instruction)
        is_barrier = name in ("S_BARRIER", "S_BARRIER_WAIT")
        address = _address_register(instruction)
        return runtime.fxn, program.arg.globals, is_barrier, instruction.size(), address, _class(instruction)

    def _named(self, at: int) -> str:
        try:
            data = ctypes.string_at(at, 16)
            return _name(self._emulator.decode(data, self._emulator.name)).lower()
        except (ValueError, KeyError, AttributeError, RuntimeError):
            return f"the instruction {ctypes.string_at(at, 8).hex()}"

    def _with_safe_addresses(
        self, state: Any, address: tuple[int, bool], size: int, call: Any, places: Sequence[ctypes.c_uint64]
    ) -> None:
        lanes = _lanes_on(state)
        if not lanes:
            state.pc = state.pc + size
            return
        register, is_wide = address
        off = [lane for lane in range(state.wave_size) if lane not in lanes]
        kept = []
        for part in (register, register + 1) if is_wide else (register,):
            value = state._read_vgpr(part, lanes[0])
            for lane in off:
                kept.append((part, lane, state._read_vgpr(part, lane)))
                state._write_vgpr(part, lane, value)
        call(*places)
        for part, lane, value in kept:
            state._write_vgpr(part, lane, value)

    def _by_class(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for at, (count,) in self._counts.items():
            what = self._known[at][5]
            found[what] = found.get(what, 0) + count
        return found


def _address(place: Any) -> ctypes.c_uint64:
    if place is None:
        return ctypes.c_uint64(0)
    return ctypes.c_uint64(place.address if isinstance(place, Memory) else place._buf.va_addr)


def _lanes_on(state: Any) -> list[int]:
    mask = state._read_sgpr(_EXEC_LO)
    if state.wave_size > 32:
        mask |= state._read_sgpr(_EXEC_LO + 1) << 32
    return [lane for lane in range(state.wave_size) if mask >> lane & 1]


def _all_on(state: Any) -> bool:
    low: bool = state._read_sgpr(_EXEC_LO) == 0xFFFFFFFF
    return low and (state.wave_size <= 32 or state._read_sgpr(_EXEC_LO + 1) == 0xFFFFFFFF)


def _address_register(instruction: Any) -> tuple[int, bool] | None:
    """Return the first VGPR of the address (True: a pair) of an instruction that also runs for inactive lanes."""
    name, kind = _name(instruction), type(instruction).__name__
    is_lds = kind == "DS"
    if not (is_lds and "PERMUTE" not in name and "SWIZZLE" not in name) and "ATOMIC" not in name:
        return None
    for field in _ADDRESS_FIELDS:
        register = getattr(instruction, field, None)
        if register is not None:
            base = getattr(instruction, "saddr", None)
            return register.offset - 256, not is_lds and (base is None or base.offset >= _NULL_SGPR)
    return None


def _name(instruction: Any) -> str:
    if hasattr(instruction, "opx"):
        return f"{instruction.opx.name}_{instruction.opy.name}"
    return str(instruction.op.name)


def _class(instruction: Any) -> str:
    name, kind = _name(instruction), type(instruction).__name__.removesuffix("_LIT")
    if name.startswith(_CONTROL):
        return "control"
    if any(word in name for word in _MATRIX):
        return "matrix"
    return next((what for kinds, what in _CLASSES if kind in kinds), "vector")


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answer every command with one line, until the input ends or a command fails."""
    kernel: Kernel | None = None
    emulator: Emulator | None = None
    for line in commands:
        command = json.loads(line)
        try:
            given = command["with"]
            if command["do"] == "open":
                emulator = Emulator(given["architecture"])
                answer: dict[str, Any] = {"ok": {"unconfined": _shut_in(given)}}
            elif command["do"] == "load" and emulator is not None:
                kernel = Kernel(emulator, given)
                answer = {"ok": {}}
            else:
                assert kernel is not None
                answer = {"ok": kernel.run(given)}
        except Lacking as error:
            answer = {"lacking": " ".join(str(error).split())[:500]}
        answers.write(json.dumps({"nonce": command["nonce"], **answer}) + "\n")
        answers.flush()


def _shut_in(given: Mapping[str, Any]) -> list[str]:
    """Confine this process to its memory and readable files; return what the kernel did not grant."""
    from aaco_pipeline.resources.confinement import sandbox

    readable = [*sandbox.imported_from(), *(Path(one) for one in given["readable"])]
    network = sandbox.without_network()
    sandbox.without_privileges()
    limits = {resource.RLIMIT_DATA: given["memory_bytes"], resource.RLIMIT_CPU: given["cpu_seconds"]}
    sandbox.within({**limits, resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_NOFILE: sandbox.MOST_FILES_OPEN})
    return [one for one in (network, sandbox.only_beneath(readable, [])) if one is not None]


def main(arguments: Sequence[str]) -> None:
    """Bind this process to the life of its parent, and serve."""
    from aaco_pipeline.resources.confinement import sandbox

    answers, parent = map(int, arguments)
    sandbox.end_with_parent(parent)
    with os.fdopen(answers, "w") as stream:
        serve(sys.stdin, stream)


if __name__ == "__main__":
    main(sys.argv[1:])
