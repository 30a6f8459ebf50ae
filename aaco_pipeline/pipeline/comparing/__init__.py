"""Campaigns: sets of fresh sessions that are measured together, so that a verdict on a change means something.

`plan` says what is measured and in which order, before anything is; `measuring` does it; `judging` asks the statistics;
`baselines` keeps what workloads are compared with. Dagster's side is `aaco_pipeline.automation.campaigns`.
"""
