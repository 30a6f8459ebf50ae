"""A GPU as a target of optimization: device code built for it, and a fresh process for each build that is run."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.targets import Build, Layout, Parameter
from aaco_pipeline.resources.targets.gpu import code_objects
from aaco_pipeline.resources.targets.gpu.compilers import DEFAULT_FLAGS, Compiler, hipcc, nvcc, ptxas_resources
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
    executed_on: str
    flags: tuple[str, ...] = DEFAULT_FLAGS
    deadline_seconds: float = DEADLINE_SECONDS

    @property
    def name(self) -> VendorName:
        """`cuda` or `amd`."""
        return self.vendor.name

    @property
    def clock(self) -> str:
        """What a duration is."""
        return f"{self.vendor.people} GPU time between two events around one launch, caches flushed before it"

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Device code of `source` alone; Refused (guards `compile`, `kernel`, `symbols`)."""
        folder.mkdir(parents=True, exist_ok=True)
        file, artefact = folder / "kernel.hip", folder / "kernel.code"
        file.write_bytes(source)
        said = self.compiler.compile(file, artefact, self.flags)
        code = code_objects.read(artefact.read_bytes())
        symbol = code_objects.symbol_of(code, kernel)
        code_objects.check_symbols(code)
        narrow = self.wavefront_size == 32 and _ACROSS_LANES.search(source)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=artefact,
            source_sha256=hashlib.sha256(source).hexdigest(),
            code_sha256=code_objects.code_digest(code, symbol),
            compiler=self.compiler.version,
            flags=(*self.flags, *self.compiler.device_flags),
            layout=layout,
            resources=self._resources(said, symbol),
            warnings=(*_warnings(said), *([_NARROW] if narrow else [])),
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[GpuProcess]:
        """A fresh process with the build loaded, behind as many copies of it as its layout says."""
        symbol = code_objects.symbol_of(code_objects.read(build.artefact.read_bytes()), build.kernel)
        with started(self.vendor, self.deadline_seconds) as process:
            # Not waited for: the other arm of a pair starts meanwhile.
            process.greet(self.vendor)
            process.tell("load", {"artefact": str(build.artefact), "symbol": symbol, "seed": build.layout.seed})
            yield process

    def _resources(self, said: str, symbol: str) -> Mapping[str, int]:
        return ptxas_resources(said, symbol) if self.name == "cuda" else {}


def find_gpu(name: VendorName, flags: tuple[str, ...] = DEFAULT_FLAGS) -> GpuTarget:
    """The vendor's first visible GPU with its compiler. UnavailableError says in one line what is missing."""
    vendor = VENDORS[name]
    if name == "amd" and not _KFD.exists():
        raise UnavailableError("target amd: no AMD GPU driver (/dev/kfd is absent)")
    try:
        with started(vendor, DEADLINE_SECONDS) as process:
            process.greet(vendor)
            device = process.heard()
    except UnavailableError as error:
        raise UnavailableError(f"target {name}: no {vendor.people} GPU can be used ({error})") from error
    architecture, wavefront_size = _kfd_facts() if name == "amd" else (device["architecture"], device["wavefront_size"])
    compiler = hipcc(architecture) if name == "amd" else nvcc(architecture)
    if compiler is None:
        missing = "hipcc; install ROCm" if name == "amd" else "nvcc; install the CUDA toolkit"
        raise UnavailableError(f"target {name}: {device['name']} is here, and no compiler for it: no {missing}")
    return GpuTarget(vendor, compiler, architecture, wavefront_size, f"{device['name']} ({architecture})", flags)


def _kfd_facts() -> tuple[str, int]:
    """Architecture and wavefront size of the first GPU that the kernel driver lists."""
    for node in sorted(_KFD_NODES.glob("*/properties"), key=lambda node: int(node.parent.name)):
        facts = dict(line.split(maxsplit=1) for line in node.read_text().splitlines() if " " in line)
        version = int(facts.get("gfx_target_version", 0))
        if version:
            architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            return architecture, int(facts["wave_front_size"])
    raise UnavailableError(f"target amd: the kernel driver lists no GPU in {_KFD_NODES}")


def _warnings(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if "warning" in line.lower()]
