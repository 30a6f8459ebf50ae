"""The partition dimensions: the session, and the campaign. GPU, model and stack are columns and tags, never dimensions.

Keys of sessions are added and removed in `aaco_pipeline.automation.sessions`.
"""

from typing import Final

import dagster as dg

PARTITIONS_NAME: Final = "session"

session_partitions = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)

#: Sets of sessions that are judged together; their ids are made by `aaco_pipeline.automation.campaigns.plan`.
CAMPAIGN_PARTITIONS_NAME: Final = "campaign"

campaign_partitions = dg.DynamicPartitionsDefinition(name=CAMPAIGN_PARTITIONS_NAME)
