"""`aaco info` on each backend: usable or not, what is missing, and the fix."""

from pathlib import Path

import onnxruntime
import pytest

from aaco_pipeline.resources.configuration import BUILT_IN_BACKENDS, BackendEntry
from aaco_pipeline.resources.host import backends
from aaco_pipeline.resources.host.backends import BackendState, backend_states, tool_states
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing

MIGRAPHX = {"migraphx": BackendEntry(provider="MIGraphXExecutionProvider")}


def listing(patch: pytest.MonkeyPatch, *providers: str) -> None:
    patch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, "CPUExecutionProvider"])


def on_host(patch: pytest.MonkeyPatch, *paths: str) -> None:
    """Only these device files exist, and no ROCm libraries."""
    patch.setattr(Path, "exists", lambda self: str(self) in paths)
    patch.setattr(backends, "_ROCM_LIBRARIES", ())


def test_the_processor_is_always_usable() -> None:
    (state,) = backend_states({"cpu": BackendEntry(provider="CPUExecutionProvider")})
    assert state == BackendState("cpu", "CPUExecutionProvider", True, "", "")


def test_every_backend_has_one_state_in_the_order_of_names() -> None:
    assert [state.backend for state in backend_states(BUILT_IN_BACKENDS)] == ["cpu", "cuda", "migraphx", "rocm"]


def test_an_unusable_backend_always_says_what_it_lacks_and_what_mends_it() -> None:
    for state in backend_states(BUILT_IN_BACKENDS):
        assert (state.lacks == "") == (state.fix == "") == state.usable


def test_everything_that_an_amd_backend_lacks_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch)
    on_host(monkeypatch)
    (state,) = backend_states(MIGRAPHX)
    assert not state.usable
    assert "no MIGraphXExecutionProvider" in state.lacks
    assert "/dev/kfd is absent" in state.lacks
    assert "libamdhip64" in state.lacks
    assert "pip install onnxruntime-migraphx" in state.fix
    assert "amdgpu driver" in state.fix
    assert "install ROCm" in state.fix


def test_a_provider_that_is_listed_without_its_driver_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, "MIGraphXExecutionProvider", "CUDAExecutionProvider")
    on_host(monkeypatch)
    cuda = {"cuda": BackendEntry(provider="CUDAExecutionProvider")}
    for state in backend_states({**MIGRAPHX, **cuda}):
        assert not state.usable
        assert "the installed onnxruntime" not in state.lacks


def test_an_amd_backend_with_driver_and_libraries_is_usable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libamdhip64.so.7").touch()
    listing(monkeypatch, "MIGraphXExecutionProvider")
    on_host(monkeypatch, "/dev/kfd")
    monkeypatch.setattr(backends, "_ROCM_LIBRARIES", (tmp_path / "nowhere", tmp_path))
    (state,) = backend_states(MIGRAPHX)
    assert state.usable


def test_a_provider_that_nobody_knows_comes_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch)
    (state,) = backend_states({"mine": BackendEntry(provider="MineExecutionProvider")})
    assert state.fix == "install an onnxruntime built with MineExecutionProvider"


def test_tools_are_found_on_the_path_or_come_with_the_way_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "rocminfo"
    tool.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(backends, "find_toolchain", lambda: Missing("none"))
    found = {state.tool: state for state in tool_states()}
    assert found["rocminfo"].path == str(tool)
    assert {name for name, state in found.items() if state.path is None} == {
        "rocprofv3",
        "amd-smi",
        "bpftrace",
        "clang for AMD GPUs",
    }
    assert all(state.purpose and state.fix for state in found.values())
