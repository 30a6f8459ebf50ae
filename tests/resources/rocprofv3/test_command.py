"""The command of every release of rocprofv3, its files, and the tool and GPU of this host."""

from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.rocprofv3 import command as rocprofv3
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    RELEASES,
    ProfilerPass,
    counter_input,
    escaped,
    expected_outputs,
    find_tool,
    installed_release,
    known_release,
    rocprofv3_command,
    stated_release,
)
from tests.resources.rocprofv3.made_up import OLD, listed_gpus

PROGRAM: Final = ("python", "train.py", "--size", "a b")
COUNTERS: Final = ProfilerPass("counters_1", "counters", ("SQ_WAVES", "TCC_HIT_sum"))
THREAD_TRACE: Final = ProfilerPass("thread_trace", "thread_trace", kernel="gemm<float>(int*)", execution=5)
TRACES: Final = ("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace")
NEW: Final = ("7.0", "7.1", "7.2", "7.13")


def placed(form: str) -> tuple[str, ...]:
    return ("-d", "out/pass_1", "-o", "out_%pid%", "--output-format", form, "--", *PROGRAM)


def test_the_releases_under_test_are_all_that_are_known() -> None:
    assert tuple(release.name for release in RELEASES) == (*OLD, *NEW)


@pytest.mark.parametrize("name", [*OLD, *NEW])
def test_the_base_pass_traces_and_counts_nothing(name: str) -> None:
    command = rocprofv3_command(known_release(name), BASE_PASS, Path("out/pass_1"), PROGRAM)
    assert command == ("rocprofv3", *TRACES, *placed("csv" if name in OLD else "rocpd"))


@pytest.mark.parametrize("name", [*OLD[1:], *NEW])
def test_a_counter_pass_counts_and_traces_nothing(name: str) -> None:
    release = known_release(name)
    command = rocprofv3_command(release, COUNTERS, "out/pass_1", PROGRAM)
    assert command == ("rocprofv3", "--pmc", *COUNTERS.counters, *placed("csv" if name in OLD else "rocpd"))
    assert counter_input(release, COUNTERS) is None


def test_the_oldest_release_reads_its_counters_from_a_file() -> None:
    release = known_release("6.2")
    command = rocprofv3_command(release, COUNTERS, "out/pass_1", PROGRAM)
    assert command == ("rocprofv3", "-i", "out/pass_1/counters.txt", *placed("csv"))
    assert counter_input(release, COUNTERS) == ("counters.txt", "pmc: SQ_WAVES TCC_HIT_sum\n")
    assert counter_input(release, BASE_PASS) is None


@pytest.mark.parametrize("name", NEW)
def test_a_thread_trace_is_of_one_execution_of_one_kernel(name: str) -> None:
    command = rocprofv3_command(known_release(name), THREAD_TRACE, "out/pass_1", PROGRAM)
    limits = ("--kernel-include-regex", r"gemm<float>\(int\*\)", "--kernel-iteration-range", "[5]")
    assert command == ("rocprofv3", "--att", *limits, *placed("rocpd"))


@pytest.mark.parametrize("name", OLD)
def test_an_older_release_has_no_thread_trace(name: str) -> None:
    with pytest.raises(UnavailableError, match=rf"rocprofv3 of ROCm {name} has none; install ROCm 7\.0 or newer"):
        rocprofv3_command(known_release(name), THREAD_TRACE, "out", PROGRAM)


def test_a_kernels_name_is_escaped_so_that_it_is_found_literally() -> None:
    import re

    name = "void f<(A)1, B[2]>(float const*, int) [clone .kd] a^b$c|d?e+f{g}\\"
    assert re.fullmatch(escaped(name), name)
    assert escaped("plain_name, 1") == "plain_name, 1"


@pytest.mark.parametrize(
    ("version", "name"),
    [("6.2", "6.2"), ("6.2.4", "6.2"), ("7.1.1", "7.1"), ("7.5", "7.2"), ("7.13", "7.13"), ("8.0", "7.13")],
)
def test_a_release_is_treated_as_the_newest_known_one_before_it(version: str, name: str) -> None:
    assert known_release(version).name == name


@pytest.mark.parametrize("version", ["6.1", "5.7.1"])
def test_a_release_before_all_known_ones_is_not_supported(version: str) -> None:
    with pytest.raises(UnavailableError, match=r"not supported; install ROCm 6\.2 or newer"):
        known_release(version)


@pytest.mark.parametrize("version", ["", "7", "seven", "7.1-rc", "7..1", "\n7.1", "9" * 5000 + ".1"])
def test_what_is_no_release_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="is no ROCm release; expected one such as"):
        known_release(version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("             version: 1.1.0\n        rocm_version: 7.2.0\n", "7.2.0"),
        ("             version: 1.1.0\n    compiler_version: 20.0.0\n", "7.1"),
        ("version: 0.4.0\n", "6.2"),
        ("version: 1.3.0\n        rocm_version: \n", "7.13"),
        ("version: 99.0.0\n", None),
        ("usage: rocprofv3 [options]\n", None),
        ("", None),
    ],
)
def test_the_release_is_read_from_what_the_tool_states(text: str, version: str | None) -> None:
    assert stated_release(text) == version


@pytest.mark.parametrize(
    ("name", "one", "pattern"),
    [
        ("7.1", BASE_PASS, "out_12_results.db"),
        ("7.1", COUNTERS, "out_12_results.db"),
        ("6.4", BASE_PASS, "out_12_kernel_trace.csv"),
        ("6.2", COUNTERS, "out_12_counter_collection.csv"),
        ("7.0", THREAD_TRACE, "ui_output_agent_*_dispatch_*/filenames.json"),
    ],
)
def test_the_files_of_a_pass_are_known_beforehand(name: str, one: ProfilerPass, pattern: str) -> None:
    assert expected_outputs(known_release(name), one, 12) == (pattern,)


@pytest.mark.parametrize(
    ("targets", "device", "name"),
    [
        ([0, 90402], 0, "gfx942"),
        ([0, 0, 90010, 90010], 7, "gfx90a"),
        ([110501], 0, "gfx1151"),
        ([0, 90402, 120001], 1, "gfx1201"),
        ([0, 90402, 120001], 2, None),
        ([0], 0, None),
        ([], 0, None),
    ],
)
def test_the_architecture_is_the_drivers(
    targets: list[int], device: int, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_gpus(targets, tmp_path / "nodes", monkeypatch)
    assert rocprofv3.gpu_architecture(device) == name


def test_a_missing_tool_is_reported_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocprofv3, "_USUAL_ROOT", str(tmp_path))
    with pytest.raises(UnavailableError, match="rocprofiler-sdk and rocprofiler-sdk-rocpd, and put rocprofv3 in PATH"):
        find_tool({"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})


def test_the_tool_is_found_in_the_path_and_else_in_the_installation(tmp_path: Path) -> None:
    for place in ("rocm/bin", "first"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "rocprofv3").write_text("#!/bin/sh\n")
        (tmp_path / place / "rocprofv3").chmod(0o755)
        found = find_tool({"PATH": str(tmp_path / "first"), "ROCM_PATH": str(tmp_path / "rocm")})
        assert found == tmp_path / place / "rocprofv3"


def test_a_tool_that_states_no_release_is_dated_by_its_installation(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    tool.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"`--version` names no release \(no such option\); install"):
        installed_release(tool)
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("6.2.4-120\n")
    assert installed_release(tool) == ("6.2.4", known_release("6.2"))
    tool.chmod(0o644)
    assert installed_release(tool)[0] == "6.2.4"
