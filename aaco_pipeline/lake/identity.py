"""Names of sessions and campaigns: how they are made and which texts are valid ones.

What needs a lake lives there: an id later than all others in `store`, a session by prefix or as `latest` in `reading`.
"""

import re
import secrets
from datetime import UTC, datetime
from typing import Final

from aaco_pipeline.errors import UsageError

SESSION_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}(-[a-z0-9][a-z0-9-]{0,23})?")
_NAME_LENGTH: Final = 24
#: A campaign is named by its maker; the rule keeps it a valid path part, partition key and SQL literal.
CAMPAIGN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

#: A capture that is one file is named after it: how such files end says nothing of the workload.
_FILE_ENDINGS: Final = re.compile(r"(\.(gz|json|csv|db|trace|onnx))+$")


def new_session_id(workload: str | None = None, now: datetime | None = None) -> str:
    """`YYYYMMDDTHHMMSSZ-<8 hex>-<workload>`: sorts by time to the second, and is random within it.

    Of the workload's name, without the endings of a file, letters and digits are kept, at most 24 characters; without a
    name the id ends before it.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    plain = _FILE_ENDINGS.sub("", (workload or "").lower())
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME_LENGTH].rstrip("-")
    return "-".join(filter(None, (f"{moment:%Y%m%dT%H%M%SZ}", secrets.token_hex(4), name)))


def time_of(session: str) -> datetime | None:
    """The second that an id states; None where that is no time."""
    try:
        return datetime.strptime(session[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def require_session_id(text: str) -> str:
    """`text` itself when it is a session id, else UsageError: ids become paths, so nothing else may pass."""
    if SESSION_ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} is not a session id; expected YYYYMMDDTHHMMSSZ-<8 hexadecimal digits>, or that with -<workload>"
        )
    return text


def require_campaign_id(text: str) -> str:
    """`text` itself when it is a valid campaign id, else UsageError."""
    if SESSION_ID.fullmatch(text) is not None:
        raise UsageError(f"{text!r} is a session id; a campaign needs a name of its own")
    if CAMPAIGN_ID.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a campaign id; expected letters, digits, '_' and '-', at most 128")
    return text
