"""Every way by which code that is not imported is executed, and where that code comes from."""

import re
from typing import Final

from tests.test_architecture import MODULES, name_of

#: What else may know where the cache lies, with why nothing of it is executed from there.
KNOWS_THE_CACHE: Final = {
    "aaco_pipeline.pipeline.scratch": "a folder that was checked, for what builds all in it anew",
    "aaco_pipeline.lake.catalogue.local_cache": "a folder that was checked, with rows for SQLite to read",
    "aaco_pipeline.report.html.page": "asks whether templates can be kept at all, and has them through the door",
}
#: How code comes into a process that is not imported, and who does so, with where that code comes from.
LOADS: Final = {
    "CDLL": {
        "aaco_pipeline.recording.keeper": "the C library",
        "aaco_pipeline.recording.profilers.cupti": "the driver, by its name",
        "aaco_pipeline.resources.calibrate.worker": "the C library",
        "aaco_pipeline.resources.confinement.landlock": "the C library",
        "aaco_pipeline.resources.confinement.sandbox": "the C library",
        "aaco_pipeline.resources.host.kernel_files": "the C library",
        "aaco_pipeline.resources.kernel_plane.quiet": "the C library",
        "aaco_pipeline.resources.measure.inference_worker": "the C library, and ROCm's roctx by its names",
        "aaco_pipeline.resources.address_reservations": "the C library",
        "aaco_pipeline.resources.services": "the C library",
        "aaco_pipeline.resources.targets.cpu.target": "flush.so, through the door",
        "aaco_pipeline.resources.targets.cpu.worker": "the C library",
        "aaco_pipeline.resources.targets.emulated.driver": "the C library",
        "aaco_pipeline.resources.targets.gpu.driver": "the driver, by its name",
        "aaco_pipeline.resources.targets.gpu.target": "the C library",
        "aaco_pipeline.resources.targets.gpu.runner": "the C library, and NVML by its name",
        "aaco_pipeline.resources.telemetry.nvml": "NVML, by its name",
        "aaco_pipeline.resources.telemetry.scheduler_events": "the C library",
        "aaco_pipeline.resources.toolchains.confined": "the C library",
    },
    "CUDA_INJECTION64_PATH": {"aaco_pipeline.recording.profilers.cupti": "its own library, through the door"},
    "NVTX_INJECTION64_PATH": {"aaco_pipeline.recording.profilers.cupti": "its own library, through the door"},
    "LD_PRELOAD": {"aaco_pipeline.formats.parsing.redaction": "a name that may be shown"},
    "HSA_TOOLS_LIB": {"aaco_pipeline.formats.parsing.redaction": "a name that may be shown"},
    "PYTHONPATH": {
        "aaco_pipeline.recording.archive": "says that the user may set it",
        "aaco_pipeline.resources.confinement.client": "this package's folder, and the user's own",
        "aaco_pipeline.resources.targets.emulated.finding": "this package's folder, and the configured emulator's",
        "aaco_pipeline.resources.targets.gpu.target": "this package's folder",
    },
    "BytecodeCache": {"aaco_pipeline.report.html.page": "compiled templates, through the door"},
    "FileSystemBytecodeCache": {},
    "run_path": {"aaco_pipeline.resources.toolchains.confined": "a file of this package beside it"},
    "module_from_spec": {"aaco_pipeline.optimization.harness.loading": "the harness that the user names"},
    "run_module": {},
    "spec_from_file_location": {},
    "SourceFileLoader": {},
    "PyDLL": {},
    "LoadLibrary": {},
    "marshal": {},
    "pickle": {},
}


def test_nothing_executes_what_lies_in_a_cache_but_through_its_door() -> None:
    """By words of the source, so that programs kept as texts and names behind `as` are seen, too."""
    words = {name_of(path): set(re.findall(r"\w+", path.read_text())) for path in MODULES}
    doors = {"default_cache_dir", "own_folder", "private_folder"}
    knowing = {name for name, used in words.items() if used & doors}
    assert knowing == {"aaco_pipeline.cache_folder", *KNOWS_THE_CACHE}
    loading = {way: {name for name, used in words.items() if way in used} for way in LOADS}
    assert loading == {way: set(modules) for way, modules in LOADS.items()}
