"""A server that was promoted, restored or went back to an older copy: what a broker concludes from its timeline."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.membership.cluster_rows import Presence
from stepwire_broker.core.model.commit_group import Committed, LostCommits, Outcome, Stalled
from stepwire_broker.store import Store
from stepwire_broker.store.errors import StoreRefused
from stepwire_broker.store.postgres.accepting import trust_failover
from stepwire_broker.store.postgres.database import open_database

from tests.postgres.server import PostgresServer
from tests.store.running import PATIENCE_S, PostgresPlace, Running
from tests.store.stored_rows import NOW, fact, submission

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"wal_level": "replica", "max_wal_senders": "2"}) as running:
        yield running


@pytest.fixture
def place(server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(server, f"t{next(_NUMBERS)}")


def start_and_stop(settings: DatabaseSettings) -> list[int]:
    """Returns the lanes that the broker owned."""
    store = Store(open_database(settings, "b2", lease_ms=10_000, broker_lease_ms=10_000, wall_ms=NOW, entropy=1))
    assert store.close(PATIENCE_S)
    return [taken.lane for taken in store.opened.lanes]


def final(run: Running) -> Outcome:
    """The outcome after all stalls."""
    while isinstance(outcome := run.outcome(), Stalled):
        pass
    return outcome


def timeline(place: PostgresPlace) -> str:
    ((found,),) = place.server.sql(f"SELECT timeline FROM {place.schema}.lanes")
    return str(found)


def test_a_living_owner_goes_on_after_a_failover_that_lost_nothing(place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        before = timeline(place)
        place.server.begin_timeline()
        run.put(history=[fact(10)])
        assert isinstance(final(run), Committed)
        after = timeline(place)
        assert after.partition("/")[0] == before.partition("/")[0]
        assert after > before
    start_and_stop(place.settings())


def test_no_broker_starts_on_another_timeline_until_the_operator_accepts_it(place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
    place.server.begin_timeline()
    with pytest.raises(StoreRefused, match="accept-loss --nothing-lost"):
        start_and_stop(place.settings())
    start_and_stop(msgspec.structs.replace(place.settings(), lost_commits="stop_if_seen"))
    place.server.begin_timeline()
    with pytest.raises(StoreRefused, match="has another timeline than the lanes 1 of the schema"):
        start_and_stop(place.settings())
    assert trust_failover(place.settings()) == [1]
    start_and_stop(place.settings())


def test_a_lane_without_an_owner_that_may_lack_commits_is_named_and_not_taken(place: PostgresPlace) -> None:
    settings = msgspec.structs.replace(place.settings(), lanes=2)
    assert start_and_stop(settings) == [1, 2]
    place.server.sql(f"UPDATE {place.schema}.lanes SET timeline = '1/00000001' WHERE id = 2")
    database = open_database(settings, "b2", lease_ms=10_000, broker_lease_ms=10_000, wall_ms=NOW, entropy=1)
    members = database.opened.members
    assert database.cluster is not None
    assert members is not None
    members.last = database.cluster.beat(Presence())
    assert [lane.is_in_doubt for lane in members.last.lanes] == [False, True]
    assert members.lanes_in_doubt() == {2}
    assert [taken.lane for taken in database.opened.lanes] == [1]
    Store(database).close(PATIENCE_S)


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_living_owner_sees_that_its_commits_are_lost(place: PostgresPlace, is_promoted: bool) -> None:
    with Running(place) as run:
        run.workflow()
        kept = place.server.keep_copy()
        run.put(submissions=[submission(1, 10)])
        assert isinstance(final(run), Committed)
        place.server.go_back_to(kept)
        if is_promoted:
            place.server.begin_timeline()
        run.put(history=[fact(10)])
        outcome = final(run)
        assert isinstance(outcome, LostCommits)
        assert "commits were lost" in outcome.error
        assert run.task_ids() == []
