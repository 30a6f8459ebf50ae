"""Check that a harness is consistent: each error is one line with the harness file and the remedy.

A harness is the user's own code. These checks detect the consequences of mistakes in it: a launch that no device
accepts, overwritten memory, or a comparison that compares nothing.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.harness.contents import DISTRIBUTIONS, Distribution
from aaco_pipeline.optimization.harness.declaration import NOT_AN_OUTPUT, Expected, Harness, Size
from aaco_pipeline.optimization.targets import Buffer, Call, Launch, Parameter

_NUMPY: Final = {
    "float": "float32",
    "double": "float64",
    **dict.fromkeys(("half", "__half", "_Float16"), "float16"),
    "bool": "bool",
    **dict.fromkeys(("char", "signed char"), "int8"),
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    **dict.fromkeys(("unsigned", "unsigned int", "uint"), "uint32"),
    **dict.fromkeys(("long", "long long"), "int64"),
    **dict.fromkeys(("unsigned long", "unsigned long long", "size_t"), "uint64"),
    **{f"int{bits}_t": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
#: Vector types: several values of one element.
_VECTOR: Final = re.compile(r"(float|double|int|uint|short|char)[234]")
_QUALIFIERS: Final = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|std::)\b|[*&]|std::")


def numpy_type(written: str) -> "np.dtype[Any] | None":
    """Return the numpy type of a parameter's C type; None if it is unknown (a typedef or a template type)."""
    plain = " ".join(_QUALIFIERS.sub(" ", written).split())
    vector = _VECTOR.fullmatch(plain)
    name = _NUMPY.get(vector[1] if vector else plain)
    return None if name is None else np.dtype(name)


#: HIP's limits on every device: work-items of a workgroup, workgroups along x and along y and z, bytes of LDS.
MOST_WORK_ITEMS: Final = 1024
MOST_GROUPS: Final = (2**31 - 1, 65535, 65535)
MOST_LDS_BYTES: Final = 65536
#: Limit of all buffers of a call together. The confined process has its own, higher limit.
MOST_BYTES: Final = 1 << 30
#: Two seeds for testing a harness; seeds for judging a candidate are drawn when it is judged.
_TRIED_SEEDS: Final = (1, 2)


Fault = Callable[[str], UsageError]


def _faults(harness: Harness) -> Fault:
    """Builds the errors of one harness, each one line that names its file."""
    return lambda what: UsageError(f"{harness.path or 'harness'}: {what}")


def validate(harness: Harness, parameters: Sequence[Parameter] | None) -> None:
    """Draw a call of every distribution and compute its reference; UsageError for the first error.

    `parameters` are the kernel's parsed ones, or None if they were not parsed. Errors of other sizes and distributions
    appear when those are drawn (`checked_call`, `checked_reference`).
    """
    fault = _faults(harness)
    _declaration(harness, fault)
    for size in harness.declared_sizes:
        checked_floor(harness, size)
        if not checked_takes(harness, size):
            raise fault(f"takes({size}) is False, and the harness lists that size; mend one of the two")
    size = harness.sizes[0]
    for distribution in harness.distributions:
        call = checked_call(harness, size, distribution, np.random.default_rng(_TRIED_SEEDS[0]), parameters=parameters)
        checked_reference(harness, call)
    timed = [
        checked_call(harness, harness.timing_size, "normal", np.random.default_rng(seed), parameters=parameters)
        for seed in _TRIED_SEEDS
    ]
    _varies(timed[0], timed[1], fault)
    if harness.launch is not None:
        same = _called(fault, "launch", harness.launch, harness.timing_size, timed[0].launch.block)
        if same != timed[0].launch:
            raise fault(f"launch(size, block) gives {same} where call() launches {timed[0].launch}; use one for both")


def checked_call(
    harness: Harness,
    size: Size,
    distribution: Distribution,
    rng: np.random.Generator,
    *,
    parameters: Sequence[Parameter] | None = None,
) -> Call:
    """Draw a call that a target can run, or raise UsageError with its error."""
    fault = _faults(harness)
    call = _called(fault, "call", harness.drawn, size, distribution, rng)
    if not isinstance(call, Call) or not isinstance(call.launch, Launch):
        raise fault(f"call() returned a {type(call).__name__}; return make_call(Launch(grid, block), …)")
    _launch(call.launch, size, fault)
    _arguments(call, fault)
    if parameters is not None:
        _signature(call, parameters, fault)
    return call


def with_block(harness: Harness, call: Call, size: Size, block: tuple[int, int, int]) -> Call:
    """Change the workgroup of `call`, or raise UsageError if the harness cannot launch it."""
    fault = _faults(harness)
    changed: Call = _called(fault, "launch", harness.relaunched, call, size, block)
    _launch(changed.launch, size, fault)
    return changed


def checked_reference(harness: Harness, call: Call) -> dict[str, Expected]:
    """Compute the float64 reference of every output of `call`, or raise UsageError with its error."""
    fault = _faults(harness)
    with np.errstate(all="ignore"):
        expected = _called(fault, "reference", harness.reference, call)
    if not isinstance(expected, Mapping):
        raise fault(f"reference() returned a {type(expected).__name__}; return {{output: (values, bound)}}")
    outputs = {one.name: one for one in call.arguments if isinstance(one, Buffer) and one.role in ("out", "inout")}
    if set(expected) != set(outputs):
        raise fault(f"reference() gives {_listed(expected)}; the outputs of the call are {_listed(outputs)}")
    return {name: _expected(name, outputs[name], expected[name], fault) for name in outputs}


def _declaration(harness: Harness, fault: Fault) -> None:
    if not isinstance(harness.kernel, str) or not harness.kernel.isidentifier():
        raise fault(f"kernel is {harness.kernel!r}; give the name of the __global__ function")
    for name in ("call", "reference", "floor", "launch", "takes"):
        function = getattr(harness, name)
        if not callable(function) and not (function is None and name in ("launch", "takes")):
            raise fault(f"{name} is no function")
    if not isinstance(harness.sizes, tuple) or not harness.sizes:
        raise fault("sizes is empty; give a tuple of sizes, with 1, primes and numbers that no block divides")
    for size in harness.declared_sizes:
        parts = size if isinstance(size, tuple) else (size,)
        if not parts or not all(isinstance(part, int) and part >= 1 for part in parts):
            raise fault(f"the size {size!r} is neither a positive integer nor a tuple of them")
    unknown = [name for name in harness.distributions if name not in DISTRIBUTIONS]
    if unknown or "normal" not in harness.distributions:
        raise fault(
            f"distributions {_listed(harness.distributions)}: take normal and any of {_listed(DISTRIBUTIONS[1:])}"
        )
    if not isinstance(harness.deterministic, bool):
        raise fault("deterministic is neither True nor False")


def checked_floor(harness: Harness, size: Size) -> tuple[float, float]:
    """Return the least floating-point operations and bytes of a size; UsageError with the error of `floor`."""
    fault = _faults(harness)
    floor: tuple[float, float] = _called(fault, "floor", harness.floor, size)
    is_pair = isinstance(floor, tuple) and len(floor) == 2
    if not is_pair or not all(isinstance(one, int | float) and math.isfinite(one) and one >= 0 for one in floor):
        raise fault(f"floor({size}) gives {floor!r}; give (floating-point operations, bytes), both finite")
    if floor[1] == 0:
        raise fault(f"floor({size}) says that no bytes are moved; count the outputs at least")
    return floor


def checked_takes(harness: Harness, size: Size) -> bool:
    """Return whether the kernel accepts a size, or raise UsageError with the error of `takes`."""
    if harness.takes is None:
        return True
    fault = _faults(harness)
    taken = _called(fault, "takes", harness.takes, size)
    if not isinstance(taken, bool | np.bool_):
        raise fault(f"takes({size}) gives {taken!r}; give True or False")
    return bool(taken)


def _launch(launch: Launch, size: Size, fault: Fault) -> None:
    for name, dimensions in (("grid", launch.grid), ("block", launch.block)):
        is_triple = isinstance(dimensions, tuple) and len(dimensions) == 3
        if not is_triple or not all(isinstance(one, int | np.integer) and one >= 1 for one in dimensions):
            raise fault(f"size {size}: the {name} {dimensions!r} is not three positive integers")
    if math.prod(launch.block) > MOST_WORK_ITEMS:
        raise fault(f"size {size}: the workgroup {launch.block} has more than {MOST_WORK_ITEMS} work-items")
    if any(groups > most for groups, most in zip(launch.grid, MOST_GROUPS, strict=True)):
        raise fault(f"size {size}: the grid {launch.grid} is larger than HIP allows, {MOST_GROUPS}")
    if not 0 <= launch.dynamic_lds_bytes <= MOST_LDS_BYTES:
        raise fault(f"size {size}: {launch.dynamic_lds_bytes} bytes of dynamic LDS; {MOST_LDS_BYTES} are the most")


def _arguments(call: Call, fault: Fault) -> None:
    names = [argument.name for argument in call.arguments]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise fault(f"call() gives {_listed(twice)} twice; each argument has a name of its own")
    buffers = {argument.name: argument for argument in call.arguments if isinstance(argument, Buffer)}
    filled = {name for name, one in buffers.items() if one.role != "out"}
    if set(call.contents) != filled:
        raise fault(f"contents are given for {_listed(call.contents)}; they are needed for {_listed(filled)}")
    if all(one.role == "in" for one in buffers.values()):
        raise fault("no buffer is an output; write output(name, elements) or buffer(…, role='inout')")
    empty = [name for name, one in buffers.items() if one.elements < 1]
    if empty:
        raise fault(f"{_listed(empty)} has no element; a size of 1 still has one")
    total = sum(one.elements * np.dtype(one.dtype).itemsize for one in buffers.values())
    if total > MOST_BYTES:
        raise fault(f"the buffers of a call take {total} bytes; {MOST_BYTES} are the most, so choose a smaller size")
    _contents(call, [buffers[name] for name in call.contents], fault)


def _contents(call: Call, filled: Sequence[Buffer], fault: Fault) -> None:
    for one in filled:
        name, values = one.name, call.contents[one.name]
        if not isinstance(values, np.ndarray) or values.dtype != np.dtype(one.dtype) or values.shape != (one.elements,):
            raise fault(f"the contents of {name} are not {one.elements} values of {one.dtype} in one dimension")
        if not values.flags.c_contiguous:
            raise fault(f"the contents of {name} are not contiguous; np.ascontiguousarray mends it")
    for (name, values), (other, others) in combinations(call.contents.items(), 2):
        if np.shares_memory(values, others):
            raise fault(f"{name} and {other} are the same memory; give each buffer its own copy")


def _signature(call: Call, parameters: Sequence[Parameter], fault: Fault) -> None:
    given = [argument.name for argument in call.arguments]
    wanted = [parameter.name for parameter in parameters]
    if given != wanted:
        raise fault(f"call() gives ({', '.join(given)}); the kernel takes ({', '.join(wanted)}), in this order")
    for argument, parameter in zip(call.arguments, parameters, strict=True):
        is_buffer = isinstance(argument, Buffer)
        if is_buffer != parameter.pointer:
            kind = "a pointer" if parameter.pointer else "a value"
            helper = "buffer() or output()" if parameter.pointer else "scalar()"
            raise fault(f"the kernel takes {parameter.name} as {kind}; give it by {helper}")
        if isinstance(argument, Buffer) and parameter.const and argument.role != "in":
            raise fault(f"{argument.name} is const in the kernel and cannot be written; its role is 'in'")
        known = numpy_type(parameter.type)
        if known is not None and np.dtype(argument.dtype) != known:
            raise fault(f"{argument.name} is {argument.dtype}; the kernel's {parameter.type} is {known.name}")


def _varies(first: Call, second: Call, fault: Fault) -> None:
    if first.launch != second.launch or [*first.arguments] != [*second.arguments]:
        raise fault("two calls of one size have other launches or arguments; only contents may be drawn")
    if first.contents and all(np.array_equal(first.contents[name], second.contents[name]) for name in first.contents):
        raise fault("two calls have the same contents; draw them from rng, or a remembered answer would look right")


def _expected(name: str, buffer: Buffer, given: Any, fault: Fault) -> Expected:
    if not isinstance(given, tuple) or len(given) != 2:
        raise fault(f"reference() gives no pair (values, bound) for {name}")
    values, bound = given
    for what, one in (("values", values), ("bound", bound)):
        if not isinstance(one, np.ndarray) or one.dtype != np.float64:
            raise fault(f"the {what} of {name} are not a numpy array of float64; compute them in float64")
        if one.size != buffer.elements:
            raise fault(f"the {what} of {name} are {one.size}; the buffer has {buffer.elements} elements")
    flat = np.ascontiguousarray(values).reshape(-1), np.ascontiguousarray(bound).reshape(-1)
    stated = np.isfinite(flat[1]) & ((flat[1] >= 0) | (flat[1] == NOT_AN_OUTPUT))
    missing = np.flatnonzero(np.isfinite(flat[0]) & ~stated)
    if missing.size:
        at = int(missing[0])
        raise fault(f"the bound of {name}[{at}] is {flat[1][at]}; a finite value has a finite bound, 0 or more")
    if not (flat[1] != NOT_AN_OUTPUT).any():
        raise fault(f"no element of {name} is an output")
    return flat


def _called(fault: Fault, name: str, function: Any, *arguments: Any) -> Any:
    """Call the harness's own function; any exception is reported as its error."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise fault(f"{name}() failed: {type(error).__name__}: {error}") from error


def _listed(names: Any) -> str:
    return ", ".join(sorted(str(name) for name in names)) or "nothing"
