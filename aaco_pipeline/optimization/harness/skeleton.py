"""A harness to start from: what `aaco optimize` shows where a kernel has none."""

from collections.abc import Sequence

from aaco_pipeline.optimization.harness.types import numpy_type
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
    """A harness of `kernel` whose call is complete as far as a signature tells; `const` pointers are inputs."""
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
    if not parameter.pointer:
        given = "" if dtype == "int32" else f', "{dtype}"'
        return f'scalar("{parameter.name}", size{given})'
    given = "" if dtype == "float32" else f', "{dtype}"'
    if parameter.const and known is not None and known.kind in "iu":
        return f'buffer("{parameter.name}", indices(distribution, rng, size, size, "{dtype}"))'
    if parameter.const:
        return f'buffer("{parameter.name}", draw(distribution, rng, size{given}))'
    return f'output("{parameter.name}", size{given})'
