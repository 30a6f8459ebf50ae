"""Text that begins with its digest is what the standard encoder writes, and a changed byte of it is noticed."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.manifest import is_sealed, seal

HEAD: Final = len('{\n "digest": "')
SCALARS: Final = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(st.dictionaries(st.text(max_size=5).map(lambda name: f"e{name}"), VALUES, max_size=5))
def test_the_text_is_that_of_the_standard_encoder(document: dict[str, Any]) -> None:
    text = seal(document)
    expected = json.dumps({"digest": "", **document}, indent=1, sort_keys=True) + "\n"
    assert text[:HEAD] + text[HEAD + 64 :] == expected.encode()
    assert is_sealed(text)


@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    text = seal({"entries": [{"file": "a", "rows": 3}]})
    at = data.draw(st.integers(HEAD, len(text) - 1))
    torn = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
    with pytest.raises(ValueError, match="not those that were written"):
        is_sealed(torn)
