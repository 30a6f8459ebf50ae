"""Compiles `data/*.hip` anew into the code objects and optimization records that tests read where no compiler is.

Run as `python -m tests.resources.toolchains.amdgpu.make_code_objects` on a host with a compiler for AMD GPUs and
llvm-strip-19, which takes out what says where code came from. The kept files are of clang 19.1.7 of Debian 12.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.toolchains.amdgpu.compiling import compile_files
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, find_toolchain

DATA: Final = Path(__file__).parent / "data"
#: Source, architecture, and the factor by which the loop without a pragma is unrolled.
KEPT: Final = (
    ("star", "gfx942", 1),
    ("star", "gfx942", 2),
    ("star", "gfx942", 8),
    ("lookup", "gfx90a", 1),
    ("matrix", "gfx942", 1),
)
#: The one of which the linked code object is kept, too.
LINKED: Final = "lookup"


def unrolled(source: bytes, factor: int) -> bytes:
    """The source with a pragma in front of its first loop."""
    if factor == 1:
        return source
    return re.sub(rb"^( *)for \(", rb"\1#pragma unroll %d\n\g<0>" % factor, source, count=1, flags=re.MULTILINE)


def main() -> None:
    """Compile all and keep what was made."""
    toolchain = find_toolchain()
    if isinstance(toolchain, Missing):
        raise SystemExit(f"{toolchain.reason}; {toolchain.fix}")
    for name, architecture, factor in KEPT:
        with tempfile.TemporaryDirectory() as folder:
            source = unrolled((DATA / f"{name}.hip").read_bytes(), factor)
            made = compile_files(toolchain, source, architecture, Path(folder))
            for suffix, file in (("o", made.relocatable), ("hsaco", made.code_object)):
                if suffix == "o" or name == LINKED:
                    subprocess.run(["llvm-strip-19", "--strip-debug", str(file)], check=True)
                    (DATA / f"{name}-{architecture}-{factor}.{suffix}").write_bytes(file.read_bytes())
            (DATA / f"{name}-{architecture}-{factor}.yaml").write_bytes(made.record.read_bytes())


if __name__ == "__main__":
    main()
