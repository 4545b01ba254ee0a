"""The addresses of live brokers, as workers receive them."""

import pytest
from stepwire_broker.core import overview
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.brokers.listeners import BrokerEndpoints, Listener, ListenerKind, of_row, to_row
from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from .world import HOST, W, World

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
IPC, TCP, CURVE, INPROC = ListenerKind.IPC, ListenerKind.TCP, ListenerKind.CURVE, ListenerKind.INPROC


def listener(kind: ListenerKind, broker: str, *, is_local: bool = False) -> Listener:
    form = "ipc:///run/{}/{}" if kind is IPC else "tcp://{}:{}"
    key = KEY if kind is CURVE else None
    return Listener(kind, form.format(broker, 1), form.format(broker, 2), key, is_local or kind is IPC)


def broker(name: str, *kinds: ListenerKind, host: str = HOST, is_local: bool = False) -> BrokerEndpoints:
    return BrokerEndpoints(name, host, tuple(listener(kind, name, is_local=is_local) for kind in kinds))


def address(kind: ListenerKind, name: str) -> wire.Endpoints:
    one = listener(kind, name)
    return wire.Endpoints(name, one.steps, one.results, one.server_key)


def world_of(*kinds: ListenerKind, is_local: bool = False) -> World:
    """A world whose broker listens in these ways, and names the last one for itself."""
    world = World()
    listeners = tuple(listener(kind, "b1", is_local=is_local) for kind in kinds)
    usual = listeners[-1]
    world.handle(events.EndpointsBound(usual.steps, usual.results, usual.server_key, listeners=listeners))
    return world


def learn(world: World, *others: BrokerEndpoints) -> None:
    addresses.on_others(world.state, others, world.now)
    world.handle(events.Tick())


def welcomed(world: World, kind: ListenerKind | None) -> list[wire.Endpoints]:
    world.handle(events.Subscribed(W, kind))
    world.hello()
    found: list[wire.Endpoints] = world.last(wire.Welcome).brokers
    return found


def test_a_broker_without_others_names_only_itself() -> None:
    assert welcomed(world_of(IPC, TCP), IPC) == [address(TCP, "b1")]


def test_a_welcome_lists_every_live_broker() -> None:
    world = world_of(TCP)
    learn(world, broker("b3", TCP), broker("b2", TCP))
    assert welcomed(world, TCP) == [address(TCP, "b1"), address(TCP, "b2"), address(TCP, "b3")]


@pytest.mark.parametrize("kind", [IPC, TCP, CURVE])
def test_a_worker_receives_listeners_of_the_kind_that_it_came_to(kind: ListenerKind) -> None:
    world = world_of(IPC, TCP, CURVE)
    learn(world, broker("b2", CURVE, TCP, IPC))
    assert welcomed(world, kind) == [address(kind, "b1"), address(kind, "b2")]


def test_a_worker_of_an_unknown_kind_receives_the_usual_listeners() -> None:
    world = world_of(IPC, TCP)
    learn(world, broker("b2", IPC, TCP))
    assert welcomed(world, None) == [address(TCP, "b1"), address(TCP, "b2")]


def test_a_local_listener_is_listed_only_for_workers_of_its_host() -> None:
    elsewhere = broker("b2", IPC, TCP, host="h2")
    world = world_of(IPC, TCP)
    learn(world, elsewhere)
    assert welcomed(world, IPC)[1:] == [address(TCP, "b2")]
    loopback = world_of(TCP, is_local=True)
    learn(loopback, broker("b2", TCP, host="h2", is_local=True), broker("b3", TCP, is_local=True))
    assert welcomed(loopback, TCP)[1:] == [address(TCP, "b3")]


def test_a_worker_of_another_host_receives_no_local_listener() -> None:
    world = world_of(TCP)
    learn(world, broker("b2", TCP, is_local=True))
    assert welcomed(world, TCP)[1:] == []


def test_a_worker_with_keys_receives_only_listeners_with_keys() -> None:
    world = world_of(IPC, CURVE)
    learn(world, broker("b2", IPC, TCP))
    assert welcomed(world, CURVE)[1:] == []


def test_a_worker_without_keys_receives_a_listener_with_keys_so_that_it_can_log_why_it_ignores_it() -> None:
    world = world_of(TCP)
    learn(world, broker("b2", CURVE))
    assert welcomed(world, TCP)[1:] == [address(CURVE, "b2")]


def test_a_worker_inside_the_process_receives_no_other_broker() -> None:
    world = world_of(IPC)
    learn(world, broker("b2", IPC))
    assert welcomed(world, INPROC)[1:] == []


def test_a_change_is_sent_at_once_with_a_repeated_ack_and_in_acks_for_a_minute() -> None:
    world = world_of(TCP)
    welcomed(world, TCP)
    world.beat(n=17)
    world.forget()
    learn(world, broker("b2", TCP))
    told = world.last(wire.HeartbeatAck)
    assert (told.session, told.n, told.brokers) == ("7.1", 17, [address(TCP, "b1"), address(TCP, "b2")])
    world.stay(W, 30_000)
    assert len(world.last(wire.HeartbeatAck).brokers) == 2
    world.stay(W, 60_000)
    assert world.last(wire.HeartbeatAck).brokers is None
    learn(world)
    assert world.last(wire.HeartbeatAck).brokers == [address(TCP, "b1")], "b2 is gone"


def test_the_same_brokers_again_are_no_news() -> None:
    world = world_of(TCP)
    welcomed(world, TCP)
    learn(world, broker("b2", TCP))
    world.stay(W, 70_000)
    world.forget()
    learn(world, broker("b2", TCP))
    assert world.sent == []


def test_the_row_of_a_broker_has_its_listeners() -> None:
    world = world_of(IPC, CURVE)
    world.handle(events.HttpServed("http://b1:7410"))
    row = of_row("b1", addresses.row_of(world.state))
    assert (row.host, row.listeners) == (HOST, broker("b1", IPC, CURVE).listeners)
    assert (row.epoch, row.http) == (7, "http://b1:7410")


@pytest.mark.parametrize("text", [None, "", "not json", '{"listeners":[{"kind":"smoke"}]}', '{"listeners":null}'])
def test_a_row_that_cannot_be_read_has_no_listeners(text: str | None) -> None:
    assert of_row("b2", text) == BrokerEndpoints("b2")


def test_a_row_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    text = to_row(broker("b2", TCP, host="h2")).replace('"host"', '"later":1,"host"')
    assert of_row("b2", text) == broker("b2", TCP, host="h2")


def test_the_list_of_workers_shows_which_live_brokers_a_worker_misses() -> None:
    world = world_of(TCP)
    welcomed(world, TCP)
    (alone,) = overview.workers(world.state, world.now)
    assert (alone.brokers, alone.missing_brokers) == ([], [])
    learn(world, broker("b2", TCP), broker("b3", TCP))
    world.say(wire.Heartbeat(v="2.0", worker=W, n=9, sessions={"b1": "7.1", "b3": "9.1", "b9": "1.1"}, free={}))
    (shown,) = overview.workers(world.state, world.now)
    assert (shown.brokers, shown.missing_brokers) == (["b1", "b3"], ["b2"])
