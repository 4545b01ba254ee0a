"""Suggestions for misspelled names, whose length and number a stranger chooses."""

import pytest
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.reading.document_problems import path_text
from stepwire_broker.core.reading.nearest import SHOWN_CHARACTERS_MAX, did_you_mean, echoed, nearest
from stepwire_broker.stages import requests
from stepwire_protocol.errors import InvalidMessage


def test_a_similar_name_is_suggested() -> None:
    assert did_you_mean("leese_ms", ["lease_ms", "heartbeat_ms"]) == "did you mean lease_ms?"
    assert nearest("a" * 128, ["a" * 127]) == "a" * 127


def test_a_name_longer_than_128_characters_is_compared_with_none() -> None:
    assert nearest("a" * 129, ["a" * 127]) is None


def test_names_beyond_the_work_limit_are_not_compared() -> None:
    many = [f"{'ab' * 60}{number:06d}" for number in range(2_000)]
    assert nearest("workflow_nam", [*many, "workflow_name"]) is None
    assert nearest("workflow_nam", ["workflow_name", *many]) == "workflow_name"


@pytest.mark.parametrize("name", ["a" * 4_000_000, "a - at `$" * 400_000, "`" * 4_000_000])
def test_an_unknown_member_with_a_long_name_is_refused_in_a_short_sentence(name: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        requests.read_task(f'{{"workflow":"w","{name}":1}}'.encode(), LimitSettings())
    assert refused.value.code == "bad_field"
    assert len(refused.value.message) < 1_100


def test_a_long_name_is_shown_in_part() -> None:
    assert echoed("a" * 64) == "a" * SHOWN_CHARACTERS_MAX
    assert echoed("a" * 65) == "a" * SHOWN_CHARACTERS_MAX + "…"
    assert path_text(("steps", "a" * 4_000_000)) == f"steps.{echoed('a' * 65)}"
