"""A kernel compiled for AMD GPUs without one: its registers, LDS, spills, occupancy and machine code.

`finding` says which compiler there is, `commands` what it is told, `running` runs it under limits. `compiling` makes a
kernel and what is known of it, `verdict` compares two of them. `code_object` (with `machine_code`) reads what it made,
`remarks` what it said. What follows from the figures is decided by `aaco_pipeline.optimization.guards.resources`.
"""
