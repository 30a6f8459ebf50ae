"""Reading the harness that a person wrote beside a source."""

import runpy
from dataclasses import replace
from pathlib import Path

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.harness.declaration import Harness
from aaco_pipeline.optimization.harness.validation import validate


def load_harness(source: Path, harness: Path | None, kernel: str | None) -> Harness:
    """The checked harness of `source`: the file `harness`, or `<stem>_harness.py` beside the source.

    It is the person's own Python and is run as their tests are. UsageError in one line where it is missing, does not
    run or has a fault.
    """
    path = harness if harness is not None else source.with_name(f"{source.stem}_harness.py")
    if not path.is_file():
        raise UsageError(f"no harness {path}: write one that says how the kernel is called (docs/optimize_harness.md)")
    try:
        declared = runpy.run_path(str(path), run_name=path.stem).get("HARNESS")
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if not isinstance(declared, Harness):
        raise UsageError(f"{path} sets no HARNESS = Harness(kernel=…, sizes=…, …)")
    if kernel is not None and kernel != declared.kernel:
        raise UsageError(f"{path} is the harness of {declared.kernel}, not of {kernel}: name its own with --harness")
    found = replace(declared, path=path)
    validate(found, None)
    return found
