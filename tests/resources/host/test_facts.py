"""Facts about the host: that they are there, that unknown ones are null, and that nothing secret is among them."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.analysis.sessions.environment import environment
from aaco_pipeline.resources.host import facts as host
from aaco_pipeline.resources.host.facts import MEASURED_PACKAGES, host_facts
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
