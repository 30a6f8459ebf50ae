"""The target's own C code, compiled once on a machine and kept by its content in the cache folder."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.targets.cpu.compiler import HOW_TO_INSTALL, Compiler, compile_confined

_SOURCES: Final = Path(__file__).with_name("native")
_WORKER_FLAGS: Final = ("-O2", "-fno-pie", "-fno-stack-protector", "-fcf-protection=none", "-c")
_FLUSH_FLAGS: Final = ("-O2", "-fPIC", "-shared")


def worker_object(compiler: Compiler) -> Path:
    """The worker, to be linked with a kernel. UsageError when this machine's compiler cannot make it."""
    return _made(compiler, "worker.c", "worker.o", _WORKER_FLAGS)


def flush_library(compiler: Compiler) -> Path:
    """What writes buffers out of the caches, to be loaded by this process."""
    return _made(compiler, "flush.c", "flush.so", _FLUSH_FLAGS)


def _made(compiler: Compiler, source: str, name: str, flags: Sequence[str]) -> Path:
    if os.uname().machine != "x86_64":
        flags = [flag for flag in flags if not flag.startswith("-fcf-protection")]
    text = (_SOURCES / source).read_bytes()
    digest = hashlib.sha256("\0".join([compiler.path, compiler.version, *flags]).encode() + text).hexdigest()

    def build(made: Path) -> None:
        made.with_name(source).write_bytes(text)
        try:
            compile_confined(compiler, ["-x", "c", source, *flags, "-o", made.name], made.parent)
        except Refused as refused:
            raise UsageError(f"{compiler.path} cannot make {source}: {refused.reason}; {HOW_TO_INSTALL}") from refused

    return own_code(f"cpu_target/{digest[:32]}/{name}", build)
