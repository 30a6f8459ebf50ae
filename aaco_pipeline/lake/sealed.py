"""JSON whose text begins with the digest of all that follows: a torn one is known without anything beside it.

Manifests and the lists of segments are of this form; what they say is decided by `aaco_pipeline.lake.manifest` and
`aaco_pipeline.lake.segments`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

#: How the text begins: the digest over all other bytes stands first, at a known place. Sorted, it is the first key.
_HEAD: Final = b'{\n "digest": "'
_DIGITS: Final = 64


def seal(document: Mapping[str, object]) -> bytes:
    """The document's text, the same for the same content. No key of it sorts before `digest`."""
    rest = (json.dumps({"digest": "", **document}, indent=1, sort_keys=True) + "\n").encode().removeprefix(_HEAD)
    return _HEAD + _digest(rest) + rest


def is_sealed(content: bytes) -> bool:
    """Whether the text begins with a digest. ValueError when it is not that of the bytes after it."""
    if not content.startswith(_HEAD):
        return False
    if content[len(_HEAD) :][:_DIGITS] != _digest(content[len(_HEAD) + _DIGITS :]):
        raise ValueError("its bytes are not those that were written")
    return True


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode()
