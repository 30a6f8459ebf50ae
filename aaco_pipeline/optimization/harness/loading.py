"""Load the harness next to a source; if there is none, offer a skeleton to start from."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.abc import InspectLoader
from importlib.util import decode_source, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.harness.declaration import Harness
from aaco_pipeline.optimization.harness.validation import numpy_type, validate
from aaco_pipeline.optimization.source import Kernel, parse
from aaco_pipeline.optimization.targets import Parameter

_TEXT = '''\
"""How {kernel} is called, and what comes out."""

import numpy as np

from aaco_pipeline.optimization.harness import (
    Harness, Launch, buffer, draw, grid_for, indices, make_call, output, rounding_bound, scalar,
)


def launch(size, block):
    return Launch(grid_for(size, block), block)  # as many workgroups as the kernel needs


def call(size, distribution, rng):
    return make_call(
        launch(size, (256, 1, 1)),
{arguments}
    )


def reference(call):
    """Each output in float64, and how far from it a right result may be."""
{inputs}
    raise NotImplementedError("compute the outputs here")
    return {{{outputs}}}


def floor(size):
    return {operations}  # (floating-point operations, bytes) that no right kernel can do without


HARNESS = Harness(
    kernel="{kernel}",
    sizes=(1, 7, 257, 1021),
    timing_size=1 << 20,
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
    # Other sizes are tried as well: takes=lambda size: size % 64 == 0 leaves out what the kernel is not made for.
)
'''


def skeleton(kernel: str, parameters: Sequence[Parameter]) -> str:
    """Return a skeleton harness of `kernel`, as complete as its signature allows; `const` pointers are inputs."""
    inputs = [one.name for one in parameters if one.pointer and one.const]
    outputs = [one.name for one in parameters if one.pointer and not one.const]
    reading = [f'    {name} = call.contents["{name}"].astype(np.float64)' for name in inputs]
    return _TEXT.format(
        kernel=kernel,
        arguments="\n".join(f"        {_argument(one)}," for one in parameters),
        inputs="\n".join(reading) or "    # the kernel has no const pointer",
        outputs=", ".join(f'"{name}": (values, rounding_bound(magnitude, operations))' for name in outputs),
        operations=f"0.0, {4 * len([*inputs, *outputs])}.0 * size",
    )


def _argument(parameter: Parameter) -> str:
    known = numpy_type(parameter.type)
    dtype = known.name if known is not None else parameter.type
    given = "" if dtype == ("float32" if parameter.pointer else "int32") else f', "{dtype}"'
    if not parameter.pointer:
        return f'scalar("{parameter.name}", size{given})'
    if parameter.const and known is not None and known.kind in "iu":
        return f'buffer("{parameter.name}", indices(distribution, rng, size, size, "{dtype}"))'
    if parameter.const:
        return f'buffer("{parameter.name}", draw(distribution, rng, size{given}))'
    return f'output("{parameter.name}", size{given})'


class NoHarness(UsageError):
    """There is no harness. `skeleton` is a starting point, null unless the source has exactly one kernel."""

    def __init__(self, message: str, skeleton: str | None) -> None:
        super().__init__(message)
        self.skeleton = skeleton


def load_harness(
    source: Path, harness: Path | None, kernel: str | None, read: Callable[[Path], bytes] = Path.read_bytes
) -> Harness:
    """Return the checked harness of `source`: the file `harness`, or `<stem>_harness.py` next to the source.

    It is the user's own Python and runs like their tests, from the bytes that `read` returns; `read` may refuse a path.
    Raises UsageError in one line if it is missing (`NoHarness`), does not run or is faulty; Refused, guard `kernel`, if
    the source has no such kernel.
    """
    path = harness if harness is not None else source.with_name(f"{source.stem}_harness.py")
    try:
        unit = parse(read(source))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    try:
        content = read(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        found = [unit.kernel(kernel)] if kernel is not None else [*unit.kernels]
        raise _missing(path, found) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        declared = _run(path, content).get("HARNESS")
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if not isinstance(declared, Harness):
        raise UsageError(f"{path} sets no HARNESS = Harness(kernel=…, sizes=…, …)")
    if kernel is not None and kernel != declared.kernel:
        raise UsageError(f"{path} is the harness of {declared.kernel}, not of {kernel}: name its own with --harness")
    checked = replace(declared, path=path)
    validate(checked, unit.kernel(checked.kernel).parameters)
    return checked


class _Bytes(InspectLoader):
    """Creates a module from bytes already read: the file is not reopened, because it may have changed."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def get_source(self, fullname: str) -> str:
        return decode_source(self._content)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, str(self._path))


def _run(path: Path, content: bytes) -> dict[str, object]:
    """Run a harness file and return its definitions; its exceptions, including SystemExit, propagate."""
    loader = _Bytes(path, content)
    spec = spec_from_loader(f"harness {path.stem}", loader, origin=str(path))
    assert spec is not None, "it is given its loader"
    module = module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[spec.name] = module  # dataclasses look it up while the module runs
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return vars(module)


def _missing(path: Path, found: list[Kernel]) -> NoHarness:
    if len(found) == 1:
        return NoHarness(
            f"no harness {path}: save the one below there and complete it (docs/optimize_harness.md)",
            skeleton(found[0].name, found[0].parameters),
        )
    names = ", ".join(one.name for one in found) or "none"
    return NoHarness(f"no harness {path}, and the source has not one kernel but {names}: name it with --kernel", None)
