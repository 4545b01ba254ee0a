"""Frames of another principal change nothing, and a changed grant applies at once."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.model import events
from stepwire_broker.core.model.principal import ANONYMOUS, OWNER, PROCESS, Grant, full_grant, with_built_in
from stepwire_broker.core.model.states import DISPATCHED, READY
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.core.workers import authority
from stepwire_broker.core.workers.level0 import SETTLE_MS
from stepwire_protocol import codec, topics
from stepwire_protocol import messages as wire

from .test_explain import why
from .world import BROKER, DEPLOYMENT, HOST, LEASE_MS, ONCE, ONE, W2, W, World, item_of, one

SHOP = Grant(principal="shop", workers=("w", "shop-*"), handlers=("h",), level0=True, sessions=2, slots=8)
THIEF = full_grant("thief")


def a_world(*grants: Grant, **members: Any) -> World:
    world = World(**members)
    world.handle(events.GrantsChanged(with_built_in(grants or (SHOP, THIEF))))
    return world


def say(world: World, message: Any, principal: str) -> None:
    world.handle(codec.decode_worker(codec.encode(message)), principal)


def hello(worker: str = W, k: int = 1, **members: Any) -> wire.Hello:
    members.setdefault("handlers", ["h"])
    members.setdefault("slots", 4)
    return wire.Hello(
        v="2.0", worker=worker, n=k, versions=["2.0"], next={BROKER: k}, prefetch=0, free={BROKER: 4}, **members
    )


def snapshot(world: World) -> Any:
    """Return everything that a forged message could change."""
    state = world.state
    return (
        {
            step.id: (step.state, step.delivery, step.attempt, step.granted, step.seen, step.worker, step.started_ms)
            for task in state.tasks.values()
            for step in task.steps
        },
        {
            session.worker: (
                session.k,
                session.principal,
                session.free,
                session.heard_mono,
                session.draining,
                session.stuck,
                session.reported_n,
                sorted(session.deliveries),
                sorted(session.unanswered_batches),
            )
            for session in state.sessions.values()
        },
        len(world.groups),
        dict(state.progress),
    )


FORGED: dict[str, Callable[[World, wire.Steps], Any]] = {
    "hello": lambda world, steps: hello(k=9),
    "heartbeat": lambda world, steps: wire.Heartbeat(
        v="2.0", worker=W, n=99, sessions={BROKER: steps.session}, free={BROKER: 4}, holding=[]
    ),
    "bye": lambda world, steps: wire.Bye(v="2.0", worker=W, n=99),
    "gone": lambda world, steps: wire.Gone(v="2.0", worker=W),
    "accept": lambda world, steps: wire.Accept(
        v="2.0", worker=W, session=steps.session, batch_id=steps.batch_id, free=9
    ),
    "refuse": lambda world, steps: wire.Refuse(
        v="2.0",
        worker=W,
        session=steps.session,
        batch_id=steps.batch_id,
        items=[item_of(steps)],
        code="bad_message",
        free=4,
    ),
    "start": lambda world, steps: wire.Start(v="2.0", worker=W, session=steps.session, items=[item_of(steps)]),
    "results": lambda world, steps: wire.Results(
        v="2.0",
        worker=W,
        session=steps.session,
        deployment=DEPLOYMENT,
        batch_id=steps.batch_id,
        protocol_version="2.0",
        rid=1,
        results=[
            wire.Result(
                step_id=steps.steps[0].step_id,
                delivery=steps.steps[0].delivery,
                status="completed",
                output=msgspec.Raw(b"{}"),
            )
        ],
    ),
    "adopted": lambda world, steps: wire.Adopted(
        v="2.0", worker=W, session=steps.session, items=[(*item_of(steps), "unknown", 0)]
    ),
    "progress": lambda world, steps: wire.Progress(
        v="2.0", worker=W, session=steps.session, items=[(*item_of(steps), 1.0, 2.0, "forged")]
    ),
}


def test_every_message_of_a_worker_is_in_the_table() -> None:
    assert {type(make(World(), wire.Steps(**_ANY))) for make in FORGED.values()} | {wire.ResultsLevel0} == {
        kind for kind in authority.REQUIRED if isinstance(kind, type)
    }


_ANY: dict[str, Any] = {
    "v": "2.0",
    "broker": BROKER,
    "epoch": 7,
    "session": "7.1",
    "batch_id": "x",
    "protocol_version": "2.0",
    "steps": [
        wire.StepRequest(
            step_id=1,
            task_id=0,
            step_name="s",
            handler_class="h",
            handler_config=msgspec.Raw(b"{}"),
            task_context=msgspec.Raw(b"{}"),
            previous_results={},
            delivery=1,
            delivery_mode="at_least_once",
            metadata=wire.StepMetadata(attempt=0, retry_limit=0, timeout_ms=1, idempotency_key="k"),
        )
    ],
}


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("principal", ["thief", ANONYMOUS, OWNER, "nobody", ""])
def test_a_message_in_the_name_of_another_principals_worker_changes_nothing(kind: str, principal: str) -> None:
    world = a_world()
    say(world, hello(host=HOST, pid=4, pid_started=5, proof=True), "shop")
    world.task(ONCE)
    steps = world.batches(W)[-1]
    world.handle(events.Subscribed(W), "shop")
    before, sent = snapshot(world), len(world.sent)
    watches = len(world.watches)
    say(world, FORGED[kind](world, steps), principal)
    assert snapshot(world) == before
    assert len(world.sent) == sent, "the worker must not be reset or refused for what another one sent"
    assert len(world.watches) == watches
    assert world.state.counters.refused == {"unauthorized": 1}


@pytest.mark.parametrize("kind", FORGED)
def test_the_same_message_of_the_right_principal_counts(kind: str) -> None:
    world = a_world()
    say(world, hello(host=HOST, pid=4, pid_started=5, proof=True), "shop")
    world.task(ONCE)
    steps = world.batches(W)[-1]
    before, watches = snapshot(world), len(world.watches)
    say(world, FORGED[kind](world, steps), "shop")
    assert snapshot(world) != before or len(world.watches) > watches
    assert "unauthorized" not in world.state.counters.refused


def test_a_result_of_an_ended_session_counts_only_from_its_principal() -> None:
    world = a_world()
    say(world, hello(), "shop")
    task_id = world.task(ONE)
    steps = world.batches(W)[-1]
    world.pass_time(2 * LEASE_MS)
    assert W not in world.state.sessions
    say(world, FORGED["results"](world, steps), "thief")
    assert world.step(task_id).state is READY
    say(world, FORGED["results"](world, steps), "shop")
    assert world.states(task_id) == {"only": "completed"}


def test_a_result_that_waits_for_a_read_is_checked_again_when_its_sender_was_revoked_meanwhile() -> None:
    world = a_world(answers_reads=False)
    say(world, hello(), "shop")
    task_id = world.task(ONE)
    steps = world.batches(W)[-1]
    world.restart()
    world.handle(events.GrantsChanged(with_built_in([SHOP, THIEF])))
    say(world, FORGED["results"](world, steps), "shop")
    world.handle(events.GrantsChanged(with_built_in([THIEF])))
    while world.reads:
        world.read()
    assert world.step(task_id).state is DISPATCHED
    assert world.state.counters.refused == {"unauthorized": 1}


# -- workers inside the process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [OWNER, ANONYMOUS, "thief"])
@pytest.mark.parametrize("kind", ["gone", "hello", "results", "adopted"])
def test_no_socket_may_name_a_worker_inside_the_process(kind: str, principal: str) -> None:
    world = a_world(executors=["exec"])
    inner = own_worker("exec", BROKER, world.state.identity.epoch, 0x12345678)
    other = own_worker("exec", BROKER, world.state.identity.epoch - 1, 0x12345678)
    world.hello(inner, executor="exec")
    before = snapshot(world)
    for worker in (inner, other):
        message = FORGED[kind](world, wire.Steps(**_ANY))
        say(world, msgspec.structs.replace(message, worker=worker), principal)
    assert snapshot(world) == before
    assert world.state.counters.refused == {"unauthorized": 2}
    assert authority.of_subscription(world.state, principal, topics.to_worker(inner)) is not None
    assert authority.of_message(world.state, PROCESS, hello(inner)) is None


def test_ids_of_workers_inside_the_process_have_random_digits() -> None:
    assert own_worker("exec", BROKER, 7, 1) == "exec.b1:0000000700000001"
    assert own_worker("exec", BROKER, 7, (5 << 32) + 2) == "exec.b1:0000000700000002"


# -- inboxes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("principal", "topic", "code"),
    [
        ("shop", b"@w:0000000000000001 ", None),
        ("shop", b"@shop-7:0000000000000001 ", None),
        ("shop", b"@other:0000000000000001 ", "foreign_inbox"),
        ("shop", b"brokers ", None),
        ("shop", b"steps", None),
        ("shop", b"", "subscription"),
        ("shop", b"workers ", "subscription"),
        ("deaf", b"steps ", "level0"),
        ("nobody", b"brokers ", "unauthorized"),
        ("", b"steps", "unauthorized"),
        (ANONYMOUS, b"@any:0000000000000001 ", None),
    ],
)
def test_a_subscription_needs_what_the_table_says(principal: str, topic: bytes, code: str | None) -> None:
    world = a_world(SHOP, Grant(principal="deaf", workers=("deaf",)))
    refusal = authority.of_subscription(world.state, principal, topic)
    assert (None if refusal is None else refusal.code) == code


def test_an_inbox_belongs_to_the_principal_that_holds_it_while_it_is_held() -> None:
    world = a_world()
    world.handle(events.Subscribed(W), "shop")
    refusal = authority.of_subscription(world.state, "thief", topics.to_worker(W))
    assert refusal is not None
    assert refusal.code == "foreign_inbox"
    assert authority.of_subscription(world.state, "shop", topics.to_worker(W)) is None
    world.handle(events.SubscriptionVanished(W), "shop")
    assert authority.of_subscription(world.state, "thief", topics.to_worker(W)) is None


def test_an_inbox_belongs_to_the_principal_of_a_session_whose_connection_is_lost() -> None:
    world = a_world()
    world.handle(events.Subscribed(W), "shop")
    say(world, hello(), "shop")
    world.handle(events.SubscriptionVanished(W), "shop")
    assert authority.of_subscription(world.state, "thief", topics.to_worker(W)) is not None


# -- offers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "violation"),
    [
        ({"handlers": ["h", "other"]}, "does not cover the handler `other`"),
        ({"handlers": ["**"]}, "does not cover the handler `**`"),
        ({"labels": {"region": "eu"}}, "does not allow the label region=eu"),
        ({"slots": 9}, "allows 8 slots, and the worker has 9"),
    ],
)
def test_a_hello_outside_the_grant_is_refused_by_its_first_violation_and_reset(
    members: dict[str, Any], violation: str
) -> None:
    world = a_world()
    world.handle(events.Subscribed(W), "shop")
    say(world, hello(k=3, **members), "shop")
    assert not world.state.sessions
    refused, reset = world.last(wire.Refused, W), world.last(wire.Reset, W)
    assert (refused.code, refused.refused) == ("unauthorized", "hello")
    assert violation in refused.message
    assert (reset.code, reset.next) == ("unauthorized", 3)
    assert world.state.counters.refused == {"unauthorized": 1}


def test_a_principal_has_at_most_the_sessions_of_its_grant() -> None:
    world = a_world()
    ids = [f"shop-{n}:{n:016x}" for n in range(4)]
    for worker in ids[:3]:
        say(world, hello(worker), "shop")
    assert sorted(world.state.sessions) == ids[:2]
    assert "allows 2 sessions" in world.last(wire.Refused).message
    say(world, hello(ids[0], k=2), "shop")
    assert world.state.sessions[ids[0]].k == 2, "a worker may replace its own session"
    world.pass_time(2 * LEASE_MS)
    say(world, hello(ids[3]), "shop")
    assert list(world.state.sessions) == [ids[3]]


def test_a_broker_has_at_most_its_own_number_of_sessions_of_all_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "SESSIONS_MAX", 2)
    world = a_world()
    say(world, hello("shop-1:0000000000000001"), "shop")
    say(world, hello("t-1:0000000000000002"), "thief")
    say(world, hello("t-2:0000000000000003"), "thief")
    assert len(world.state.sessions) == 2
    assert "accepts no further one" in world.last(wire.Refused).message
    assert world.last(wire.Reset).code == "unauthorized"
    say(world, hello("t-1:0000000000000002", k=2), "thief")
    assert world.state.sessions["t-1:0000000000000002"].k == 2, "a worker may replace its own session"


# -- changed grants ---------------------------------------------------------------------------------------------------


def test_a_revoked_principal_is_reset_and_gets_and_does_nothing_more() -> None:
    world = a_world()
    say(world, hello(), "shop")
    first = world.task(ONE)
    steps = world.batches(W)[-1]
    world.forget()
    world.handle(events.GrantsChanged(with_built_in([THIEF])))
    assert world.last(wire.Reset, W).code == "unauthorized"
    second = world.task(ONE)
    for make in FORGED.values():
        say(world, make(world, steps), "shop")
    world.pass_time(3_000)
    assert not world.batches(W), "neither new steps nor repeated ones"
    assert world.step(first).state is DISPATCHED, "its worker may still run the step, until the lease ends"
    assert world.step(second).state is READY
    world.pass_time(LEASE_MS)
    assert world.step(first).state is READY


def test_a_granted_step_of_a_revoked_principal_is_held_only_when_the_lease_ends() -> None:
    world = a_world()
    say(world, hello(), "shop")
    task_id = world.task(ONCE)
    say(world, FORGED["start"](world, world.batches(W)[-1]), "shop")
    world.handle(events.GrantsChanged(with_built_in([])))
    world.pass_time(LEASE_MS - 1)
    assert world.states(task_id) == {"only": "dispatched"}
    world.pass_time(LEASE_MS)
    assert world.states(task_id) == {"only": "held"}


def test_an_operator_can_state_that_the_workers_of_a_revoked_principal_are_dead() -> None:
    world = a_world()
    say(world, hello(), "shop")
    task_id = world.task(ONE)
    world.handle(events.GrantsChanged(with_built_in([]), declared_dead=frozenset({"shop"})))
    assert not world.state.sessions
    assert world.step(task_id).state is READY


def test_a_principal_that_gets_its_grant_back_within_the_lease_goes_on() -> None:
    world = a_world()
    say(world, hello(), "shop")
    task_id = world.task(ONE)
    steps = world.batches(W)[-1]
    world.handle(events.GrantsChanged(with_built_in([])))
    world.pass_time(2_000)
    world.handle(events.GrantsChanged(with_built_in([SHOP])))
    say(world, FORGED["results"](world, steps), "shop")
    assert world.states(task_id) == {"only": "completed"}


def test_dispatch_checks_the_handler_and_the_namespace_of_a_changed_grant() -> None:
    world = a_world()
    say(world, hello(), "shop")
    world.handle(events.GrantsChanged(with_built_in([msgspec.structs.replace(SHOP, namespaces=("shop", "shop::*"))])))
    billing = world.task({**one(), "namespace": "billing"})
    assert not world.batches(W)
    assert why(world, billing).code == "outside_grant"
    assert "its key does not allow the namespace `billing`" in why(world, billing).message
    own = world.task({**one(), "namespace": "shop::eu"})
    assert [batch.steps[0].task_id for batch in world.batches(W)] == [own]
    world.handle(events.GrantsChanged(with_built_in([msgspec.structs.replace(SHOP, handlers=("other",))])))
    third = world.task({**one(), "namespace": "shop"})
    assert "its key does not allow the handler `h`" in why(world, third).message
    world.handle(events.GrantsChanged(with_built_in([SHOP])))
    assert world.states(billing) == world.states(third) == {"only": "dispatched"}


# -- level 0 ----------------------------------------------------------------------------------------------------------


def level0_answer(batch: wire.StepsLevel0) -> wire.ResultsLevel0:
    done = wire.Result(step_id=batch.steps[0].step_id, status="completed", output=msgspec.Raw(b"{}"))
    return wire.ResultsLevel0(batch_id=batch.batch_id, protocol_version="1.0", results=[done])


def a_peer(world: World, principal: str) -> str:
    world.handle(events.PeerSubscribed(), principal)
    world.pass_time(SETTLE_MS)
    return world.granted[-1]


@pytest.mark.parametrize("principal", ["thief", ANONYMOUS, "nobody"])
def test_an_answer_counts_only_from_the_principal_that_received_the_batch(principal: str) -> None:
    world = a_world()
    a_peer(world, "shop")
    task_id = world.task(ONE)
    answer = level0_answer(world.handed[-1])
    world.handle(answer, principal)
    assert world.states(task_id) == {"only": "dispatched"}
    assert set(world.state.counters.refused) <= {"wrong_sender", "unauthorized"}
    world.pass_time(36_000)
    world.handle(answer, principal)
    assert world.step(task_id).state in (READY, DISPATCHED)
    world.handle(answer, "shop")
    assert world.states(task_id) == {"only": "completed"}


def test_after_a_restart_only_the_principal_of_the_key_answers_its_batches() -> None:
    world = a_world()
    a_peer(world, "shop")
    task_id = world.task(ONE)
    answer = level0_answer(world.handed[-1])
    world.restart()
    world.handle(events.GrantsChanged(with_built_in([SHOP, THIEF])))
    for stranger in ("thief", ANONYMOUS, OWNER):
        world.handle(answer, stranger)
    assert world.states(task_id) == {"only": "dispatched"}
    world.handle(answer, "shop")
    assert world.states(task_id) == {"only": "completed"}


def test_each_principal_has_its_own_level_0_handlers_and_namespaces() -> None:
    limited = msgspec.structs.replace(SHOP, namespaces=("shop",))
    world = a_world(limited, msgspec.structs.replace(THIEF, handlers=("z",)))
    shop = a_peer(world, "shop")
    a_peer(world, "thief")
    first, second, third = (
        world.task(
            {"name": f"of_{handler}", "namespace": namespace, "steps": [{"name": "only", "handler_class": handler}]}
        )
        for namespace, handler in (("shop", "h"), ("billing", "h"), ("shop", "q"))
    )
    assert [(batch.to, batch.steps[0].task_id) for batch in world.handed] == [(shop, first)]
    assert why(world, second).code == why(world, third).code == "outside_grant"


def test_a_revoked_peer_gets_no_further_batch() -> None:
    world = a_world()
    a_peer(world, "shop")
    world.handle(events.GrantsChanged(with_built_in([THIEF])))
    world.task(ONE)
    assert not world.handed
    world.handle(events.GrantsChanged(with_built_in([SHOP])))
    assert len(world.handed) == 1


def test_a_worker_of_a_stranger_takes_no_inbox_and_no_session_from_a_worker_with_the_same_name() -> None:
    """Instances of one service may share a name; their ids differ, and each id belongs to one principal."""
    world = a_world()
    say(world, hello(W), "shop")
    say(world, hello(W2), "thief")
    assert world.state.sessions[W].principal == "shop"
    assert world.state.sessions[W2].principal == "thief"
