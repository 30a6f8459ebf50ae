"""Nights: benchmarks that are measured every night, their baselines, alerts and history.

`benchmarks` decides what is due, `night` plans it, `alerts` and `findings` report the results, `baselines` and `series`
keep what nights are compared with. Dagster's side is `aaco_pipeline.automation.nights` and `watching`.
"""
