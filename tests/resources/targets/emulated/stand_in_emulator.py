"""A stand-in of a checkout's emulator: a handful of instructions of one word, by the names that the driver asks for.

The word's low byte says which, the next is its operand. The first two SGPRs hold the address of the arguments, whose
first eight bytes are the address of a buffer of 32-bit words. It tests the driver, and knows nothing of AMD's machine
code. The test folder lays it out as a checkout of tinygrad is.
"""

import ctypes
import time
from types import SimpleNamespace
from typing import Any

SCRATCH_STRIDE_IDX, SGPR_COUNT, ENDPGM_PC = 259, 260, (1 << 64) - 1
PC, EXEC = 256, 126
S_ENDPGM, S_BARRIER, GLOBAL_STORE, DS_ADD, GLOBAL_STORE_LDS, S_BRANCH, S_SLEEP, V_UNKNOWN, V_EXEC, DS_WRITE = range(10)
NAMES = (
    *("S_ENDPGM", "S_BARRIER", "GLOBAL_STORE", "DS_ADD", "GLOBAL_STORE_LDS", "S_BRANCH", "S_SLEEP", "V_UNKNOWN"),
    *("V_EXEC", "DS_WRITE"),
)


class Words:
    """32-bit words at an address of their own."""

    def __init__(self, count: int) -> None:
        self.words = (ctypes.c_uint32 * count)()
        self._buf = SimpleNamespace(va_addr=ctypes.addressof(self.words))


class WaveState:
    """A wavefront's registers."""

    def __init__(self, n_lanes: int, wave_size: int = 32) -> None:
        self.n_lanes, self.wave_size = n_lanes, wave_size
        self.sgpr_buf, self.vgpr_buf, self.accvgpr_buf = Words(SGPR_COUNT), Words(4 * wave_size), Words(1)
        mask = (1 << n_lanes) - 1
        self._write_sgpr(EXEC, mask)
        self._write_sgpr(EXEC + 1, mask >> 32)

    def _write_sgpr(self, register: int, value: int) -> None:
        self.sgpr_buf.words[register] = value & 0xFFFFFFFF

    def _read_sgpr(self, register: int) -> int:
        return self.sgpr_buf.words[register]

    def _write_vgpr(self, register: int, lane: int, value: int) -> None:
        self.vgpr_buf.words[register * self.wave_size + lane] = value & 0xFFFFFFFF

    def _read_vgpr(self, register: int, lane: int) -> int:
        return self.vgpr_buf.words[register * self.wave_size + lane]

    @property
    def pc(self) -> int:
        return self._read_sgpr(PC) | self._read_sgpr(PC + 1) << 32

    @pc.setter
    def pc(self, value: int) -> None:
        self._write_sgpr(PC, value)
        self._write_sgpr(PC + 1, value >> 32)


class SOPP:
    """An instruction."""

    def __init__(self, word: int) -> None:
        self.op = SimpleNamespace(name=NAMES[word & 0xFF])
        self.operand = word >> 8 & 0xFF
        self.addr = SimpleNamespace(offset=256 + 1)

    def size(self) -> int:
        return 4


class DS(SOPP):
    """One of local memory, whose address is in the second VGPR."""


class GLOBAL(SOPP):
    """One of memory."""


def decode_inst(data: bytes, arch: str) -> Any:
    """The instruction that a word stands for."""
    word = int.from_bytes(data[:4], "little")
    if word == 0xBF810000:
        word = S_ENDPGM
    return (DS if word & 0xFF in (DS_ADD, DS_WRITE) else GLOBAL if "GLOBAL" in NAMES[word & 0xFF] else SOPP)(word)


def _decode_at(pc: int, arch: str) -> tuple[Any, Any]:
    instruction = decode_inst(ctypes.string_at(pc, 4), arch)
    if instruction.op.name == "V_UNKNOWN":
        raise RuntimeError("no such instruction")

    def step(scalar: ctypes.c_uint64, vector: ctypes.c_uint64, local: ctypes.c_uint64) -> None:
        assert scalar.value is not None and vector.value is not None and local.value is not None
        sgpr = (ctypes.c_uint32 * SGPR_COUNT).from_address(scalar.value)
        vgpr = (ctypes.c_uint32 * (4 * 64)).from_address(vector.value)
        lds = ctypes.c_uint32.from_address(local.value)
        name, operand = instruction.op.name, instruction.operand
        arguments = sgpr[0] | sgpr[1] << 32
        out = ctypes.c_uint64.from_address(arguments).value
        item = vgpr[0] & 0x3FF
        next_pc = pc + 4
        if name == "S_ENDPGM":
            next_pc = ENDPGM_PC
        elif name == "S_BRANCH":
            next_pc = pc
        elif name == "S_SLEEP":
            time.sleep(60)
        elif name == "GLOBAL_STORE":
            beside = operand - 256 if operand > 127 else operand
            ctypes.c_uint32.from_address(out + 4 * (item // 64 + beside)).value = 7 + item // 64
        elif name == "DS_ADD":
            lds.value += 1
        elif name == "GLOBAL_STORE_LDS":
            ctypes.c_uint32.from_address(out + 4 * (item // 64)).value = lds.value
        elif name == "V_EXEC":
            sgpr[EXEC], sgpr[EXEC + 1] = operand, 0
            for lane in range(64):
                vgpr[64 + lane] = 0 if operand >> lane & 1 else 0xDEAD0000
        elif name == "DS_WRITE":  # of every lane, also of those that are switched off, as the checkout's does it
            for lane in range(64):
                place = ctypes.c_uint32.from_address(local.value + vgpr[64 + lane])
                place.value = 42 if (sgpr[EXEC] | sgpr[EXEC + 1] << 32) >> lane & 1 else place.value
        sgpr[PC], sgpr[PC + 1] = next_pc & 0xFFFFFFFF, next_pc >> 32

    return (SimpleNamespace(arg=SimpleNamespace(globals=(0, 1, 3))), SimpleNamespace(fxn=step)), instruction
