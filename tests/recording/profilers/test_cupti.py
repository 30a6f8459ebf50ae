"""Finding a CUPTI to build against, building once, and what is said where something is missing."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.recording.profilers import cupti
from aaco_pipeline.recording.profilers.cupti import Cupti

HEADERS: Final = ("cupti_activity.h", "cupti_callbacks.h", "cupti_result.h")


def headers(folder: Path, version: int, *, cuda: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cupti_version.h").write_text(f"/* made for a test */\n#define CUPTI_API_VERSION {version}\n")
    for name in (*HEADERS, *(("cuda.h", "builtin_types.h") if cuda else ())):
        (folder / name).write_text("")
    return folder


def library(folder: Path, major: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"libcupti.so.{major}"
    path.write_bytes(b"")
    return path


def tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def found(environment: dict[str, str], packages: Sequence[Path]) -> list[Cupti]:
    """The candidates but for those that this host itself has installed."""
    named = [Path(environment[name]) for name in ("CUDA_HOME",) if name in environment]
    roots = [*packages, *named]
    return [
        one
        for one in cupti.candidates(environment, packages)
        if any(one.library.is_relative_to(root) for root in roots)
    ]


def test_packages_of_the_program_come_before_the_toolkit(tmp_path: Path) -> None:
    site, toolkit = tmp_path / "site", tmp_path / "cuda"
    headers(site / "nvidia" / "cu13" / "include", 130001)
    own = library(site / "nvidia" / "cu13" / "lib", 13)
    headers(toolkit / "targets" / "x86_64-linux" / "include", 130000)
    other = library(toolkit / "targets" / "x86_64-linux" / "lib", 13)
    assert [one.library for one in found({"CUDA_HOME": str(toolkit)}, [site])] == [own, other]


def test_a_wheel_of_cuda_12_has_its_cuda_headers_in_another_wheel(tmp_path: Path) -> None:
    own = headers(tmp_path / "nvidia" / "cuda_cupti" / "include", 26, cuda=False)
    library(tmp_path / "nvidia" / "cuda_cupti" / "lib", 12)
    assert found({}, [tmp_path]) == []
    cuda = tmp_path / "nvidia" / "cuda_runtime" / "include"
    cuda.mkdir(parents=True)
    for name in ("cuda.h", "builtin_types.h"):
        (cuda / name).write_text("")
    (one,) = found({}, [tmp_path])
    assert (one.includes, one.major) == ((own, cuda), 12)


def test_tritons_headers_serve_with_the_library_of_their_version(tmp_path: Path) -> None:
    headers(tmp_path / "triton" / "backends" / "nvidia" / "include", 28)
    library(tmp_path / "nvidia" / "cu13" / "lib", 13)
    assert found({}, [tmp_path]) == []
    own = library(tmp_path / "triton" / "backends" / "nvidia" / "lib" / "cupti", 12)
    assert [one.library for one in found({}, [tmp_path])] == [own]


@pytest.mark.parametrize("version", [17, 0])
def test_headers_of_before_cuda_12_are_not_taken(tmp_path: Path, version: int) -> None:
    headers(tmp_path / "include", version)
    library(tmp_path / "lib64", 11)
    assert found({"CUDA_HOME": str(tmp_path)}, []) == []


def test_folders_of_the_programs_own_python_come_first(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "python3", "echo /its/own/packages")
    script = tool(tmp_path / "bin", "serve", "")
    script.write_text(f"#!{tmp_path}/bin/python3\nimport x\n")
    environment = {"PATH": str(tmp_path / "bin")}
    for command in (["python3", "train.py"], ["serve"]):
        assert cupti.python_folders(command, environment)[0] == Path("/its/own/packages")
    assert Path("/its/own/packages") not in cupti.python_folders(["./a.out"], environment)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this host")
def test_the_compilers_first_error_is_reported_with_the_headers_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    own = headers(tmp_path / "include", 130001)
    one = Cupti((own,), library(tmp_path / "lib", 13), 13, 130001)
    with pytest.raises(UnavailableError, match=r"cannot build .*include: .*error.*; set CUDA_HOME"):
        cupti.compiled("g++", one)
    assert list((tmp_path / "cache" / "cupti").iterdir()) == []


def test_a_library_is_built_once_for_the_same_headers_source_and_compiler(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = tool(
        tmp_path,
        "compiler",
        f'if [ "$1" = --version ]; then echo one; exit; fi\necho built >> {log}\n'
        'while [ "$1" != -o ]; do shift; done\ncat > "$2"',
    )
    one = Cupti((headers(tmp_path / "include", 130001),), tmp_path / "libcupti.so.13", 13, 130001)
    first = cupti.compiled(str(compiler), one)
    assert b"InitializeInjection" in first.read_bytes(), "the compiler was given another source"
    assert cupti.compiled(str(compiler), one) == first
    assert log.read_text().count("built") == 1
    headers(tmp_path / "include", 130002)
    assert cupti.compiled(str(compiler), one) != first
    assert log.read_text().count("built") == 2


def test_without_a_driver_the_reason_is_one_line_that_names_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "_DRIVER", "libno-such-driver.so.1")
    with pytest.raises(UnavailableError, match=r"libno-such-driver\.so\.1") as caught:
        cupti.prepared()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("driver", "major", "word"),
    [(12, 13, "newer than the driver's CUDA 12"), (13, None, "no CUPTI of CUDA 12 or later")],
)
def test_what_cannot_work_with_the_driver_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: int, major: int | None, word: str
) -> None:
    one = Cupti((tmp_path,), tmp_path / "libcupti.so", major or 0, 0)
    monkeypatch.setattr(cupti, "_driver_major", lambda: driver)
    monkeypatch.setattr(cupti, "candidates", lambda *_: [one] if major else [])
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    with pytest.raises(UnavailableError, match=word):
        cupti.prepared()


def test_a_driver_newer_than_the_headers_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Cupti((tmp_path,), tmp_path / "libcupti.so.12", 12, 26)
    monkeypatch.setattr(cupti, "_driver_major", lambda: 13)
    monkeypatch.setattr(cupti, "candidates", lambda *_: [one])
    monkeypatch.setattr(cupti, "compiled", lambda *_: tmp_path / "injection.so")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    prepared = cupti.prepared()
    environment = prepared.environment(tmp_path / "streams")
    assert (
        environment["CUDA_INJECTION64_PATH"] == environment["NVTX_INJECTION64_PATH"] == str(tmp_path / "injection.so")
    )
    assert environment["AACO_CUPTI_LIBRARY"] == str(one.library)
    assert environment["AACO_CUPTI_FOLDER"] == os.fspath(tmp_path / "streams")
