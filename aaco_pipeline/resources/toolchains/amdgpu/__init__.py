"""Kernels compiled for AMD GPUs on a host without one: registers, LDS, spills, occupancy and machine code.

`finding` finds a compiler, `compiling` compiles a kernel and reads the compiler's remarks, `code_object` reads the
result, `verdict` compares two. Conclusions are drawn in `aaco_pipeline.optimization.guards.resources`.
"""
