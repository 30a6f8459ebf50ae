"""The one partition dimension: the session. GPU, model and stack are columns and tags, never further dimensions.

Keys are added and removed in `aaco_pipeline.automation.sessions`.
"""

import dagster as dg

session_partitions = dg.DynamicPartitionsDefinition(name="session")
