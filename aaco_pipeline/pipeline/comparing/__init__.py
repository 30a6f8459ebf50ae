"""Campaigns: sets of fresh sessions measured together, so that a verdict on a change is sound.

`plan` defines what is measured and in which order, `measuring` measures it, `judging` applies the statistics, and
`running` does all of it. The Dagster code is in `aaco_pipeline.automation.campaigns`.
"""
