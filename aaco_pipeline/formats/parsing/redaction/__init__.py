"""The one redaction that everything from a capture or a process passes before it reaches the lake.

Command lines, environments, values with names, free text, names of files, and whole files of text. It hides what is
announced as a secret or looks like one, and keeps the rest: hashes, mangled names, paths and `--max-tokens 128` are
evidence. Databases are copied through it by `aaco_pipeline.resources.sqlite_copy`.
"""

from typing import Final

from aaco_pipeline.formats.parsing.redaction.commands import (
    may_hold_secrets,
    safe_command,
    safe_prose,
    safe_words,
)
from aaco_pipeline.formats.parsing.redaction.environment import (
    MEASURED_VARIABLES,
    RANK_VARIABLES,
    safe_environment,
    safe_environment_block,
    safe_environment_text,
    safe_setting,
    safe_variable,
)
from aaco_pipeline.formats.parsing.redaction.text import (
    REDACTED,
    redacted_bytes,
    redacted_prose,
    redacted_text,
    safe_name,
    safe_text,
    safe_value,
)

__all__ = [
    "MEASURED_VARIABLES",
    "RANK_VARIABLES",
    "REDACTED",
    "RULES_VERSION",
    "may_hold_secrets",
    "redacted_bytes",
    "redacted_prose",
    "redacted_text",
    "safe_command",
    "safe_environment",
    "safe_environment_block",
    "safe_environment_text",
    "safe_name",
    "safe_prose",
    "safe_setting",
    "safe_text",
    "safe_value",
    "safe_variable",
    "safe_words",
]

#: Counts up whenever a rule hides or keeps what it did not before; it is in the list of a session's files.
RULES_VERSION: Final = 7
