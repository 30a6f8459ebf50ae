"""What Kineto says in a trace of what it lost: its messages, which it may write under the keys INFO, WARNING and ERROR.

Their words are those of libkineto (CuptiActivityProfiler.cpp, CuptiActivityApi.cpp, RoctracerLogger.cpp and
RocprofLogger.cpp in pytorch/kineto), and of PyTorch where it tells of a collection that was stopped.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.parsing.redaction import safe_value
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, STOPPED

_LEVELS: Final = ("INFO", "WARNING", "ERROR")
_MOST_MESSAGES: Final = 1_000
_LONGEST: Final = 300
_COUNT: Final = r"(\d{1,15})"
_DROPPED: Final = re.compile(rf"Dropped {_COUNT} activity records")
_OUT_OF_RANGE: Final = re.compile(rf"Out-of-range = {_COUNT}")
_STOPPED: Final = re.compile(
    r"Exceeded max GPU buffer count|stopped early\? = [1-9]|activity collection was stopped early"
)


def say_losses(metadata: Mapping[str, Any], findings: Findings) -> None:
    """State what the tool counts as dropped and as outside its recording, and that it stopped early."""
    messages = list(_messages(metadata))
    for item, pattern, what in (
        (DROPPED, _DROPPED, "{} records were dropped from its buffers"),
        (OUT_OF_RANGE, _OUT_OF_RANGE, "{} records lay outside the time of the recording"),
    ):
        counts = [int(found[1]) for text in messages for found in pattern.finditer(text)]
        if counts:
            said = what.format(sum(counts))
            findings.say(item, "partial" if sum(counts) else "present", said, sum(counts))
    stopped = next((text for text in messages if _STOPPED.search(text)), None)
    if stopped is not None:
        findings.say(STOPPED, "partial", f"it stopped early: {safe_value('message', stopped[:_LONGEST])}")


def _messages(metadata: Mapping[str, Any]) -> Iterator[str]:
    for level in _LEVELS:
        listed = metadata.get(level)
        for text in (listed if isinstance(listed, list) else [])[:_MOST_MESSAGES]:
            if isinstance(text, str):
                yield text
