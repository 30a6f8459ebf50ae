"""Who proposes changes to a kernel: one module each, in the order in which they are asked.

Each says of what it leaves alone why. None goes across a barrier, a cross-lane operation, an atomic, dynamic local data
share or a volatile value. `language_model` is asked after these, where it is configured; `onnx` proposes for models,
not for kernels. `reductions` and `syntax` are what several share.
"""

from typing import Final

from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.proposers.hints import BlockSize, LaunchBounds, Restrict, Unrolling
from aaco_pipeline.optimization.proposers.lds_padding import LdsPadding
from aaco_pipeline.optimization.proposers.reductions import Accumulators, VectorLoads

#: What gains most where it applies first: a chain of additions, then loads, then what the compiler is told.
PROPOSERS: Final[tuple[Proposer, ...]] = (
    Accumulators(),
    VectorLoads(),
    LdsPadding(),
    Unrolling(),
    Restrict(),
    BlockSize(),
    LaunchBounds(),
)
