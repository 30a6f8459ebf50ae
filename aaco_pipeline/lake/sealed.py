"""JSON whose text begins with the digest of all that follows: a torn one is known without anything beside it.

Manifests and the lists of segments are of this form; what they say is decided by `aaco_pipeline.lake.manifest` and
`aaco_pipeline.lake.segments.format`.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Final

#: How the text begins: the digest over all other bytes stands first, at a known place. Sorted, it is the first key.
_HEAD: Final = b'{\n "digest": "'
_DIGITS: Final = 64
_CONTAINERS: Final = (dict, list, tuple)


def seal(document: Mapping[str, object]) -> bytes:
    """The document's text, the same for the same content. No key of it sorts before `digest`."""
    rest = (_text({"digest": "", **document}, 1) + "\n").encode().removeprefix(_HEAD)
    return _HEAD + _digest(rest) + rest


def is_sealed(content: bytes) -> bool:
    """Whether the text begins with a digest. ValueError when it is not that of the bytes after it."""
    if not content.startswith(_HEAD):
        return False
    if content[len(_HEAD) :][:_DIGITS] != _digest(content[len(_HEAD) + _DIGITS :]):
        raise ValueError("its bytes are not those that were written")
    return True


def _text(value: object, depth: int) -> str:
    """What `json.dumps` writes with an indent of 1 and sorted keys, faster: its encoder in C has no indent."""
    if not isinstance(value, _CONTAINERS):
        return json.dumps(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    if not value:
        return begin + end
    between = "\n" + " " * depth
    inner = value.values() if isinstance(value, dict) else value
    if not any(isinstance(one, _CONTAINERS) for one in inner):
        held = _flat(depth).encode(value)[1:-1]
    elif isinstance(value, dict):
        held = f",{between}".join(f"{json.dumps(name)}: {_text(value[name], depth + 1)}" for name in sorted(value))
    elif all(map(_is_record, value)):
        # All at once, with the separator of their members; within a text a line end is escaped.
        records = _flat(depth + 1).encode(value)[2:-2]
        held = f"{{{between} {records.replace(f'}},{between} {{', f'{between}}},{between}{{{between} ')}{between}}}"
    else:
        held = f",{between}".join(_text(one, depth + 1) for one in value)
    return f"{begin}{between}{held}{between[:-1]}{end}"


def _is_record(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and not any(isinstance(one, _CONTAINERS) for one in value.values())


@cache
def _flat(depth: int) -> json.JSONEncoder:
    """An encoder of what holds no other container, which stands so deep."""
    return json.JSONEncoder(sort_keys=True, separators=(",\n" + " " * depth, ": "))


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode()
