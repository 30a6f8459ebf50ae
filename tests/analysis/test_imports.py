"""Importing the analysis does not load SciPy; the functions that need it do."""

import subprocess
import sys


def test_no_module_of_the_analysis_loads_scipy_when_it_is_imported() -> None:
    every = (
        "import importlib, pkgutil, sys, aaco_pipeline.analysis as a, aaco_pipeline.hardware as h;"
        "found = [m.name for p in (a, h) for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.')];"
        "[importlib.import_module(name) for name in found];"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'scipy'))"
    )
    found = subprocess.run([sys.executable, "-c", every], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
