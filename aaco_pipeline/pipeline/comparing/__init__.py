"""Campaigns: sets of fresh sessions that are measured together, so that a verdict on a change is sound.

`plan` fixes what is measured and in which order; `measuring` measures it; `judging` asks the statistics; `running` does
all of it. Dagster's side is `aaco_pipeline.automation.campaigns`.
"""
