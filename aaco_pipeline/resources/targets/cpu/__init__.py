"""The `cpu` target: a HIP kernel compiled for this machine's processor and run in a process that can do nothing else.

`target` is the door; `compiler`, `linking`, `object_file`, `device_part` and `own_code` make a program of a source,
`worker` and `buffers` run it. What it measures is true of this processor and says nothing about a GPU's speed.
"""

from aaco_pipeline.resources.targets.cpu.target import CpuTarget

__all__ = ["CpuTarget"]
