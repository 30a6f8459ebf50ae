"""Proposers of changes to a kernel, in the order in which they are asked.

Each says why it leaves something alone. None crosses a barrier, a cross-lane operation, an atomic, dynamic local data
share or a volatile value. `language_model` is asked after these, where it is configured; `onnx` proposes for models,
not for kernels. `reductions` and `syntax` are what several share.
"""

from typing import Final

from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.proposers.hints import BlockSize, LaunchBounds, Restrict, Unrolling
from aaco_pipeline.optimization.proposers.lds_padding import LdsPadding
from aaco_pipeline.optimization.proposers.reductions import Accumulators, VectorLoads

#: Largest gains first, where they apply: chains of additions, then loads, then hints to the compiler.
PROPOSERS: Final[tuple[Proposer, ...]] = (
    Accumulators(),
    VectorLoads(),
    LdsPadding(),
    Unrolling(),
    Restrict(),
    BlockSize(),
    LaunchBounds(),
)
