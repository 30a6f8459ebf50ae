"""How series of GPU sensors are recognized: by the names of their metrics, or by the form of the answer."""

import re
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.gpu_metrics.prometheus.sensors import WRITTEN
from aaco_pipeline.formats.parsing.compression import first_bytes

FORMAT: Final = "gpu-series"
#: So far into the file the first sensor is looked for: the Go and Python runtimes' own metrics stand before it.
_LOOKED_AT: Final = 256 << 10
Form = Literal["text", "query", "lines", "csv"]
_DETAIL: Final[dict[Form, str]] = {
    "text": "Prometheus text of GPU sensors",
    "query": "answer of a Prometheus query, as JSON",
    "lines": "JSON lines of a VictoriaMetrics export",
    "csv": "CSV of omnistat-query --export",
}
_ANSWER: Final = re.compile(rb'\A\s*\{[^\[]{0,4096}?"resultType"\s*:\s*"(?:matrix|vector)"')
_ANSWER_BACKWARDS: Final = re.compile(rb'\A\s*\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"result"\s*:\s*\[')
_LINE: Final = re.compile(rb'\A\s*\{\s*"metric"\s*:\s*\{\s*"')
_NAME_AT_A_LINES_BEGIN: Final = re.compile(rb"^[ \t]*([A-Za-z_:][A-Za-z0-9_:]*)(?=\{|[ \t]+[-+]?[0-9.])", re.MULTILINE)
_CSV: Final = re.compile(rb'\A(?:\xef\xbb\xbf)?"?metric"?,')


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a file by its first 256 KiB; None for anything else."""
    form = form_of(first_bytes(path, _LOOKED_AT))
    return None if form is None else DetectedFormat(FORMAT, _DETAIL[form])


def form_of(head: bytes) -> Form | None:
    """Which form a file that begins so has, None for none."""
    if b"\0" in head:
        return None
    if _ANSWER.match(head) or _ANSWER_BACKWARDS.match(head):
        return "query"
    if _LINE.match(head):
        return "lines"
    if _CSV.match(head):
        cells = head.partition(b"\n")[0].decode("utf-8", "replace").replace('"', "").strip().split(",")
        return "csv" if WRITTEN.intersection(cells) else None
    if head.lstrip()[:1] in (b"{", b"[", b"<"):
        return None
    known = (match[1].decode() in WRITTEN for match in _NAME_AT_A_LINES_BEGIN.finditer(head))
    return "text" if any(known) else None
