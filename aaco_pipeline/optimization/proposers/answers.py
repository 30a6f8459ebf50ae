"""What a language model may answer, and nothing else: one of three changes, checked before anything is made of it.

A change becomes a candidate's text and no more. Whether that text is allowed, right and faster the guards decide, as of
every other candidate.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

#: A longer body is no change to a kernel; a longer answer is not searched for JSON.
LONGEST_BODY: Final = 64 * 1024
LONGEST_ANSWER: Final = 512 * 1024
#: Places in an answer where a JSON object may begin that are tried.
_MOST_BEGINNINGS: Final = 64


def _encodable(text: str) -> str:
    text.encode()  # an escape in JSON can stand for what UTF-8 cannot hold
    return text


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Unroll(_Form):
    """Unroll the loop that the question lists as `loop`."""

    kind: Literal["unroll"]
    loop: Annotated[str, Field(min_length=1, max_length=200)]
    factor: Annotated[int, Field(ge=2, le=8)]


class LaunchBounds(_Form):
    """`__launch_bounds__(most_work_items, resident)`; the second is left out where it is null."""

    kind: Literal["launch_bounds"]
    most_work_items: Annotated[int, Field(ge=1, le=1024)]
    resident: Annotated[int, Field(ge=1, le=32)] | None


class Rewrite(_Form):
    """The kernel's body anew, from its opening to its closing brace."""

    kind: Literal["rewrite"]
    body: Annotated[str, Field(min_length=2, max_length=LONGEST_BODY), AfterValidator(_encodable)]


Change = Unroll | LaunchBounds | Rewrite


class _Answer(_Form):
    change: Annotated[Change, Field(discriminator="kind")]


def answer_schema() -> dict[str, Any]:
    """The JSON schema of an answer, in the words that endpoints with strict structured output know."""
    schema = _Answer.model_json_schema()
    change = schema["properties"]["change"]
    del change["discriminator"]
    change["anyOf"] = change.pop("oneOf")
    return schema


def read_answer(text: str) -> Change:
    """The change in a model's answer: the answer itself, or the first JSON object in it that is one.

    ValueError, in a line that can be told to the model, when there is none.
    """
    if len(text) > LONGEST_ANSWER:
        raise ValueError(f"the answer is longer than {LONGEST_ANSWER} characters")
    reason = "the answer holds no JSON object"
    for found in _objects(text):
        try:
            return _Answer.model_validate(found).change
        except ValidationError as error:
            reason = _refusal(error)
    raise ValueError(reason)


def _objects(text: str) -> list[Any]:
    """The outermost JSON objects in the text, in their order: some models write prose or a fence around theirs."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at = -1
    for _ in range(_MOST_BEGINNINGS):
        at = text.find("{", at + 1)
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        found.append(value)
        at = end - 1
    return found


def _refusal(error: ValidationError) -> str:
    """Where the answer is wrong and how, without what stood there."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    said = f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:200]}"
    return "".join(character if character.isprintable() else " " for character in said)
