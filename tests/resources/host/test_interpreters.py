"""Another Python is asked what it has installed; what is no Python with an onnxruntime is refused in one line."""

import sys
from pathlib import Path

import pytest

from aaco_pipeline.errors import AacoError, UnavailableError, UsageError
from aaco_pipeline.resources.host.facts import MEASURED_PACKAGES, own_software
from aaco_pipeline.resources.host.interpreters import software_of


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def refusal(interpreter: str, kind: type[AacoError], code: int) -> str:
    """The one line with which an interpreter is refused."""
    with pytest.raises(kind) as raised:
        software_of(interpreter)
    line = str(raised.value)
    assert (raised.value.exit_code, line.count("\n")) == (code, 0)
    assert line.startswith(f"{interpreter}: ")
    return line


def test_this_python_has_what_it_says_of_itself() -> None:
    found = software_of(sys.executable)
    assert set(found) == {"python", "aaco_pipeline", *MEASURED_PACKAGES}
    assert found == {name: own_software().get(name) for name in found}
    assert found["python"] == sys.version.split()[0]


def test_a_missing_file_is_bad_usage(tmp_path: Path) -> None:
    line = refusal(str(tmp_path / "python"), UsageError, 2)
    assert "no such file; give the path of a Python" in line


@pytest.mark.parametrize(
    "text",
    ["#!/bin/sh\necho hello\n", "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho '[1]'\n", "#!/bin/sh\necho '{}'\n", "\x00\x01"],
    ids=["words", "fails", "a list", "an empty object", "no program"],
)
def test_what_is_no_python_is_not_available(text: str, tmp_path: Path) -> None:
    line = refusal(script(tmp_path / "python", text), UnavailableError, 4)
    assert "does not answer as a Python of 3.11 or newer does" in line


def test_a_file_that_may_not_be_run_is_not_available(tmp_path: Path) -> None:
    path = script(tmp_path / "python", "#!/bin/sh\n")
    Path(path).chmod(0o644)
    assert "(PermissionError)" in refusal(path, UnavailableError, 4)


@pytest.mark.parametrize(("numpy", "runtime", "works"), [("1", "1", True), ("1", None, False), (None, "1", False)])
def test_a_python_needs_numpy_and_an_onnxruntime(
    numpy: str | None, runtime: str | None, works: bool, tmp_path: Path
) -> None:
    """Of another onnxruntime than the one of this Python, as an AMD build is."""
    versions = dict.fromkeys(MEASURED_PACKAGES) | {"numpy": numpy, "onnxruntime-migraphx": runtime, "python": "3.12.1"}
    answer = repr(versions).replace("None", "null").replace("'", '"')
    path = script(tmp_path / "python", f"#!/bin/sh\necho '{answer}'\n")
    if works:
        assert software_of(path) == {**versions, "aaco_pipeline": own_software()["aaco_pipeline"]}
    else:
        assert "has no numpy or no onnxruntime; install them" in refusal(path, UnavailableError, 4)
