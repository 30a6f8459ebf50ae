"""A setting is declared once: the command, the launchpad, the measured process and the lake all have it from there.

`--wait`: a command that measures waits so long for the measurement slot, and then says in one line who holds it.
"""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
import pytest

from aaco_pipeline.automation.jobs import StartSession
from aaco_pipeline.capture.request import MeasurementRequest, MeasurementSettings
from aaco_pipeline.cli.options import request_of, request_options
from aaco_pipeline.cli.run import run, sweep
from aaco_pipeline.resources.configuration import BUILT_IN_BACKENDS
from aaco_pipeline.resources.measure.inference import _job
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.measure.models import ModelChoice
from aaco_pipeline.resources.project import Project
from tests.cli.commands import COMMANDS

SETTINGS = list(MeasurementSettings.model_fields)


def parsed(*arguments: str) -> MeasurementRequest:
    """The request that `aaco run` with these arguments means."""
    options: dict[str, Any] = {}
    command = click.Command("any", params=list(request_options()), callback=lambda **given: options.update(given))
    command.main(["--model", "m", *arguments], standalone_mode=False)
    return request_of(options)


def test_every_setting_is_an_option_a_launchpad_field_a_key_of_the_job_and_of_the_text(tmp_path: Path) -> None:
    request = MeasurementRequest(model="m")
    model = ModelChoice("m", tmp_path / "m.onnx", "path", "none")
    job = _job(request, model, BUILT_IN_BACKENDS["cpu"])
    with click.Context(run) as context:
        assert [option.name for option in run.get_params(context)][: len(SETTINGS)] == SETTINGS
    with click.Context(sweep) as context:
        assert set(SETTINGS) <= {option.name for option in sweep.get_params(context)}
    assert list(StartSession.to_fields_dict()) == SETTINGS
    assert set(SETTINGS) <= set(job)
    assert set(SETTINGS) <= set(json.loads(request.to_json()))


@pytest.mark.parametrize("option", request_options(), ids=lambda option: option.name)
def test_the_command_and_the_launchpad_say_the_same_of_a_setting(option: click.Option) -> None:
    assert option.name is not None
    assert option.help
    assert option.help.endswith(".")
    assert option.help == StartSession.to_fields_dict()[option.name].description


def test_the_commands_defaults_are_the_requests_defaults() -> None:
    assert parsed() == MeasurementRequest(model="m")


def test_every_option_reaches_the_request() -> None:
    given = parsed(
        *("--backend", "migraphx", "--batch", "2", "--iterations", "3", "--warmup", "4", "--threads", "5"),
        *("--precision", "fp16", "--optimization", "basic", "--seed", "6", "--timeout", "7.5", "--allow-fallback"),
        *("--shape", "x=1x2", "--shape", "y=", "--prompt", "8", "--tokens", "9", "--kernel-plane", "--profile"),
        *("--counters", "basic", "--thread-trace", "auto"),
    )
    assert given == MeasurementRequest(
        model="m",
        backend="migraphx",
        batch_size=2,
        iterations=3,
        warmup=4,
        threads=5,
        precision="fp16",
        optimization="basic",
        seed=6,
        timeout_seconds=7.5,
        allow_fallback=True,
        input_shapes={"x": [1, 2], "y": []},
        prompt_tokens=8,
        output_tokens=9,
        kernel_plane=True,
        profile=True,
        counters="basic",
        thread_trace="auto",
    )
    assert given.model_fields_set >= set(SETTINGS)


def test_a_models_file_is_meant_from_where_one_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert request_of({"model": "net.onnx", "input_shapes": ()}).model == str(tmp_path / "net.onnx")


MEASURING = ("run", "sweep", "compare", "nightly", "bisect", "calibrate", "optimize", "record")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--model", "squeezenet"),
        ("compare", "--baseline", "squeezenet", "--candidate", "squeezenet", "--sessions", "5"),
        ("calibrate", "--threads", "1"),
        ("record", "--", "true"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_gives_up_in_one_line_that_names_the_holder_and_leaves_nothing(
    refused: Callable[..., str],
    copied: Project,
    untouched: Callable[[Project], AbstractContextManager[None]],
    command: tuple[str, ...],
) -> None:
    with untouched(copied), measurement_slot():
        line = refused(4, command[0], "--wait", "0", *command[1:], project=copied)
        assert f"the measurement slot was not free within 0 s: process {os.getpid()} of " in line
        assert "is measuring since" in line


def test_every_command_that_takes_the_slot_has_the_option_and_no_other_has() -> None:
    has = {name for name, one in COMMANDS.items() if any(option.name == "wait" for option in one.params)}
    assert has == {*MEASURING}
