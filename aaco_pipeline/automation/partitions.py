"""The one partition dimension: the session. GPU, model and stack are columns and tags, never further dimensions.

Keys are added and removed in `aaco_pipeline.automation.sessions`.
"""

from typing import Final

import dagster as dg

PARTITIONS_NAME: Final = "session"

session_partitions = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)
