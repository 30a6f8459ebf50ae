"""Samples of devices in a folder: of the one trace beside them, of none where there are several."""

from pathlib import Path

from aaco_pipeline.capture.discovery import discover_runs, the_run
from tests.formats.examples import EXAMPLES
from tests.formats.kineto.test_ranks import written


def kineto(folder: Path, name: str) -> Path:
    path = EXAMPLES["kineto"](folder)
    return path.rename(folder / name)


def test_a_series_beside_one_trace_is_of_its_run(tmp_path: Path) -> None:
    kineto(tmp_path, "trace.json")
    EXAMPLES["prometheus"](tmp_path)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(part.format for part in run.parts) == ["gpu-series", "kineto"]
    assert the_run(tmp_path, "").folder == tmp_path


def test_a_series_beside_two_traces_is_a_run_of_its_own(tmp_path: Path) -> None:
    kineto(tmp_path, "a.json")
    kineto(tmp_path, "b.json")
    EXAMPLES["prometheus"](tmp_path)
    assert [len(run.parts) for run in discover_runs(tmp_path).runs] == [1, 1, 1]


def test_a_series_beside_a_job_is_of_the_job(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path / f"rank{rank}.json", rank)
    EXAMPLES["prometheus"](tmp_path)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(part.format for part in run.parts) == ["gpu-series", "kineto", "kineto"]


def test_scrapes_of_a_folder_are_one_part(tmp_path: Path) -> None:
    EXAMPLES["rocpd"](tmp_path)
    scrape = EXAMPLES["prometheus"](tmp_path).read_text()
    for number in range(3):
        (tmp_path / f"scrape_{number}.prom").write_text(scrape)
    (run,) = discover_runs(tmp_path).runs
    assert sorted(len(part.files) for part in run.parts) == [1, 4]
