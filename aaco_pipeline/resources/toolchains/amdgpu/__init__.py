"""Compile kernels for AMD GPUs on any host: registers, LDS, spills, occupancy and machine code.

`finding` finds a compiler, `compiling` compiles a kernel and reads the compiler's remarks, `code_object` reads the
result, `verdict` compares two. `aaco_pipeline.optimization.guards.resources` draws the conclusions.
"""
