"""The nights: what is measured every night, what of it is due, and the plans that are written for it.

`benchmarks` reads what a project wants measured; `due` decides from facts alone what is to be done now; `night` writes
the plans. Measuring and judging is `pipeline.comparing`, Dagster's side `automation.nights`.
"""
