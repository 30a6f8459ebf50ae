"""Hostile JSON, CSV, text, metrics and series: too deep, too long, too wide, or not what they say."""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.reliability.hostile_parts import LONG, MIB, Case, case_of, example_of, file_of_bytes

_DEEP: Final = 1_000_000


def of_documents() -> Iterator[Case]:
    for name in ("kineto", "rocprofv3_json", "ort_profile", "thread_trace"):
        for what, change in _DOCUMENT_CHANGES.items():
            yield case_of(f"{name}: {what}", partial(_document, name=name, change=change))
    for what, replaced, by in (
        ("records that are no list", '"kernel_dispatch": [', '"kernel_dispatch": 3, "other": ['),
        ("processes that are no list", '"rocprofiler-sdk-tool": [', '"rocprofiler-sdk-tool": 7, "other": ['),
        ("a time that is a list", '"start_timestamp": 10', '"start_timestamp": [10]'),
        ("a time that is no number", '"start_timestamp": 10', '"start_timestamp": NaN'),
        ("a time beyond 64 bits", '"start_timestamp": 10', f'"start_timestamp": {"9" * 400}'),
        ("an identifier beyond 64 bits", '"kernel_id": 1', f'"kernel_id": {1 << 80}'),
    ):
        yield case_of(f"rocprofv3_json: {what}", partial(_replaced, name="rocprofv3_json", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 5', '"ts": NaN'),
        ("a time beyond 64 bits", '"ts": 5', '"ts": 1e400'),
        ("a duration that is a text", '"dur": 2', '"dur": "long"'),
        ("a grid that is no list", '"grid": [1, 1, 1]', '"grid": "huge"'),
        ("a stream beyond 64 bits", '"stream": 7', f'"stream": {1 << 90}'),
        ("events that are no list", '"traceEvents": [', '"traceEvents": 3, "others": ['),
    ):
        yield case_of(f"kineto: {what}", partial(_replaced, name="kineto", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 11', '"ts": NaN'),
        ("a time that is a text", '"ts": 11', '"ts": "now"'),
        ("a duration beyond 64 bits", '"dur": 3', f'"dur": {1 << 70}'),
        ("a node number that is none", '"node_index": "0"', '"node_index": "-99999999999999999999"'),
    ):
        yield case_of(f"ort_profile: {what}", partial(_replaced, name="ort_profile", replaced=replaced, by=by))
    for what, replaced, by in (
        ("code that is no list", '"code": [', '"code": 3, "other": ['),
        ("an instruction that is an object", '["s_endpgm", 0', '[{"a": 1}, 0'),
        ("hits beyond 64 bits", "260, 1, 4", f"260, {1 << 80}, 4"),
        ("an address that is negative", "7, 260", "7, -260"),
        ("a row that is too short", ", 4, 0, 0]", "]"),
    ):
        yield case_of(f"thread_trace: {what}", partial(_replaced, name="thread_trace", replaced=replaced, by=by))


def _document(folder: Path, host: Path, *, name: str, change: Callable[[str], bytes]) -> Path:
    file = example_of(name, folder)
    file.write_bytes(change(file.read_text()))
    return folder / "in"


def _replaced(folder: Path, host: Path, *, name: str, replaced: str, by: str) -> Path:
    file = example_of(name, folder)
    content = file.read_text()
    assert replaced in content, (name, replaced)
    file.write_text(content.replace(replaced, by))
    return folder / "in"


def _nested(content: str, opening: str, closing_: str) -> bytes:
    """A value nested as deep as a stack may not be, at the place of the last number."""
    at = max(content.rfind(digit) for digit in "0123456789")
    return (content[:at] + opening * _DEEP + "1" + closing_ * _DEEP + content[at + 1 :]).encode()


_DOCUMENT_CHANGES: Final[dict[str, Callable[[str], bytes]]] = {
    "lists a million deep": lambda content: _nested(content, "[", "]"),
    "objects a million deep": lambda content: _nested(content, '{"a":', "}"),
    "opened and never closed": lambda content: content[:60].encode() + b"[" * _DEEP,
    "a text without end": lambda content: content.rstrip("]} \n").encode() + b', "' + b"a" * (80 * MIB),
    "a number of a hundred million digits": lambda content: _nested(content, "9" * 10, "").replace(
        b"9" * 100, b"9" * 1000
    ),
    "what comes after its end": lambda content: content.encode() + b'{"traceEvents": ['[:1] * 10,
    "bytes of no text": lambda content: content[:-9].encode() + b"\xff\xfe\xfd" + content[-9:].encode(),
}


def of_texts() -> Iterator[Case]:
    for name in ("rocprofv3_csv", "rocprof", "rocprof_compute"):
        for what, change in _TEXT_CHANGES.items():
            yield case_of(f"{name}: {what}", partial(_document, name=name, change=change))
        for what, value in (("no number", "NaN"), ("words", "yesterday"), ("a power", "1e400"), ("huge", "9" * 40)):
            replaced = {"old": ",100,200", "new": f",{value},{value}"}
            yield case_of(
                f"{name}: times are {what}", partial(_replaced, name=name, replaced=replaced["old"], by=replaced["new"])
            )


_TEXT_CHANGES: Final[dict[str, Callable[[str], bytes]]] = {
    "a million columns": lambda content: (
        content.splitlines()[0] + "," + ",".join(f"c{n}" for n in range(_DEEP)) + "\n" + content.splitlines()[1] + "\n"
    ).encode(),
    "a quote that is never closed": lambda content: content.encode() + b'"' + b"a,\n" * (20 * MIB),
    "a line of eighty megabytes": lambda content: content.encode() + b"9" * (80 * MIB) + b"\n",
    "a row that is too short": lambda content: content.encode() + b"KERNEL\n",
    "a row that is too long": lambda content: content.encode() + b"1," * 200 + b"1\n",
}


def of_metrics() -> Iterator[Case]:
    for what, content in (
        ("a size beyond the file", struct.pack("<HBB", 0xFFFF, 1, 8) + bytes(400)),
        ("a size of nothing", struct.pack("<HBB", 0, 1, 8) + bytes(400)),
        ("a version of the future", struct.pack("<HBB", 120, 1, 99) + bytes(116)),
        ("a version of no card", struct.pack("<HBB", 120, 99, 1) + bytes(116)),
        ("described values without end", struct.pack("<HBBI", 0xFFFF, 1, 9, 0xFFFFFFFF) + b"\xff" * 65528),
        ("described values of no kind", struct.pack("<HBBI", 64, 1, 9, 2) + b"\xff" * 56),
        ("nothing described", struct.pack("<HBBI", 8, 1, 9, 0)),
    ):
        yield case_of(f"gpu_metrics: {what}", partial(file_of_bytes, file="card0.bin", content=content))


def of_series() -> Iterator[Case]:
    answer = b'{"status":"success","data":{"resultType":"matrix","result":['
    line = b'{"metric":{"__name__":"rocm_sclk_clock_mhz","card":"0"},"values":'
    series = b"".join(b'rocm_sclk_clock_mhz{card="%d"} 1 1700000000000\n' % card for card in range(100_000))
    labels = b'rocm_sclk_clock_mhz{card="0",' + b",".join(b'a%d="b"' % at for at in range(LONG // 10)) + b"} 1\n"
    for what, file, content in (
        ("a hundred thousand devices", "scrape.prom", series),
        ("a million labels", "scrape.prom", labels + b'rocm_sclk_clock_mhz{card="x"} 1 1\n'),
        ("labels that never end", "scrape.prom", b'rocm_num_gpus 1\nrocm_sclk_clock_mhz{card="' + b'\\"' * LONG),
        ("a line of a hundred million bytes", "scrape.prom", b"rocm_num_gpus 1\n" + b"9" * (96 * MIB)),
        ("an answer nested without end", "answer.json", answer + b"[" * _DEEP),
        ("an answer of the wrong kinds", "answer.json", answer + b'{"metric":7,"values":{"a":1}}]}}'),
        ("values nested without end", "export.jsonl", line + b"[" * _DEEP + b"\n"),
        ("fewer times than values", "export.jsonl", line + b'[1,2,3],"timestamps":[1]}\n'),
        ("columns without rows", "omnistat.csv", b"metric" + b",rocm_sclk_clock_mhz" * 100_000 + b"\n"),
    ):
        yield case_of(f"prometheus: {what}", partial(file_of_bytes, file=file, content=content))
