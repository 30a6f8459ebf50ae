"""Reading the harness that a person wrote beside a source."""

import runpy
from dataclasses import replace
from pathlib import Path

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.harness.declaration import Harness
from aaco_pipeline.optimization.harness.skeleton import skeleton
from aaco_pipeline.optimization.harness.validation import validate
from aaco_pipeline.optimization.source import Kernel, parse


class NoHarness(UsageError):
    """There is no harness. `skeleton` is one to start from, null where no one kernel can be told from the source."""

    def __init__(self, message: str, skeleton: str | None) -> None:
        super().__init__(message)
        self.skeleton = skeleton


def load_harness(source: Path, harness: Path | None, kernel: str | None) -> Harness:
    """The checked harness of `source`: the file `harness`, or `<stem>_harness.py` beside the source.

    It is the person's own Python and is run as their tests are. UsageError in one line where it is missing
    (`NoHarness`), does not run or has a fault; Refused, guard `kernel`, where the source has no such kernel.
    """
    path = harness if harness is not None else source.with_name(f"{source.stem}_harness.py")
    try:
        unit = parse(source.read_bytes())
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    if not path.is_file():
        found = [unit.kernel(kernel)] if kernel is not None else [*unit.kernels]
        raise _missing(path, found)
    try:
        declared = runpy.run_path(str(path), run_name=path.stem).get("HARNESS")
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if not isinstance(declared, Harness):
        raise UsageError(f"{path} sets no HARNESS = Harness(kernel=…, sizes=…, …)")
    if kernel is not None and kernel != declared.kernel:
        raise UsageError(f"{path} is the harness of {declared.kernel}, not of {kernel}: name its own with --harness")
    checked = replace(declared, path=path)
    validate(checked, unit.kernel(checked.kernel).parameters)
    return checked


def _missing(path: Path, found: list[Kernel]) -> NoHarness:
    if len(found) == 1:
        return NoHarness(
            f"no harness {path}: save the one below there and complete it (docs/optimize_harness.md)",
            skeleton(found[0].name, found[0].parameters),
        )
    names = ", ".join(one.name for one in found) or "none"
    return NoHarness(f"no harness {path}, and the source has not one kernel but {names}: name it with --kernel", None)
