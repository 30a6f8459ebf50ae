"""A GPU as a target of optimization: device code built for it, and a fresh process for each build that is run."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Build, Layout, Parameter
from aaco_pipeline.resources.targets.gpu import code_objects
from aaco_pipeline.resources.targets.gpu.compilers import Compiled, Compiler, amd_compiler, cuda_compiler
from aaco_pipeline.resources.targets.gpu.process import GpuProcess, started
from aaco_pipeline.resources.targets.gpu.vendors import VENDORS, Vendor, VendorName

#: How long an answer may take: a call with its copies and checks, and a driver's start.
DEADLINE_SECONDS: Final = 20.0
_KFD: Final = Path("/dev/kfd")
_KFD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")
_ACROSS_LANES: Final = re.compile(rb"\bwarpSize\b|\b__(?:shfl|ballot|any|all|activemask|lane_id)")
_NARROW: Final = (
    "wavefronts are 32 lanes wide here and 64 on CDNA: what the source does across lanes, and __ballot's upper half, "
    "differ there"
)


@dataclass(frozen=True)
class GpuTarget:
    """One vendor's GPU in this machine. `find_gpu` makes it."""

    vendor: Vendor
    compiler: Compiler
    architecture: str
    wavefront_size: int
    device: str
    deadline_seconds: float = DEADLINE_SECONDS
    _compiled: dict[tuple[Path, bytes, str], Compiled] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> VendorName:
        """`cuda` or `amd`."""
        return self.vendor.name

    @property
    def executed_on(self) -> str:
        """The device and its architecture."""
        return f"{self.device} ({self.architecture})"

    @property
    def clock(self) -> str:
        """What a duration is."""
        return f"{self.vendor.people} GPU time between two events around one launch, caches flushed before it"

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Device code of `source` alone; Refused (guards `compile`, `kernel`, `symbols`).

        A layout is made where code is loaded, and changes no code: what a folder has of a source is not compiled again.
        """
        key = (folder, source, kernel)
        if key not in self._compiled:
            folder.mkdir(parents=True, exist_ok=True)
            self._compiled[key] = self.compiler(source, kernel, folder)
        compiled = self._compiled[key]
        code_objects.check_symbols(code_objects.read(compiled.artefact.read_bytes()))
        narrow = self.wavefront_size == 32 and _ACROSS_LANES.search(source)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=compiled.artefact,
            source_sha256=hashlib.sha256(source).hexdigest(),
            code_sha256=compiled.code_sha256,
            compiler=compiled.compiler,
            flags=compiled.flags,
            layout=layout,
            resources=compiled.resources,
            warnings=(*compiled.warnings, *([_NARROW] if narrow else [])),
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[GpuProcess]:
        """A fresh process with the build loaded, behind as many copies of it as its layout says."""
        symbol = {one.artefact: one.symbol for one in self._compiled.values()}[build.artefact]
        with started(self.vendor, self.deadline_seconds) as process:
            # Not waited for: the other arm of a pair starts meanwhile.
            process.greet(self.vendor)
            process.tell("load", {"artefact": str(build.artefact), "symbol": symbol, "seed": build.layout.seed})
            yield process


def find_gpu(name: VendorName, flags: tuple[str, ...] = ()) -> GpuTarget:
    """The vendor's first visible GPU with its compiler, which gets the user's `flags` for baseline and candidate alike.

    UnavailableError says in one line what is missing.
    """
    vendor = VENDORS[name]
    if name == "amd" and not _KFD.exists():
        raise UnavailableError("target amd: no AMD GPU driver (/dev/kfd is absent)")
    try:
        with started(vendor, DEADLINE_SECONDS) as process:
            process.greet(vendor)
            device = process.heard()
    except (UnavailableError, Refused) as error:
        raise UnavailableError(f"target {name}: no {vendor.people} GPU can be used ({error})") from error
    if name == "amd":
        architecture, wavefront_size = _kfd_facts()
        compiler = amd_compiler(architecture, flags)
    else:
        architecture, wavefront_size = device["architecture"], device["wavefront_size"]
        compiler = cuda_compiler(architecture, flags)
    if compiler is None:
        missing = "ROCm" if name == "amd" else "nvcc of the CUDA toolkit"
        raise UnavailableError(f"target {name}: {device['name']} is here, and no compiler for it; install {missing}")
    return GpuTarget(vendor, compiler, architecture, wavefront_size, device["name"])


def _kfd_facts() -> tuple[str, int]:
    """Architecture and wavefront size of the first GPU that the kernel driver lists."""
    for node in sorted(_KFD_NODES.glob("*/properties"), key=lambda node: int(node.parent.name)):
        facts = dict(line.split(maxsplit=1) for line in node.read_text().splitlines() if " " in line)
        version = int(facts.get("gfx_target_version", 0))
        if version:
            architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            return architecture, int(facts["wave_front_size"])
    raise UnavailableError(f"target amd: the kernel driver lists no GPU in {_KFD_NODES}")
