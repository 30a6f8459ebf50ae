"""The nights: what is measured every night, what of it is due, and the plans that are written for it.

`benchmarks` reads what a project wants measured; `due` decides from facts alone what is to be done now; `night` writes
the plans; `definitions` shows it to Dagster. Measuring and judging is `aaco_pipeline.automation.campaigns`.
"""
