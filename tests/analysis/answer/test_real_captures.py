"""The answer to real captures beside an expert's, who read their raw files by hand (`answers.yaml` beside them).

An entry's class, false statements, busy time, shares by kind of work and rates are compared; where rank, device
or clock were not recorded, the entry allows several classes.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import polars as pl
import pytest
import yaml

from aaco_pipeline.analysis.answer.kinds import kind_of
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.session.answer import CLASSES, MOST_WORDS, paragraph
from aaco_pipeline.report.session.document import session_summary
from aaco_pipeline.report.session.sentences import Document
from tests.places import SHARED
from tests.sessions import replayed, taken_in

_ANSWERS: Final = SHARED / "answers" / "answers.yaml"
_FAMILY: Final = 0.04
_RATE: Final = 0.03
#: Kinds of work by the names that the expert gave them.
_KINDS: Final = {"rmsnorm": "normalization", "elementwise": "elementwise_and_copies"}


def entries() -> list[dict[str, Any]]:
    return list(yaml.safe_load(_ANSWERS.read_text())) if _ANSWERS.is_file() else []


def named(*fields: str) -> list[Any]:
    found = [one for one in entries() if not fields or any(one.get(field) for field in fields)]
    return [pytest.param(one, id=one["capture"]) for one in found] or [
        pytest.param({}, marks=pytest.mark.skip(f"{_ANSWERS} is not here"))
    ]


def of_all_kernels(lake: TraceLake, session: str) -> dict[str, float]:
    """Shares of the whole capture's kernel time by kind of work."""
    found: dict[str, float] = {}
    timed = lake.read("kernel_stats", session).join(lake.read("kernels", session), on="kernel_id")
    for family, share in timed.select(pl.col("family").cast(pl.String), "share_ratio").iter_rows():
        found[kind_of(family)] = found.get(kind_of(family), 0.0) + share
    return found


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Document]:
    """The short document of a capture that is taken in and judged once, by the stages that the answer needs."""
    lake = TraceLake(tmp_path_factory.mktemp("answers") / "lake")

    @cache
    def of(capture: str) -> Document:
        session = taken_in(lake, SHARED / capture)
        replayed(lake, session, "classification")
        shapes = lake.read("operator_shapes", session).to_dicts()
        return {**session_summary(lake, session), "shapes": shapes, "of_all_kernels": of_all_kernels(lake, session)}

    return of


@pytest.mark.parametrize("entry", named("class"))
def test_the_class_is_one_that_the_expert_allows(entry: Mapping[str, Any], answered: Callable[..., Document]) -> None:
    document = answered(entry["capture"])
    assert document["answer"]["class"] in entry["class"]
    if entry.get("resource"):
        assert document["answer"]["resource"] in entry["resource"]


@pytest.mark.parametrize("entry", named("never"))
def test_no_answer_has_a_statement_that_is_false_for_its_capture(
    entry: Mapping[str, Any], answered: Callable[..., Document]
) -> None:
    document = answered(entry["capture"])
    text = str(paragraph(document)).casefold()
    for word in entry["never"]:
        if word in CLASSES:
            assert word not in (document["answer"]["class"], document["answer"]["second_class"])
        else:
            assert word.casefold() not in text


@pytest.mark.parametrize("entry", named())
def test_the_answer_has_at_most_three_sentences_and_seventy_words(
    entry: Mapping[str, Any], answered: Callable[..., Document]
) -> None:
    text = str(paragraph(answered(entry["capture"])))
    assert len(re.split(r"(?<=[.])\s+(?=[A-Z])", text)) <= 3
    assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("entry", named())
def test_shares_add_up_and_what_is_saved_is_within_the_window(
    entry: Mapping[str, Any], answered: Callable[..., Document]
) -> None:
    document = answered(entry["capture"])
    row, answer = document["answers"][0], document["answer"]
    whole = [one for one in document["time_shares"] if one["reason"] is None]
    assert sum(one["time_ns"] for one in whole) == (row["window_ns"] if whole else 0)
    parts = [one for one in document["time_shares"] if one["reason"] is not None]
    assert all(one["share_ratio"] <= answer["shares"][one["share"]] for one in parts)
    assert 0 <= (row["saves_at_most_ns"] or 0) <= (row["window_ns"] or 0)


@pytest.mark.parametrize("entry", named("busy"))
def test_busy_time_is_the_experts(entry: Mapping[str, Any], answered: Callable[..., Document]) -> None:
    """The device that the expert judged, from its first to its last activity."""
    found = [row["active_ratio"] for row in answered(entry["capture"])["timeline"]]
    assert min(abs(ratio - entry["busy"]) for ratio in found) < 0.01


@pytest.mark.parametrize("entry", named("families", "families_without_communication"))
def test_shares_by_kind_of_work_are_the_experts(entry: Mapping[str, Any], answered: Callable[..., Document]) -> None:
    document = answered(entry["capture"])
    # The expert's shares are of the whole capture. What lies beside the judged window is in no kind of work.
    kinds = document["of_all_kernels"] if document["answer"]["window"]["beside_ns"] else document["answer"]["kinds"]
    expected = entry.get("families") or entry["families_without_communication"]
    for name, share in expected.items():
        assert kinds.get(_KINDS.get(name, name), 0.0) == pytest.approx(share, abs=_FAMILY), name


@pytest.mark.parametrize("entry", named("rates"))
def test_rates_of_the_heaviest_shapes_are_the_experts(
    entry: Mapping[str, Any], answered: Callable[..., Document]
) -> None:
    shapes = answered(entry["capture"])["shapes"]
    for rate in entry["rates"]:
        # The kernels below an operator of AITER are counted to the product that it calls.
        operator = "aten::mm" if "gemm_a16w16" in rate["op"] else rate["op"]
        own = [one for one in shapes if one["operator"] == operator and one["achieved_flops_per_s"] is not None]
        own = [one for one in own if one["call_count"] == rate["calls"]] if "calls" in rate else own
        found = [one["achieved_flops_per_s"] / 1e12 for one in own]
        assert any(abs(one / rate["tflops"] - 1) <= _RATE for one in found), (rate["op"], found)


def test_collectives_that_nothing_hides_take_what_the_expert_found(answered: Callable[..., Document]) -> None:
    for entry in (one for one in entries() if "exposed_communication_ms" in one):
        document = answered(entry["capture"])
        (found,) = [one for one in document["time_shares"] if (one["share"], one["reason"]) == ("communication", None)]
        assert found["time_ns"] / 1e6 == pytest.approx(entry["exposed_communication_ms"], abs=0.01)
