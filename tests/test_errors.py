"""Rules for every expected error."""

from aaco_pipeline.errors import CaptureError


def test_an_error_is_one_line_whatever_a_library_or_a_file_name_puts_into_it() -> None:
    assert str(CaptureError("a\nb.csv: bad\r\ntoken\x0b\u2028here")) == "a b.csv: bad token  here"
