"""A night measures the file's entries, or every registered model without them; wrong entries are refused.

What is due at any time: tonight's benchmarks once, second slots when they have come, and what was killed tonight.
"""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UsageError
from aaco_pipeline.pipeline.nightly import benchmarks as module
from aaco_pipeline.pipeline.nightly.alerts import Confirmation
from aaco_pipeline.pipeline.nightly.benchmarks import Benchmark, chosen, due, load_benchmarks, night_of
from aaco_pipeline.resources.host.backends import BackendState
from aaco_pipeline.resources.project import DEFAULTS
from aaco_pipeline.statistics.verdicts.service_level import Limit


def written(folder: Path, text: str) -> Path:
    (folder / "nightly.yaml").write_text(text)
    return folder


def test_an_entry_says_what_run_takes_and_how_it_is_judged(tmp_path: Path) -> None:
    (one,) = load_benchmarks(
        written(
            tmp_path,
            """benchmarks:
  - model: resnet50
    backend: migraphx
    options: {batch: 8, threads: 2, timeout: 60.0, shape: {data: [1, 3, 8, 8]}, provider-option: {a: "1"}}
    sessions: 20
    traced: 0
    threshold_ratio: 0.02
    baseline: pinned
    limits:
      - {metric: p99, limit_ms: 20}
      - {metric: p50, limit_ms: 1.5, budget_ratio: 0.25}
""",
        )
    )
    request = MeasurementRequest(
        model="resnet50",
        backend="migraphx",
        batch_size=8,
        threads=2,
        timeout_seconds=60.0,
        input_shapes={"data": [1, 3, 8, 8]},
        provider_options={"a": "1"},
    )
    limits = (Limit("latency_p99", 20_000_000, 0.01), Limit("latency_p50", 1_500_000, 0.25))
    assert one == Benchmark(request, 20, 0, 0.02, limits, "pinned")
    assert (one.key, one.name) == (("resnet50", "migraphx"), "resnet50:migraphx")


def test_the_path_of_a_model_starts_at_the_file_s_folder(tmp_path: Path) -> None:
    (one,) = load_benchmarks(written(tmp_path, "benchmarks: [{model: ../m.onnx}]"))
    assert (one.request.model, one.workload) == (str(tmp_path.parent / "m.onnx"), "m")


@pytest.mark.parametrize("text", [None, "benchmarks: []", (DEFAULTS / "configs" / "nightly.yaml").read_text()])
def test_without_entries_it_is_every_registered_model_on_every_usable_backend(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models.yaml").write_text("models: {one: {path: one.onnx}, two: {path: two.onnx}}")
    states = [BackendState(name, "", usable, "", "") for name, usable in (("cpu", True), ("cuda", False), ("x", True))]
    monkeypatch.setattr(module, "backend_states", lambda backends: states)
    if text is not None:
        written(tmp_path, text)
    assert [one.name for one in load_benchmarks(tmp_path)] == ["one:cpu", "one:x", "two:cpu", "two:x"]


def test_what_the_package_s_file_shows_as_a_comment_is_valid(tmp_path: Path) -> None:
    shown = (DEFAULTS / "configs" / "nightly.yaml").read_text().split("# benchmarks:\n")[1].split("\nbenchmarks: []")[0]
    lines = [line.removeprefix("# ") for line in shown.splitlines()]
    (one,) = load_benchmarks(written(tmp_path, "\n".join(["benchmarks:", *lines])))
    assert (one.name, one.request.batch_size, one.baseline) == ("resnet50:migraphx", 8, "rolling")
    assert one.limits == (Limit("latency_p99", 20_000_000, 0.01),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("benchmarks: [{modle: m}]", "benchmarks[0].modle: found an unknown key; expected one of model"),
        ("benchmarks: [{backend: cpu}]", "benchmarks[0].model"),
        ("benchmarks: [{model: m, sessions: 2}]", "expected a whole number from 3 to 200"),
        ("benchmarks: [{model: m, baseline: last}]", "expected pinned or rolling"),
        ("benchmarks: [{model: m, options: {bacth: 8}}]", "benchmarks[0].options: no option 'bacth'; expected one of"),
        ("benchmarks: [{model: m, options: {batch: 0}}]", "benchmarks[0]: batch_size is 0; expected at least 1"),
        ("benchmarks: [{model: m, limits: [{metric: p95, limit_ms: 1}]}]", "expected one of p50, p90, p99"),
        ("benchmarks: [{model: m, limits: [{metric: p99}]}]", "expected a time in ms, more than 0"),
        ("benchmarks: [{model: m, limits: [{metric: p99, limit_ms: 1}, {metric: p99, limit_ms: 2}]}]", "two limits"),
        ("benchmarks: [{model: m}, {model: m}]", "m:cpu is there twice"),
        ("benchmark: []", "found an unknown key"),
        ("benchmarks: []", "registers no model; name what each night is to measure"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load_benchmarks(written(tmp_path, text))
    told = str(raised.value)
    assert told.startswith(f"{tmp_path / 'nightly.yaml'}: ")
    assert words in told
    assert "\n" not in told


def test_some_are_chosen_by_model_or_by_model_and_backend() -> None:
    one, two, three = (
        Benchmark(MeasurementRequest(model=model, backend=backend))
        for model, backend in (("a", "cpu"), ("a", "cuda"), ("b", "cpu"))
    )
    known = [one, two, three]
    assert chosen(known, ()) == known
    assert chosen(known, ("a",)) == [one, two]
    assert chosen(known, ("a:cuda", "b")) == [two, three]
    with pytest.raises(UsageError, match=r"no benchmark 'c'; there is a:cpu, a:cuda, b:cpu"):
        chosen(known, ("c",))


NOW = datetime(2026, 3, 12, 2, 0, tzinfo=UTC)
TONIGHT = date(2026, 3, 12)
BENCHMARKS = [Benchmark(MeasurementRequest(model=model)) for model in ("resnet50", "squeezenet")]
SCHEMA = {
    **dict.fromkeys(("campaign_id", "workload", "backend"), pl.String()),
    **{"night": pl.Date(), "confirms": pl.String(), "planned_at": pl.Datetime("us", "UTC"), "is_judged": pl.Boolean()},
}


def campaigns(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"workload": "resnet50", "backend": "cpu", "night": TONIGHT, "planned_at": NOW, "is_judged": True}
    named = [{"campaign_id": f"nightly-{place}", **usual, **row} for place, row in enumerate(rows)]
    return pl.DataFrame(named, schema=SCHEMA)


def finding(campaign: str = "nightly-0", at: datetime = NOW, workload: str = "resnet50") -> Confirmation:
    return Confirmation(campaign, workload, "cpu", TONIGHT, at, 20)


def test_a_night_begins_with_every_benchmark_and_each_only_once() -> None:
    assert due(BENCHMARKS, campaigns(), [], NOW).begin == BENCHMARKS
    assert due(BENCHMARKS, campaigns({}), [], NOW).begin == BENCHMARKS[1:]
    both = campaigns({}, {"workload": "squeezenet", "is_judged": False})
    found = due(BENCHMARKS, both, [], NOW)
    assert (found.begin, found.go_on) == ([], ["nightly-1"])
    assert not found.is_nothing
    assert due(BENCHMARKS, campaigns({}, {"workload": "squeezenet"}), [], NOW).is_nothing


def test_another_backend_or_another_night_is_not_tonight_s() -> None:
    others = campaigns({"backend": "cuda"}, {"night": date(2026, 3, 11)}, {"confirms": "nightly-9"})
    assert due(BENCHMARKS, others, [], NOW).begin == BENCHMARKS


def test_a_killed_campaign_goes_on_tonight_and_not_in_another_night_unless_it_confirms() -> None:
    half = {"is_judged": False}
    rows = campaigns(half, {**half, "night": date(2026, 3, 11)}, {**half, "night": date(2026, 3, 11), "confirms": "x"})
    assert due([], rows, [], NOW).go_on == ["nightly-0", "nightly-2"]


def test_a_finding_waits_for_its_time_and_for_no_second_confirmation() -> None:
    later = NOW + timedelta(minutes=30)
    found = due([], campaigns({}), [finding(at=later)], NOW)
    assert (found.confirm, found.later, found.is_nothing) == ([], [finding(at=later)], True)
    assert due([], campaigns({}), [finding(at=later)], later).confirm == [finding(at=later)]
    assert due([], campaigns({}, {"confirms": "nightly-0"}), [finding()], NOW).confirm == []


def test_only_some_benchmarks_leave_the_others_alone() -> None:
    rows = campaigns({"is_judged": False}, {"workload": "squeezenet", "is_judged": False})
    found = due([], rows, [finding(), finding("nightly-1", workload="squeezenet")], NOW, {("squeezenet", "cpu")})
    assert (found.go_on, [one.campaign for one in found.confirm]) == (["nightly-1"], ["nightly-1"])


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.integers(-12, 14))
def test_a_night_is_the_day_in_utc_wherever_it_is_asked(moment: datetime, hours: int) -> None:
    from datetime import timezone

    there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=hours)))
    assert night_of(there) == moment.date()
