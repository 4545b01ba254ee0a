"""Rules set from the command line: a canary and a shadow come, change and go, and the rule stays."""

from typing import Any

import pytest

from .a_place import Place

OK, FAILURE, USAGE = range(3)
MATCH = "shop::**::routed"


def rule(shop: Place) -> dict[str, Any] | None:
    found = [one for one in shop.stepwire("executor", "routes", "--json").json if one["match"] == MATCH]
    return found[0] if found else None


def route(shop: Place, *words: str) -> dict[str, Any]:
    done = shop.stepwire("executor", "route", MATCH, *words)
    assert done.code == OK, done
    found = rule(shop)
    assert found is not None
    return found


def test_a_canary_and_a_shadow_go_without_the_rule_they_came_to(shop: Place) -> None:
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
    ("words", "says"),
    [
        (("--canary-selector", "release=next"), "a canary needs --canary-percent"),
        (("--no-canary", "--canary-percent", "5"), "--no-canary takes the canary away"),
        (("--no-shadow", "--shadow-executor", "bus"), "--no-shadow takes the shadow away"),
        (("--reset", "--no-canary"), "--reset stands alone"),
        (("--selector", "release"), "labels have a form like"),
    ],
)
def test_what_makes_no_rule_is_said_before_anything_is_set(shop: Place, words: tuple[str, ...], says: str) -> None:
    done = shop.stepwire("executor", "route", MATCH, *words)
    assert done.code == USAGE
    assert says in done.err
    assert rule(shop) is None
