"""Validation errors of msgspec become plain sentences. The table runs msgspec itself, so that a new wording is seen."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct
from stepwire_protocol.decode_errors import plain
from stepwire_protocol.messages import BrokerMessage, WorkerMessage


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Item(Struct, forbid_unknown_fields=True):
    outcome: Literal["completed", "failed", "retry"]
    color: Color = Color.RED


Name = Annotated[str, Meta(max_length=3)]


class Body(Struct, forbid_unknown_fields=True):
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    text: Annotated[str, Meta(min_length=1, max_length=3)] = "a"
    name: Annotated[str, Meta(pattern="^[a-z]$")] = "a"
    tasks: Annotated[list[Item], Meta(min_length=1)] | None = None
    labels: Annotated[dict[Name, Name], Meta(max_length=1)] = {}
    by_name: dict[str, Item] = {}
    pair: tuple[int, Color] = (1, Color.RED)
    share: Annotated[float, Meta(gt=0)] = 1.0
    id: int | None = None
    either: int | str = 0
    listen: str = ""
    flag: bool = False


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("[]", "the JSON must be an object, not a list"),
        ('{"priority":101}', "`priority` must be at most 100"),
        ('{"priority":-101}', "`priority` must be at least -100"),
        ('{"priority":"1"}', "`priority` must be a whole number, not text"),
        ('{"priority":1.5}', "`priority` must be a whole number, not a number with a fraction"),
        ('{"text":""}', "`text` must not be empty"),
        ('{"text":"long"}', "`text` must have at most 3 characters"),
        ('{"name":"A"}', "`name` must match the pattern '^[a-z]$'"),
        ('{"tasks":[]}', "`tasks` must not be empty"),
        ('{"tasks":{}}', "`tasks` must be a list or null, not an object"),
        ('{"tasks":[{}]}', "`tasks[0].outcome` is missing"),
        ('{"tasks":[{"outcom":"x"}]}', "`tasks[0].outcom` is not a known member"),
        ('{"tasks":[{"outcome":"ok"}]}', "`tasks[0].outcome` must be one of completed, failed, retry, not 'ok'"),
        ('{"tasks":[{"outcome":"retry","color":"x"}]}', "`tasks[0].color` must be one of red, blue, not 'x'"),
        ('{"by_name":{"a":{"outcome":3}}}', "`by_name[…].outcome` must be text, not a number: quote it"),
        ('{"labels":{"long":"a"}}', "`labels` has a key that must have at most 3 characters"),
        ('{"labels":{"a":"long"}}', "`labels[…]` must have at most 3 characters"),
        ('{"labels":{"a":"a","b":"b"}}', "`labels` must have at most 1 members"),
        ('{"pair":[1]}', "`pair` must be a list of 2 items"),
        ('{"pair":[1,"x"]}', "`pair[1]` must be one of red, blue, not 'x'"),
        ('{"share":0}', "`share` must be more than 0.0"),
        ('{"id":"x"}', "`id` must be a whole number or null, not text"),
        ('{"either":[]}', "`either` must be a whole number or text, not a list"),
        ('{"listen":7410}', "`listen` must be text, not a number: quote it"),
        ('{"listen":true}', "`listen` must be text, not true or false: quote it"),
        ('{"flag":1}', "`flag` must be true or false, not a number"),
        ('{"flag":null}', "`flag` must be true or false, not null"),
        ('{"unknown":1}', "`unknown` is not a known member"),
    ],
)  # fmt: skip
def test_an_error_names_the_member_and_its_form(body: str, sentence: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(body, type=Body)
    assert plain(str(refused.value), Body) == sentence


def test_an_error_of_an_unknown_form_is_kept() -> None:
    assert plain("Something else - at `$.a`", Body) == "Something else - at `$.a`"
    assert plain("Invalid enum value 'x' - at `$.nowhere`", Body) == "Invalid enum value 'x' - at `$.nowhere`"


@pytest.mark.parametrize("kind", [WorkerMessage, BrokerMessage])
def test_an_enumeration_of_a_message_is_found(kind: object) -> None:
    """The types of the messages can be described, and a value that several messages allow is not guessed."""
    error = "Invalid enum value 'x' - at `$.results[0].status`"
    expected = "`results[0].status` must be one of completed, error, failed, not 'x'"
    assert plain(error, kind) == (expected if kind is WorkerMessage else error)
