"""No source holds a character that nobody sees or that reorders what is seen, and no rewrite adds one outside ASCII."""

import unicodedata
from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.characters import check_characters, hidden_in
from aaco_pipeline.optimization.guards.text import check_text
from tests.optimization.guards.kernel_text import BASELINE, ROW, refused, with_

HIDDEN: Final = [
    *(chr(one) for one in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)),  # bidirectional
    *"\u200b\u200c\u200d\u2060\u2061\ufeff\u00ad\u180e\u034f",  # joiners and what is no space
    *"\u115f\u1160\u3164\uffa0\u2800\u17b4",  # letters without a shape
    *"\ufe00\ufe0f\U000e0100\U000e01ef",  # variation selectors
    *"\U000e0001\U000e0041\U000e007f",  # tags
    *"\0\x01\x08\x0e\x1b\x1c\x1f\x7f\x80\x85\x9b",  # controls
    *"\u2028\u2029",  # ends of lines
    *"\ue000\U000f0000\u0378\uffff\U0001fffe",  # private and unassigned
]
PLACES: Final = {
    "a comment": "  // why {}\n",
    "a comment of several lines": "  /* why\n {} */\n",
    "a string": '  const char* why = "{}";\n',
    "code": "  int ro{}w = 0;\n",
    "what is switched off": "#if 0\n  {}\n#endif\n",
}
LINE: Final = BASELINE[: BASELINE.index(ROW)].count("\n") + 1


@pytest.mark.parametrize("where", PLACES)
def test_a_candidate_with_a_hidden_character_is_refused_by_name_and_line(where: str) -> None:
    line = LINE + PLACES[where].partition("{}")[0].count("\n")
    for one in HIDDEN:
        reason = refused(with_(ROW, PLACES[where].replace("{}", one) + ROW), "characters")
        assert reason.startswith(f"the candidate, line {line}: U+{ord(one):04X}")
        assert one not in reason


def test_a_baseline_with_one_is_refused_whatever_is_changed() -> None:
    line = BASELINE[: BASELINE.index("// one product")].count("\n") + 1
    for one in HIDDEN:
        source = BASELINE.replace("// one product", f"// one {one} product").encode()
        with pytest.raises(Refused) as caught:
            check_text(source, source, "row_dot")
        assert caught.value.reason.startswith(f"the baseline, line {line}: U+{ord(one):04X}")
        assert one not in caught.value.reason


def test_every_control_format_private_and_unassigned_character_is_hidden() -> None:
    """Refuse every character of these categories except line ends and indentation."""
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        one = chr(code)
        if unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp"):
            assert (hidden_in(one.encode()) is None) == (one in "\t\n\v\f\r"), hex(code)


ADDED: Final = {
    "a letter of another script": "// end of \u0441omment",
    "a wide letter": "// \uff41",
    "a mark": "// a\u0301",
    "a space": "// a\u00a0b",
    "a dash": "// a \u2014 b",
    "a bracket": "// a\uff08b",
    "a picture": "// \U0001f680",
}


@pytest.mark.parametrize("name", ADDED)
def test_a_candidate_adds_no_character_outside_ascii(name: str) -> None:
    reason = refused(with_(ROW, f"  {ADDED[name]}\n{ROW}"), "characters")
    assert f"line {LINE}: U+" in reason


def test_what_the_baseline_has_may_be_said_again() -> None:
    comment = "  // \u03b1 \u00d7 \u03b2\n"
    source = BASELINE.replace(ROW, comment + ROW)
    check_text(source.encode(), source.replace(ROW, comment + ROW).encode(), "row_dot")
    with pytest.raises(Refused, match=r"U\+03B3 .*not in the baseline"):
        check_characters(source.encode(), source.replace("\u03b2", "\u03b3").encode())
