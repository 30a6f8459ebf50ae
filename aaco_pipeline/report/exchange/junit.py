"""A comparison as a JUnit report, which CI systems show beside a change: a regression is a failure.

What was not decided is skipped with the reason: it neither passed nor failed. There is no schema that all readers
share; written is what all of them read (a suite with its counts, a case, one `failure` or `skipped` with its message).
"""

from xml.etree import ElementTree

from aaco_pipeline.report.exchange.outcome import Outcome
from aaco_pipeline.report.words.printable import in_lines, printable


def render_junit(outcome: Outcome) -> str:
    """One suite with one case: the metric that decides."""
    name = printable(outcome.name)
    counts = {"tests": "1", "errors": "0"}
    counts |= {"failures": str(int(outcome.state == "failed")), "skipped": str(int(outcome.state == "skipped"))}
    root = ElementTree.Element("testsuites", {"name": "aaco", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
    case = ElementTree.SubElement(suite, "testcase", classname=name, name=outcome.case)
    message = printable(outcome.sentence)
    lines = in_lines("\n".join(outcome.lines))
    if outcome.state == "failed":
        ElementTree.SubElement(case, "failure", message=message, type="regression").text = lines
    elif outcome.state == "skipped":
        ElementTree.SubElement(case, "skipped", message=message).text = lines
    else:
        ElementTree.SubElement(case, "system-out").text = f"{message}\n{lines}"
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'
