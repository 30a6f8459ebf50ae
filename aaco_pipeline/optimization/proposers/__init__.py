"""Who proposes changes to a kernel: one module each, in the order in which they are asked.

Each says of what it leaves alone why. None goes across a barrier, a cross-lane operation, an atomic, dynamic local data
share or a volatile value. `language_model` is asked after these, where it is configured; `onnx` proposes for models,
not for kernels. `reductions` and `syntax` are what several share.
"""

from typing import Final

from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.proposers.accumulators import Accumulators
from aaco_pipeline.optimization.proposers.block_size import BlockSize
from aaco_pipeline.optimization.proposers.launch_bounds import LaunchBounds
from aaco_pipeline.optimization.proposers.lds_padding import LdsPadding
from aaco_pipeline.optimization.proposers.restrict import Restrict
from aaco_pipeline.optimization.proposers.unrolling import Unrolling
from aaco_pipeline.optimization.proposers.vector_loads import VectorLoads

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
