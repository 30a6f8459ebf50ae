"""From the endpoint to a candidate and back from the files: what a search is given when a model is configured."""

import json
from pathlib import Path

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable
from aaco_pipeline.optimization.proposers.language_model import LanguageModelProposer
from aaco_pipeline.resources.language_model.client import Client
from aaco_pipeline.resources.language_model.recorded import Recorded, Replayed
from aaco_pipeline.resources.language_model.settings import LanguageModel
from tests.optimization.proposers.kernels import ROW_DOT, task
from tests.resources.language_model.endpoint import answer, completion, serving

UNROLL = json.dumps({"change": {"kind": "unroll", "loop": "loop1", "factor": 4}})
KEY = "sk-very-secret"


def test_what_was_answered_is_proposed_again_from_the_files(tmp_path: Path) -> None:
    broken = answer(b"", "500 Internal Server Error", Retry_After="0")
    with serving(broken, completion("I think so."), completion(f"```json\n{UNROLL}\n```")) as endpoint:
        settings = LanguageModel(base_url=endpoint.url, model="tiny", key_variable="THE_KEY", timeout_seconds=5)
        asked = LanguageModelProposer(Recorded(Client(settings, KEY), tmp_path), settings.model)
        first = list(asked.propose(task(ROW_DOT)))
    assert isinstance(first[0], Candidate)
    assert first[0].transformation == "unroll loop1 by 4"
    assert list(LanguageModelProposer(Replayed(tmp_path), "tiny").propose(task(ROW_DOT))) == first
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    assert KEY not in kept
    assert endpoint.url not in kept


def test_an_endpoint_that_is_away_is_a_line_in_the_journal(tmp_path: Path) -> None:
    with serving([]) as endpoint:
        pass
    settings = LanguageModel(base_url=endpoint.url, model="tiny", timeout_seconds=0.2)
    asked = LanguageModelProposer(Recorded(Client(settings, None), tmp_path), settings.model)
    assert list(asked.propose(task(ROW_DOT))) == [
        NotApplicable("language_model", f"{endpoint.url}: the connection was refused")
    ]
