"""Nights: benchmarks measured every night, their baselines, alerts and history.

`benchmarks` decides what is due, `night` plans it, `alerts` and `findings` report the results, `baselines` and `series`
hold the data that nights are compared with. The Dagster code is in `aaco_pipeline.automation.nights` and `watching`.
"""
