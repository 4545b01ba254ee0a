"""Rules set from the command line: a canary and a shadow are added, changed and removed; the rule remains."""

from typing import Any

import pytest

from .a_place import Place

OK, FAILURE, USAGE = range(3)
MATCH = "shop::**::routed"


def rule(shop: Place) -> dict[str, Any] | None:
    rules = [one for one in shop.stepwire("executor", "routes", "--json").json if one["match"] == MATCH]
    return rules[0] if rules else None


def route(shop: Place, *words: str) -> dict[str, Any]:
    done = shop.stepwire("executor", "route", MATCH, *words)
    assert done.code == OK, done
    rules = rule(shop)
    assert rules is not None
    return rules


def test_removing_a_canary_or_a_shadow_keeps_the_rule(shop: Place) -> None:
    route(shop, "--selector", "release=now", "--canary-selector", "release=next", "--canary-percent", "10")
    whole = route(shop, "--shadow-selector", "release=shadow", "--shadow-percent", "50")
    assert (whole["worker_selector"], whole["canary"]["percent"], whole["shadow"]["percent"]) == (
        {"release": "now"},
        10,
        50,
    )
    less = route(shop, "--no-canary")
    assert (less["worker_selector"], less["canary"], less["shadow"]) == ({"release": "now"}, None, whole["shadow"])
    least = route(shop, "--no-shadow")
    assert (least["worker_selector"], least["canary"], least["shadow"]) == ({"release": "now"}, None, None)
    assert shop.stepwire("executor", "route", MATCH, "--reset").code == OK
    assert rule(shop) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--canary-selector", "release=next"), "a canary needs --canary-percent"),
        (("--no-canary", "--canary-percent", "5"), "--no-canary removes the canary"),
        (("--no-shadow", "--shadow-executor", "bus"), "--no-shadow removes the shadow"),
        (("--reset", "--no-canary"), "--reset cannot be combined"),
        (("--selector", "release"), "labels have a form like"),
    ],
)
def test_an_invalid_rule_is_refused_before_anything_is_set(shop: Place, words: tuple[str, ...], message: str) -> None:
    done = shop.stepwire("executor", "route", MATCH, *words)
    assert done.code == USAGE
    assert message in done.err
    assert rule(shop) is None
