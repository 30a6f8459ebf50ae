"""The confined process of a kernel, seen from outside: it is started, called, timed and ended here.

Nothing that the process reports is trusted if it can be read from outside: its CPU time comes from the operating
system, read before the request and after the outputs were taken, so that work deferred until after the answer is
counted; its outputs and canaries are read from the shared memory; its threads are counted. A call consists of two
requests: an untimed one that restores the process's memory to its state before the first call, and one that runs the
kernel. `native/worker.c` is the other end.
"""

import ctypes
import math
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Argument, Buffer, Call, Execution, Scalar
from aaco_pipeline.resources.targets.cpu.buffers import Buffers

_MOST_BUFFERS, _MOST_ARGUMENTS, _MOST_ITEMS = 64, 64, 1024
MOST_DYNAMIC_LDS_BYTES: Final = 64 << 10
_SETUP: Final = struct.Struct("=IIIIQ")
_MAPPING: Final = struct.Struct("=iIQQ")
_READY: Final = struct.Struct("=QQIIII")
_REQUEST: Final = struct.Struct(f"=QII3I3IIIII{8 * _MOST_ARGUMENTS}s")
_REPLY: Final = struct.Struct("=QIIIIQII")
_PREPARE, _GO = 1, 2
_DONE, _FAULT, _SHUT_IN, _PREPARED = 1, 2, 3, 4
#: `si_code` of a fault without an address (SI_KERNEL).
_NO_ADDRESS: Final = 0x80
#: Address space in addition to the buffers: the program, the C library, stacks for 1024 work-items.
_MEMORY_BYTES: Final = 512 << 20
_START_NS: Final = 10_000_000_000
_END_SECONDS: Final = 20
#: Wall-clock seconds per second of CPU time: only ends processes that hang, however busy the machine is.
_PATIENCE: Final = 60
_LOOK_MS: Final = 50
#: CPU time that a waiting process may use between two calls. It sleeps and uses none; this allows for the system's own
#: accounting.
MOST_IDLE_NS: Final = 1_000_000
_STEPS: Final = {
    **{1: "be tied to its parent", 2: "read its setup", 3: "map its buffers", 4: "close descriptors"},
    **{5: "make stacks", 6: "keep its data", 7: "limit itself", 8: "give up privileges", 9: "watch for faults"},
    10: "answer",
}
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Confinement:
    """The confinement of the process, for the record. The limits and the system-call filter are always active."""

    namespaces: bool
    other_user: bool


class _Process:
    """One process with its buffers."""

    def __init__(self, program: Path, buffers: Sequence[Buffer], items: int) -> None:
        if len(buffers) > _MOST_BUFFERS:
            raise UsageError(f"a kernel has {len(buffers)} buffers; the cpu target takes {_MOST_BUFFERS}")
        self.buffers = Buffers(buffers)
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started = time.monotonic_ns()
        with theirs:
            self.child = _spawn(program, theirs.fileno(), [one.descriptor for one in self.buffers.placed.values()])
        self._status = Path("/proc", str(self.child.pid), "status").open("rb", buffering=0)  # noqa: SIM115
        self._rests = 0
        try:
            self.clock = _cpu_clock(self.child.pid)
            self.confinement = self._shut_in(items)
            self.load_ns = time.monotonic_ns() - started
            self.last_ns = self._used_ns(_START_NS)
        except BaseException:
            self.end()
            raise
        self.tasks = Path("/proc", str(self.child.pid), "task")

    def _shut_in(self, items: int) -> Confinement:
        placed = list(self.buffers.placed.values())
        memory = _MEMORY_BYTES + sum(one.mapped_bytes for one in placed)
        mappings = b"".join(
            _MAPPING.pack(one.descriptor, one.buffer.role != "in", one.mapped_address, one.mapped_bytes)
            for one in placed
        )
        setup = _SETUP.pack(len(placed), os.getpid(), items, 0, memory) + mappings.ljust(
            _MOST_BUFFERS * _MAPPING.size, b"\0"
        )
        try:
            self.channel.send(setup)
        except OSError as error:
            raise UsageError(f"the kernel's process did not start: {error}") from error
        answer = self._hear(_READY.size, _START_NS)
        _, _, failed, error_number, namespaces, _ = _READY.unpack(answer)
        if failed:
            raise UsageError(
                f"the kernel's process could not {_STEPS.get(failed, failed)}: {os.strerror(error_number)}"
            )
        # The filter is installed before this answer.
        _, kind, *_, error_number, _ = _REPLY.unpack(self._hear(_REPLY.size, _START_NS))
        if kind != _SHUT_IN:
            raise UsageError(f"no kernel is run here: the seccomp filter was refused ({os.strerror(error_number)})")
        return Confinement(bool(namespaces & 1), not namespaces & 2)

    def _hear(self, size: int, limit_ns: int) -> bytes:
        """Receive the next message of that size within the child's CPU time, or `_PATIENCE` times that by the clock."""
        began = time.clock_gettime_ns(self.clock)
        deadline = time.monotonic_ns() + _PATIENCE * limit_ns
        watched = select.poll()
        watched.register(self.channel, select.POLLIN)
        while not watched.poll(_LOOK_MS):
            used = time.clock_gettime_ns(self.clock) - began
            if used > limit_ns or time.monotonic_ns() > deadline:
                raise Refused("time", f"one call did not end within {limit_ns / 1e9:g} s of CPU time")
        answer = self.channel.recv(size + 1)
        if not answer:
            raise self._ended()
        if len(answer) != size:
            raise Refused("result", f"its process answered {len(answer)} bytes where {size} are due")
        return answer

    def _ended(self) -> Refused | UsageError:
        """Return the reason why the process ended."""
        status = self.child.wait(_END_SECONDS)
        if status == -signal.SIGSYS:
            return Refused("processes", "it made a call of the operating system, which ended it")
        if status == -signal.SIGXCPU:
            return Refused("time", "it used up the CPU time of its process")
        if status < 0:
            return Refused("memory", f"its process died of {signal.Signals(-status).name}")
        return Refused("result", f"its process ended by itself with status {status} before it answered")

    def run(self, call: Call, limit_ns: int, flush: Callable[[int, int], None]) -> Execution:
        """Make one call; see CpuWorker.run."""
        buffers = self.buffers
        idle = time.clock_gettime_ns(self.clock) - self.last_ns
        if idle > MOST_IDLE_NS:
            raise Refused("processes", f"its process worked for {idle / 1e3:.0f} µs between two calls")
        old = {name: values for name, values in call.circumstances.before.items() if name in buffers.poison}
        buffers.place(is_aligned=call.circumstances.is_aligned)
        nonce = self._ask(_PREPARE, call)
        buffers.write(call.contents, old)
        self._judge(limit_ns, nonce, _PREPARED)
        for placed in buffers.placed.values():
            flush(placed.whole.ctypes.data, placed.whole.nbytes)
        began = self._used_ns(limit_ns)
        nonce = self._ask(_GO, call)
        self._judge(limit_ns, nonce, _DONE)
        outputs = buffers.outputs()
        buffers.check_canaries()
        self.last_ns = self._used_ns(limit_ns)
        if self.tasks.stat().st_nlink != 3:
            raise Refused("processes", "its process has more than one thread")
        poison = {name: element for name, element in buffers.poison.items() if name not in old}
        return Execution(outputs, self.last_ns - began, poison, before=old)

    def _used_ns(self, limit_ns: int) -> int:
        """Return the process's CPU time once it waits for the next request.

        While a process still runs on another CPU, the system's accounting is milliseconds old, from the last tick: a
        call would seem to have taken no time, and the next one too much.
        """
        deadline = time.monotonic_ns() + _PATIENCE * limit_ns
        while True:
            self._status.seek(0)
            state, rests = _rests(self._status.read())
            if state == b"S" and rests != self._rests:
                self._rests = rests
                return time.clock_gettime_ns(self.clock)
            if state in (b"Z", b"X", b""):
                raise self._ended()
            if time.monotonic_ns() > deadline:
                raise Refused("processes", "its process went on working after it had answered")
            os.sched_yield()

    def _arguments(self, arguments: Sequence[Argument]) -> tuple[int, bytes]:
        values = b"".join(
            argument_bytes(one) if isinstance(one, Scalar) else struct.pack("=Q", self.buffers.placed[one.name].address)
            for one in arguments
        )
        return len(arguments), values

    def _ask(self, kind: int, call: Call) -> int:
        """Send a request; return the number that its answer must contain."""
        nonce = secrets.randbits(64)
        launch, given = call.launch, call.circumstances
        count, values = self._arguments(call.arguments)
        asked = (*launch.grid, *launch.block, launch.dynamic_lds_bytes, count, given.keeps_lds, 0, values)
        try:
            self.channel.send(_REQUEST.pack(nonce, kind, given.order, *asked))
        except OSError:
            raise self._ended() from None
        return nonce

    def _judge(self, limit_ns: int, nonce: int, wanted: int) -> None:
        """Receive the answer; Refused for any error in it."""
        echoed, kind, control, lds_overrun, number, address, detail, sites_met = _REPLY.unpack(
            self._hear(_REPLY.size, limit_ns)
        )
        if kind == _FAULT:
            raise self._fault(number, address, detail)
        if kind != wanted or echoed != nonce:
            raise Refused("result", "its process answered something that was not asked")
        if control:
            raise Refused("floating_point_state", "it left another rounding mode or treatment of tiny numbers behind")
        if sites_met:
            raise Refused(
                "cross_lane",
                "lanes of a wavefront meet in different exchanges: on a GPU each side reads lanes that are not active",
            )
        if lds_overrun:
            raise Refused("memory", "it wrote past the dynamic local data share of its launch")

    def _fault(self, number: int, address: int, detail: int) -> Refused:
        if number == signal.SIGSYS:
            return Refused("processes", f"it made call {detail} of the operating system")
        if number == signal.SIGSEGV and detail == _NO_ADDRESS:
            return Refused("memory", "it used an address that none can be, or an instruction that it may not")
        if number in (signal.SIGSEGV, signal.SIGBUS):
            return Refused(*self.buffers.where(address))
        if number == signal.SIGFPE:
            return Refused("result", "it divided a whole number by zero, or by what overflows")
        return Refused("result", f"its process got {signal.Signals(number).name}")

    def end(self) -> None:
        """Kill the process and its group, wait for it, and release the memory."""
        self.channel.close()
        self.child.kill()
        self.child.wait()
        self._status.close()
        self.buffers.close()


class CpuWorker:
    """Runs one build's kernel. The first call starts a process, and each other set of buffers starts a fresh one.

    A call is aborted after `call_limit_ns` of CPU time. `load_ns` and `first_call_ns` belong to the newest process: the
    wall-clock time from its start until it was ready, and the CPU time of its first call; null before it.
    """

    def __init__(self, program: Path, parameters: int, call_limit_ns: int, flush: Callable[[int, int], None]) -> None:
        self.call_limit_ns = call_limit_ns
        self.load_ns: int | None = None
        self.first_call_ns: int | None = None
        self.confinement: Confinement | None = None
        self._program = program
        self._parameters = parameters
        self._flush = flush
        self._process: _Process | None = None
        self._buffers: tuple[Buffer, ...] = ()
        self._items = 0

    @property
    def pid(self) -> int | None:
        """The process number; null before the first call and after a refusal."""
        return None if self._process is None else self._process.child.pid

    def run(self, call: Call) -> Execution:
        """Make one call: reset memory, write contents, flush caches, run the kernel, read outputs and canaries.

        `duration_ns` is the CPU time that the process used from the request until its outputs were taken. Raises
        Refused with the guard that the kernel violated; the process is then gone, and the next call starts another.
        Raises UsageError if the call does not fit the kernel or the target, or the process cannot be confined.
        """
        buffers = tuple(one for one in call.arguments if isinstance(one, Buffer))
        items = math.prod(call.launch.block)
        try:
            if self._process is None or buffers != self._buffers or items > self._items:
                self._check(call)
                self.close()
                self._process, self._buffers = _Process(self._program, buffers, items), buffers
                self._items = items
                self.load_ns, self.first_call_ns = self._process.load_ns, None
                self.confinement = self._process.confinement
            execution = self._process.run(call, self.call_limit_ns, self._flush)
        except BaseException:
            self.close()
            raise
        if self.first_call_ns is None:
            self.first_call_ns = execution.duration_ns
        return execution

    def _check(self, call: Call) -> None:
        launch = call.launch
        items = math.prod(launch.block)
        if not 0 < items <= _MOST_ITEMS or min(launch.block) < 1 or min(launch.grid) < 1:
            raise UsageError(
                f"a launch of {launch.grid} workgroups of {launch.block}; a workgroup has 1 to {_MOST_ITEMS}"
            )
        if not 0 <= launch.dynamic_lds_bytes <= MOST_DYNAMIC_LDS_BYTES:
            raise UsageError(f"{launch.dynamic_lds_bytes} bytes of dynamic local data share; a workgroup has 64 KiB")
        if len(call.arguments) != self._parameters or self._parameters > _MOST_ARGUMENTS:
            raise UsageError(f"the call gives {len(call.arguments)} arguments to a kernel of {self._parameters}")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.end()
            self._process = None


def argument_bytes(scalar: Scalar) -> bytes:
    """Encode a value as a kernel argument, in 8 bytes."""
    value: bytes = np.dtype(scalar.dtype).type(scalar.value).tobytes()
    return value.ljust(8, b"\0")


def _spawn(program: Path, channel: int, descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            [str(program), str(channel)],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[channel, *descriptors],
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"the kernel's program cannot be started: {error}") from error


def _rests(status: bytes) -> tuple[bytes, int]:
    """Return the state letter and the number of voluntary context switches from a process's `/proc/PID/status`."""
    state, count = status.partition(b"\nState:\t")[2][:1], status.partition(b"\nvoluntary_ctxt_switches:\t")[2]
    return state, int(count.partition(b"\n")[0] or 0)


def _cpu_clock(pid: int) -> int:
    clock = ctypes.c_int()
    if (error := _libc.clock_getcpuclockid(pid, ctypes.byref(clock))) != 0:
        raise OSError(error, f"no CPU clock of process {pid}: {os.strerror(error)}")
    return clock.value
