"""Principals on the simulated bus: one for each worker and level-0 handler, and a thief.

The thief knows everything: it forges every message, in every worker's name, with the current numbers of sessions,
batches and deliveries. Real ids cannot be guessed, so a guess that is always right is the worst case. Honest principals
and the thief lose their grants at random times, and get them back.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire_broker.core.commit.decision import Decision, LoadBySteps
from stepwire_broker.core.model.events import GrantsChanged, Subscribed
from stepwire_broker.core.model.principal import PROCESS, Grant, with_built_in
from stepwire_broker.core.workers import authority
from stepwire_protocol import codec, limits, topics
from stepwire_protocol import messages as wire

from .faults import HOSTILE_KINDS

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .peer_node import PeerNode
    from .worker_node import WorkerNode
    from .world import World

THIEF: Final = "thief"
FORGED_MAX: Final = 80
REVOKED_MAX: Final = 6
V: Final = limits.PROTOCOL_LEVEL_1


class Hostile:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_on = not world.faults.on.isdisjoint(HOSTILE_KINDS)
        self.chance = Random(f"{world.seed}/hostile")
        self.owners: dict[str, str] = {}  # by worker id: the principal whose process has this id
        self.batches: dict[str, str] = {}  # by batch id of level 0: the principal that it was sent to
        self.revoked: set[str] = set()
        self._own = f"{THIEF}:{self.chance.getrandbits(64):016x}"
        self._n = 0

    # -- grants -------------------------------------------------------------------------------------------------------

    def principal_of(self, node: "WorkerNode | PeerNode") -> str:
        return f"key_{node.name}" if self.is_on else PROCESS

    def grants(self) -> GrantsChanged:
        """The thief may use every name and level 0. It has a handler of its own, so it never gets an honest step."""
        nodes = [*self.world.workers[: self.world.on_bus], *self.world.peers]
        grants = [
            Grant(
                principal=self.principal_of(node), workers=(node.name,), handlers=("**",), level0=True, slots=1_000_000
            )
            for node in nodes
        ]
        grants.append(Grant(principal=THIEF, workers=("*",), handlers=("evil",), level0=True))
        return GrantsChanged(with_built_in(grant for grant in grants if grant.principal not in self.revoked))

    def is_revoked(self, worker: str) -> bool:
        return self.owners.get(worker) in self.revoked

    def plan(self, phase_ms: float) -> None:
        rates, chance = self.world.faults.rates, self.chance
        for kind, most, strike in (("forged", FORGED_MAX, self._forge), ("revoked", REVOKED_MAX, self._revoke)):
            if kind in self.world.faults.on:
                for number in range(1 + int(most * rates[kind])):
                    at_ms, luck = phase_ms * chance.random() ** 1.3, Random(chance.getrandbits(32))
                    self.world.schedule.at(at_ms, self._strike, kind, number, strike, luck)

    def heal(self) -> None:
        self.revoked.clear()
        self._change_grants()

    def _strike(self, kind: str, number: int, strike: Callable[[Random], None], luck: Random) -> None:
        if self.world.faults.strikes(kind, number):
            strike(luck)

    def _revoke(self, luck: Random) -> None:
        """Revoke a principal. The broker's messages no longer reach it, but what it sends still arrives."""
        nodes: list[Any] = [*self.world.workers[: self.world.on_bus], *self.world.peers, None]
        node = luck.choice(nodes)
        principal, for_ms = THIEF if node is None else self.principal_of(node), 15_000.0 * luck.random() ** 2
        self.revoked.add(principal)
        if node is not None and node.is_alive:
            for link in node.links.values():
                link.down.cut_until_ms = max(link.down.cut_until_ms, self.world.now + for_ms)
        self._change_grants()
        self.world.schedule.after(for_ms, self._admit, principal)

    def _admit(self, principal: str) -> None:
        self.revoked.discard(principal)
        self._change_grants()

    def _change_grants(self) -> None:
        for broker in self.world.brokers:
            if self.is_on and broker.is_alive:
                broker.post("event", self.grants())

    # -- forged frames ------------------------------------------------------------------------------------------------

    def _forge(self, luck: Random) -> None:
        brokers = self.world.brokers
        broker = brokers[0] if len(brokers) == 1 else luck.choice(brokers)
        if not broker.is_alive or broker.is_paused:
            return
        state = broker.state
        # After a restart an id belongs to nobody until its worker returns. Only luck could then find its digits.
        names = [name for name in self.owners if authority.owner_of(state, name) is not None]
        names += [self._own, *(node.id for node in self._inner(broker))]
        worker = luck.choice(names)
        session = state.sessions.get(worker)
        steps = list(session.deliveries.values()) if session is not None else []
        steps = steps or [step for step in state.steps.values() if step.delivery]
        if luck.random() < 0.15:
            broker.post("subscribe", worker, THIEF)
        elif state.level0.handouts and luck.random() < 0.5:
            handout = luck.choice(list(state.level0.handouts.values()))
            step_id = handout.items[0][0] if handout.items else 1
            answer = wire.ResultsLevel0(
                batch_id=handout.id, protocol_version=limits.PROTOCOL_LEVEL_0, results=[_result(luck, step_id, None)]
            )
            broker.post("message", topics.RESULTS + codec.encode(answer), THIEF)
        else:
            step = luck.choice(steps) if steps else None
            item = (1, 1) if step is None else (step.id, step.delivery)
            batch_id = "batch_0_1" if step is None or step.batch_id is None else step.batch_id
            name = worker if luck.random() < 0.9 else self._own
            k = luck.choice((1, 2)) + (session.k if session is not None else 0)
            message = self._message(
                broker,
                luck,
                name,
                session.id if session is not None else f"{state.identity.epoch}.1",
                k,
                item,
                batch_id,
            )
            topic = topics.WORKERS if isinstance(message, _OF_WORKERS) else topics.results_to(broker.id)
            broker.post("message", topic + codec.encode(message), THIEF)

    def _inner(self, broker: "BrokerNode") -> list[Any]:
        """Return the workers inside this broker's process. It knows the digits of no other broker's."""
        return [node for node in self.world.routes.inner if node.is_alive and node.broker is broker]

    def _message(
        self, broker: "BrokerNode", luck: Random, worker: str, session: str, k: int, item: wire.Item, batch_id: str
    ) -> Any:
        self._n += 1
        n = 1_000_000 + self._n
        head: dict[str, Any] = {"v": V, "worker": worker}
        of_session: dict[str, Any] = {**head, "session": session}
        held = [] if luck.random() < 0.5 else [(*item, luck.choice(("running", "done", "queued")), 60_000)]
        match luck.choice(_KINDS):
            case "hello":
                free = {"next": {broker.id: k}, "free": {broker.id: 50}}
                return wire.Hello(**head, n=n, versions=[V], handlers=["evil"], slots=9, holding=held, **free)
            case "heartbeat":
                return wire.Heartbeat(**head, n=n, sessions={broker.id: session}, free={broker.id: 50}, holding=held)
            case "bye":
                return wire.Bye(**head, n=n)
            case "gone":
                return wire.Gone(**head)
            case "accept":
                return wire.Accept(**of_session, batch_id=batch_id, free=50)
            case "refuse":
                code: Any = luck.choice(("bad_message", "too_large", "busy", "unknown_handler", "draining"))
                return wire.Refuse(**of_session, batch_id=batch_id, items=[item], code=code, free=50)
            case "start":
                return wire.Start(**of_session, items=[item])
            case "adopted":
                return wire.Adopted(**of_session, items=[(*item, luck.choice(("unknown", "running")), 5)])
            case "progress":
                return wire.Progress(**of_session, items=[(*item, 1.0, 2.0, "forged")])
            case _:
                return wire.Results(
                    **of_session,
                    deployment=broker.state.identity.deployment,
                    batch_id=batch_id,
                    protocol_version=V,
                    rid=n,
                    n=n,
                    free=50,
                    results=[_result(luck, *item)],
                )

    # -- the invariant ------------------------------------------------------------------------------------------------

    def handle(self, broker: "BrokerNode", event: Any, principal: str, handle: Callable[[], Decision]) -> None:
        """Let the core handle a message. A forged one, and one of a revoked principal, must change nothing."""
        if not self.is_on or not self._is_forged(broker, event, principal):
            handle()
            return
        before = self._snapshot(broker)
        decision = handle()
        self.world.count("forged", type(event).__name__)
        fail = self.world.checks.books.fail
        if self._snapshot(broker) != before:
            fail("S1 forged input changes nothing", f"{event} of {principal}")
        for send in decision.sends:
            worker = topics.worker_of(send.topic)
            if worker is not None and self.owners.get(worker, principal) != principal:
                fail("S1 forged input reaches no other principal", f"{event} of {principal} sent {send.message}")
        # Steps of a level-0 batch from before this start are read first, and then compared with the sender.
        may_read = isinstance(event, wire.ResultsLevel0) or getattr(event, "worker", None) == self._own
        if not may_read and any(isinstance(read, LoadBySteps) for read in decision.reads):
            fail("S1 forged input does nothing", f"{event} of {principal}")

    def subscribe(self, broker: "BrokerNode", worker: str, principal: str) -> None:
        """A peer asks for an inbox, as the bus passes it on."""
        if authority.of_subscription(broker.state, principal, topics.to_worker(worker)) is not None:
            return
        owner = self.owners.get(worker, principal)
        if owner != principal and authority.owner_of(broker.state, worker) == owner:
            self.world.checks.books.fail(
                "S1 an inbox has one principal", f"{worker} of {owner} was given to {principal}"
            )
        if owner == principal:
            broker.turn.handle(Subscribed(worker), principal)

    def _is_forged(self, broker: "BrokerNode", event: Any, principal: str) -> bool:
        if principal == THIEF or principal not in broker.state.principals:
            return True
        if isinstance(event, wire.ResultsLevel0):
            return self.batches.get(event.batch_id, principal) != principal
        worker = getattr(event, "worker", None)
        return worker is not None and self.owners.get(worker, principal) != principal

    def _snapshot(self, broker: "BrokerNode") -> Any:
        """Everything of others that a message of the thief could change."""
        state = broker.state
        return (
            [
                (
                    step.id,
                    step.state,
                    step.delivery,
                    step.attempt,
                    step.granted,
                    step.seen,
                    step.cancel,
                    step.worker,
                    step.batch_id,
                    step.started_ms,
                    step.handle,
                    None if step.session is None else (step.session.worker, step.session.k),
                )
                for step in state.steps.values()
            ],
            [
                (
                    session.worker,
                    session.id,
                    session.principal,
                    session.free,
                    session.slots_free,
                    session.unanswered,
                    session.heard_mono,
                    session.reported_n,
                    session.draining,
                    session.stuck,
                    session.muted,
                    session.confirmed,
                    list(session.deliveries),
                    list(session.unanswered_batches),
                    sorted(session.unknown),
                    sorted(session.asking),
                )
                for session in state.sessions.values()
                if session.principal != THIEF
            ],
            [(worker, list(steps)) for worker, steps in state.recovered.items()],
            [
                (peer.to, peer.doubted, list(peer.unknown), list(peer.holds), peer.completed, peer.failed)
                for peer in state.level0.peers.values()
            ],
            [(handout.id, list(handout.items), handout.over) for handout in state.level0.handouts.values()],
            list(state.level0.expired),
            [(shadow.id, shadow.copied) for shadow in state.shadows.by_id.values()],
            [(worker, k) for worker, k in state.dead_k.items() if not worker.startswith(THIEF)],
            len(state.progress),
            # A task that makes room is marked in the turn of any event.
            [
                (task.id, task.state, len(task.facts), task.dirty and not task.evicting, task.cancelling)
                for task in state.tasks.values()
            ],
        )


def _result(luck: Random, step_id: int, delivery: int | None) -> wire.Result:
    members: dict[str, Any] = {"step_id": step_id}
    if delivery is not None:
        members["delivery"] = delivery
    if luck.random() < 0.6:
        return wire.Result(**members, status="completed", output=msgspec.Raw(b'{"forged":true}'))
    error = wire.ErrorDetail(message="forged", code=luck.choice(("forged", "unknown_handler", "outcome_unknown")))
    return wire.Result(**members, status="failed", error=error)


_KINDS: Final = (
    "hello",
    "hello",
    "heartbeat",
    "bye",
    "gone",
    "gone",
    "accept",
    "refuse",
    "start",
    "adopted",
    "progress",
    "results",
    "results",
    "results",
)
_OF_WORKERS: Final = (wire.Hello, wire.Heartbeat, wire.Bye, wire.Gone)
