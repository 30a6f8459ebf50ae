"""The `cpu` target: a HIP kernel compiled for this machine's processor and run in a process that can do nothing else.

`target` is the entry; `compiler` makes a program of a source, `worker` and `buffers` run it. Its measurements hold for
this processor and say nothing about a GPU's speed.
"""

from aaco_pipeline.resources.targets.cpu.target import CpuTarget

__all__ = ["CpuTarget"]
