"""The `cpu` target's two doors: `build` a source, `start` a process with it."""

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import check_object, local_bytes, writable_bytes
from aaco_pipeline.optimization.targets import Build, Layout, Parameter
from aaco_pipeline.resources.targets.cpu.compiler import Compiler, compile_confined, find_compiler
from aaco_pipeline.resources.targets.cpu.device_part import device_part, kernel_names
from aaco_pipeline.resources.targets.cpu.linking import KERNEL_OBJECT, link
from aaco_pipeline.resources.targets.cpu.object_file import ObjectFile, read_object
from aaco_pipeline.resources.targets.cpu.own_code import flush_library, worker_object
from aaco_pipeline.resources.targets.cpu.worker import CpuWorker

_HEADERS: Final = Path(__file__).with_name("include")
_SOURCE: Final = "kernel.cpp"
_WARNINGS: Final = "warnings.txt"
#: The best that a user would build with, but for contraction: a compiler joins a product and a sum into one operation
#: in some copies of an unrolled loop and not in others (g++ 12 does), and then no unrolled loop keeps the bits.
BEST_FLAGS: Final = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
#: Where code may lie; the same for every build, so that no candidate is faster for where it came to lie.
ALIGNMENT_FLAGS: Final = ("-falign-functions=64", "-falign-loops=32")
#: What the target needs to judge the object and to lay it out.
_OWN_FLAGS: Final = (
    *("-fno-exceptions", "-fno-rtti", "-fno-pie", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
    *("-fno-threadsafe-statics", "-ffunction-sections", "-fdata-sections", "-fno-common", "-fno-ident"),
)
_GCC_FLAGS: Final = ("-fno-gnu-unique", "-fno-extern-tls-init", "-frandom-seed=aaco")
_FIXED_TIME: Final = ('-D__DATE__="Jan  1 2000"', '-D__TIME__="00:00:00"', '-D__TIMESTAMP__="Sat Jan  1 00:00:00 2000"')
_MOST_SOURCE_BYTES: Final = 4 << 20
_CALL_LIMIT_NS: Final = 20_000_000_000


@dataclass(frozen=True)
class CpuTarget:
    """Builds and runs kernels on this machine's processor.

    `compiler` is a name on PATH, null for the first of c++, g++ and clang++. `flags` are the user's; those of alignment
    are always added. A call that takes more than `call_limit_ns` of CPU time is given up.
    """

    compiler: str | None = None
    flags: tuple[str, ...] = BEST_FLAGS
    call_limit_ns: int = _CALL_LIMIT_NS

    @property
    def name(self) -> Literal["cpu"]:
        return "cpu"

    @property
    def executed_on(self) -> str:
        return "cpu-emulation"

    @property
    def clock(self) -> str:
        return "CPU time of the kernel's process, read from outside it"

    @property
    def wavefront_size(self) -> int:
        return 64

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile the source's device part alone, judge the object, and link it as the layout's seed says.

        The object is kept in `folder` by its content, so that further layouts of one source only link. `resources` are
        `lds_bytes`, `writable_bytes` (data that outlive a call) and `code_bytes`. Refused with guard `compile`,
        `parse`, `symbols`, `constructors` or `resources`; UsageError when there is no compiler.
        """
        compiler = find_compiler(self.compiler)
        if len(source) > _MOST_SOURCE_BYTES:
            raise Refused("parse", f"the source has {len(source)} bytes; at most {_MOST_SOURCE_BYTES} are taken")
        flags = self._all_flags(compiler)
        text = _translation_unit(source, kernel, compiler)
        digest = hashlib.sha256("\0".join([compiler.path, compiler.version, *flags]).encode() + text).hexdigest()
        home = folder.resolve() / digest[:16]
        warnings = _compile(compiler, text, flags, home)
        found = read_object(home / KERNEL_OBJECT)
        check_object(found.sections, found.symbols, kernel_names(source))
        program = link(compiler, found, worker_object(compiler), layout, home)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=program,
            source_sha256=hashlib.sha256(source).hexdigest(),
            code_sha256=found.code_sha256,
            compiler=compiler.version,
            flags=flags,
            layout=layout,
            resources={**_resources(found), "parameters": len(parameters)},
            warnings=warnings,
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[CpuWorker]:
        """A worker for the build; its process is started by its first call and gone at the end."""
        flush = _flush(find_compiler(self.compiler))
        worker = CpuWorker(build.artefact, build.resources["parameters"], self.call_limit_ns, flush)
        try:
            yield worker
        finally:
            worker.close()

    def _all_flags(self, compiler: Compiler) -> tuple[str, ...]:
        return (*self.flags, *ALIGNMENT_FLAGS, *_OWN_FLAGS, *(() if compiler.is_clang else _GCC_FLAGS), *_FIXED_TIME)


def _translation_unit(source: bytes, kernel: str, compiler: Compiler) -> bytes:
    """The device part with the way into the kernel behind it. The header comes first, whether it is included or not."""
    device = device_part(source, for_gcc=not compiler.is_clang)
    return b"".join([b"#include <hip/hip_runtime.h>\n#line 1\n", device, f"\nAACO_KERNEL({kernel})\n".encode()])


def _compile(compiler: Compiler, text: bytes, flags: Sequence[str], home: Path) -> tuple[str, ...]:
    """The warnings; kept beside the object, which is whole when it is there."""
    made, told = home / KERNEL_OBJECT, home / _WARNINGS
    if made.is_file():
        return tuple(told.read_text().splitlines())
    home.mkdir(parents=True, exist_ok=True)
    (home / _SOURCE).write_bytes(text)
    part = home / "unchecked.o"
    warnings = compile_confined(compiler, [*flags, f"-I{_HEADERS}", "-c", _SOURCE, "-o", part.name], home)
    told.write_text("\n".join(warnings))
    part.replace(made)
    return warnings


def _resources(found: ObjectFile) -> dict[str, int]:
    return {
        "lds_bytes": local_bytes(found.sections),
        "writable_bytes": writable_bytes(found.sections, found.symbols),
        "code_bytes": sum(section.size_bytes for section in found.sections if section.executable),
    }


@cache
def _flush(compiler: Compiler) -> Callable[[int, int], None]:
    library = ctypes.CDLL(str(flush_library(compiler)))
    library.aaco_flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    flush: Callable[[int, int], None] = library.aaco_flush
    return flush
