"""Grants: what a principal may claim, and the mapping of grants that the core uses."""

from stepwire_broker.core.model.events import GrantsChanged
from stepwire_broker.core.model.principal import ANONYMOUS, OWNER, PROCESS, Grant, Rights, with_built_in

from .world import World


def test_a_grant_without_handlers_and_workers_allows_none() -> None:
    rights = Rights(Grant(principal="shop"))
    assert not rights.allows_worker("shop")
    assert not rights.allows_handler("shop::pay")
    assert not rights.covers("shop::pay")
    assert rights.allows_namespace("billing::eu"), "without namespaces=, a key works in all of them"


def test_a_grant_covers_only_offers_whose_every_handler_it_allows() -> None:
    rights = Rights(Grant(principal="shop", handlers=("shop::**",)))
    assert rights.covers("shop::order::pay")
    assert rights.covers("shop::**")
    assert not rights.covers("**")
    assert not rights.covers("shop*::pay")


def test_a_label_is_allowed_by_its_value_or_by_a_star() -> None:
    rights = Rights(Grant(principal="shop", labels=(("region", "eu"), ("tier", "*"))))
    assert rights.allows_label("region", "eu")
    assert not rights.allows_label("region", "us")
    assert rights.allows_label("tier", "gold")
    assert not rights.allows_label("zone", "a")


def test_the_built_in_principals_have_full_grants() -> None:
    world = World()
    assert set(world.state.principals) == {PROCESS, OWNER, ANONYMOUS}
    for rights in world.state.principals.values():
        assert rights.allows_worker("any.name-1")
        assert rights.covers("**")
        assert rights.allows_label("any", "label")
        assert rights.grant.level0


def test_changed_grants_replace_all_earlier_grants() -> None:
    world = World()
    world.handle(GrantsChanged(with_built_in([Grant(principal="shop")], allows_anonymous=False)))
    assert set(world.state.principals) == {PROCESS, OWNER, "shop"}
    world.handle(GrantsChanged(with_built_in()))
    assert "shop" not in world.state.principals
