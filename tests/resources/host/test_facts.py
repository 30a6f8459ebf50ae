"""Facts about the host: that they are there, that unknown ones are null, and that nothing secret is among them.

Another Python is asked what it has installed; what is no Python with an onnxruntime is refused in one line.

The stack of a host by its facts, and which of two readings is a change.
"""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.analysis.sessions.environment import environment
from aaco_pipeline.errors import AacoError, UnavailableError, UsageError
from aaco_pipeline.resources.host import facts as host
from aaco_pipeline.resources.host import facts as stack
from aaco_pipeline.resources.host.facts import (
    ABSENT,
    MEASURED_PACKAGES,
    changes_of_stack,
    host_facts,
    own_software,
    software_of,
    stack_facts,
)
from aaco_pipeline.resources.host.kernel_files import text_of


def by_name(document: dict[str, Any]) -> dict[tuple[str, str], str | None]:
    return {(fact["category"], fact["key"]): fact["value"] for fact in document["facts"]}


def test_no_value_of_an_environment_variable_is_among_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "token-that-nobody-may-see-4711"
    for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AACO_LAKE", "HSA_SOMETHING", "ORT_SETTING", "PATH_EXTRA"):
        monkeypatch.setenv(name, secret)
    assert secret not in json.dumps(host_facts())


def test_the_environment_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            raise AssertionError(f"{name} was read")

        def __iter__(self) -> Any:
            raise AssertionError("the environment was listed")

    host_facts()  # what the standard library reads once, it has read
    monkeypatch.setattr(os, "environ", Forbidden())
    host_facts()


def test_every_fact_is_named_once_and_has_text_or_nothing() -> None:
    document = host_facts()
    assert len(by_name(document)) == len(document["facts"])
    assert all(fact["value"] is None or fact["value"] for fact in document["facts"])
    assert environment(document["facts"]).height == len(document["facts"])
    assert json.loads(json.dumps(document)) == document


def test_what_can_change_a_measurement_is_among_the_facts() -> None:
    facts = by_name(host_facts())
    assert facts["host", "name"] == platform.node()
    assert facts["kernel", "release"] == platform.release()
    assert facts["python", "version"] == sys.version.split()[0]
    assert int(facts["cpu", "logical_cpus"] or 0) >= int(facts["cpu", "usable_cpus"] or 0) > 0
    assert int(facts["memory", "total_bytes"] or 0) > 1 << 20
    assert {("cpu", "governor"), ("rocm", "version"), ("rocm", "amdgpu_driver")} <= set(facts)


def test_packages_are_known_by_version_and_absent_ones_are_null() -> None:
    facts = by_name(host_facts())
    assert {key for category, key in facts if category == "package"} == set(MEASURED_PACKAGES)
    assert facts["package", "numpy"]
    assert facts["package", "onnxruntime-migraphx"] is None


def test_the_host_does_not_change_between_two_looks() -> None:
    assert host_facts() == host_facts()


def test_device_zero_is_the_processor() -> None:
    (device,) = host_facts()["devices"]
    assert (device["device_id"], device["handle"], device["arch"]) == (0, "cpu", platform.machine())
    assert device["compute_units"] == os.cpu_count()


def test_a_host_that_states_nothing_has_null_facts_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "text_of", lambda path: None)
    monkeypatch.setattr(platform, "processor", lambda: "")
    document = host_facts()
    facts = by_name(document)
    assert facts["cpu", "model"] is facts["cpu", "governor"] is facts["memory", "total_bytes"] is None
    assert document["devices"][0]["product"] is None


def test_an_unreadable_or_empty_file_is_an_unknown_fact(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    assert text_of(empty) is text_of(tmp_path / "nowhere") is text_of(tmp_path) is None


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
    """An interpreter with another onnxruntime than this Python's, as an AMD build is."""
    versions = dict.fromkeys(MEASURED_PACKAGES) | {"numpy": numpy, "onnxruntime-migraphx": runtime, "python": "3.12.1"}
    answer = repr(versions).replace("None", "null").replace("'", '"')
    path = script(tmp_path / "python", f"#!/bin/sh\necho '{answer}'\n")
    if works:
        assert software_of(path) == {**versions, "aaco_pipeline": own_software()["aaco_pipeline"]}
    else:
        assert "numpy or onnxruntime is missing; install both" in refusal(path, UnavailableError, 4)


def test_versions_are_read_from_rocms_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info/version").write_text("7.2.0-43\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmigraphx.so.2015000.0.70200").touch()
    (tmp_path / "lib/libmigraphx.so").symlink_to("libmigraphx.so.2015000.0.70200")
    (tmp_path / "nvidia").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(stack, "_NVIDIA", tmp_path / "nvidia")
    facts = stack_facts()
    assert facts["rocm version"] == "7.2.0-43"
    assert facts["library migraphx"] == "2015000.0.70200"
    assert facts["library hipblaslt"] == ABSENT
    assert facts["nvidia driver"] == "570.124.06"
    assert facts["package onnxruntime"] not in (None, ABSENT)
    assert facts["package onnxruntime-migraphx"] == ABSENT


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("7.1", "7.2", ["rocm version: 7.1 → 7.2"]),
        ("7.1", "7.1", []),
        ("7.1", None, []),
        (None, "7.1", ["rocm version: unknown → 7.1"]),
        ("7.1", ABSENT, ["rocm version: 7.1 → absent"]),
    ],
)
def test_what_can_no_longer_be_read_is_no_change(before: str | None, after: str | None, told: list[str]) -> None:
    assert changes_of_stack({"rocm version": before}, {"rocm version": after}) == told


def test_a_library_that_a_later_version_looks_for_is_no_change_where_it_is_absent() -> None:
    assert changes_of_stack({}, {"library new": ABSENT}) == []
    assert changes_of_stack({}, {"library new": "1"}) == ["library new: unknown → 1"]
