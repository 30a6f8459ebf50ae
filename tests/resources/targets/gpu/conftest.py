"""A stand-in of a GPU's driver, compiled from C: it tests the protocol, and measures nothing."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.resources.targets.gpu.driver import VENDORS, Vendor

SOURCE = Path(__file__).with_name("driver_stand_in.c")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Vendor]:
    """Makes the vendor whose driver is the stand-in; its events run at so many times the host's clock."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of a driver")
    folder = tmp_path_factory.mktemp("driver")

    def make(clock_scale: float) -> Vendor:
        library = folder / f"stand_in_{clock_scale}.so"
        if not library.exists():
            command = [compiler, "-O1", "-shared", "-fPIC", f"-DCLOCK_SCALE={clock_scale}"]
            subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True, timeout=60)
        return replace(VENDORS["cuda"], library=str(library))

    return make
