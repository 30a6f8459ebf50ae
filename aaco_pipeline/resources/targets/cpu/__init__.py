"""The `cpu` target: a HIP kernel compiled for this machine's processor and run in a strictly confined process.

`target` is the entry point; `compiler` builds a program from a source, `worker` and `buffers` run it. Its measurements
are valid for this processor and say nothing about a GPU's speed.
"""

from aaco_pipeline.resources.targets.cpu.target import CpuTarget

__all__ = ["CpuTarget"]
