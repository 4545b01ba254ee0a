"""Bugs of several brokers on one database: of fences, takes, releases, darkness, and results of other brokers' steps.

Each is searched for in seeds with two brokers, and where that is said, with three.
"""

from typing import Any, Final

from msgspec import structs
from stepwire.session.leases import Leases
from stepwire.session.promises import Promises
from stepwire_broker.api import events
from stepwire_broker.core import letters
from stepwire_broker.core.commit.outbox import Outbox, SendAck
from stepwire_broker.core.lanes import darkness, losing, releasing
from stepwire_broker.core.loading import residency
from stepwire_broker.core.model.commit_group import LaneLost
from stepwire_broker.core.progress import step_outcomes
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import holding, step_results
from stepwire_broker.store.lane import Writing
from stepwire_protocol import messages as wire
from stepwire_protocol import topics

from tests.memory_store.cluster import MemoryCluster
from tests.memory_store.writer import MemoryWriter

from .plant import Bug, Plant

LEASE_MS: Final = 10_000


def _fence_without_epoch(plant: Plant) -> None:
    plant.value(MemoryWriter, "_is_owner", property(lambda self: True))


def _end_read_in_the_take(plant: Plant) -> None:
    """The statement that takes a lane also reads its end: as of before it waited for the lock."""

    def read_taken(original: Any, self: Any, taken: Any) -> Any:
        ends = self.ends_before
        return tuple(
            lane if lane.lane not in ends else type(lane)(lane.lane, lane.epoch, ends[lane.lane], *_rest(lane))
            for lane in original(self, taken)
        )

    plant.method(MemoryCluster, "read_taken", read_taken)


def _rest(lane: Any) -> list[Any]:
    return [getattr(lane, name) for name in lane.__struct_fields__[3:]]


def _heartbeats_acked_in_the_dark(plant: Plant) -> None:
    def silence(original: Any, state: Any, decision: Any, now: Any) -> None:
        acks = [send for send in decision.sends if isinstance(send.message, wire.HeartbeatAck)]
        original(state, decision, now)
        decision.sends = acks

    plant.function(darkness.silence, silence)


def _never_dark(plant: Plant) -> None:
    plant.function(darkness.is_dark, lambda _, state, now: False)


def _safe_from_the_first_sight(plant: Plant) -> None:
    """The former owner's lease to its workers counts from when its row was first seen unchanged, a lease before."""

    def open_lane(original: Any, self: Any, taken: Any, now: Any) -> Any:
        lane = original(self, taken, now)
        lane.safe_at_mono = max(now.mono, lane.safe_at_mono - LEASE_MS)
        self.await_safety(lane.safe_at_mono + 50)
        return lane

    plant.method(BrokerState, "open_lane", open_lane)


def _sessions_of_a_lost_lane_kept(plant: Plant) -> None:
    """Also back from the dark: no worker is reset whose steps another broker owns now."""
    plant.function(losing.expire, lambda original, state, session, now: None)


def _adopted_of_an_earlier_session(plant: Plant) -> None:
    """The broker believes an `adopted` of an earlier session of the worker."""

    def on_adopted(original: Any, state: Any, message: Any, now: Any) -> None:
        session = state.sessions.get(message.worker)
        if session is not None and not session.expired:
            message = structs.replace(message, session=session.id)
        original(state, message, now)

    plant.function(holding.on_adopted, on_adopted)


def _welcome_to_an_earlier_hello(plant: Plant) -> None:
    """The worker believes a `welcome` to a hello that it sent before it dropped its session."""

    def on_welcome(original: Any, self: Any, peer: Any, message: Any, now_ms: float) -> Any:
        peer.n_after = -1
        _, k = topics.session_parts(message.session)
        if k < peer.next:
            peer.next = k
        return original(self, peer, message, now_ms)

    plant.method(Leases, "on_welcome", on_welcome)


def _not_held_after_a_loss(plant: Plant) -> None:
    plant.function(step_outcomes.hold_restored, lambda original, state, task, now: 0)


# -- results ----------------------------------------------------------------------------------------------------------


def _foreign_results_acked(plant: Plant) -> None:
    def on_results(original: Any, state: Any, message: Any, now: Any, *more: Any) -> None:
        original(state, message, now, *more)
        if any(state.is_foreign(result.step_id) for result in message.results):
            state.outbox.send(SendAck(topics.to_worker(message.worker), letters.ack(state.identity, message.rid)))

    plant.function(step_results.on_results, on_results)


def _foreign_results_load_their_tasks(plant: Plant) -> None:
    plant.method(BrokerState, "is_foreign", lambda original, self, number: False)
    plant.function(residency.of_own_lanes, lambda original, state, loaded, load: loaded)


# -- releases ---------------------------------------------------------------------------------------------------------


def _released_before_its_last_group(plant: Plant) -> None:
    plant.method(Outbox, "is_settled", lambda original, self, number: True)


def _released_with_steps_that_wait(plant: Plant) -> None:
    def can_be_asked(original: Any, state: Any, session: Any, step: Any) -> bool:
        seen, step.seen = step.seen, "running"
        try:
            return bool(original(state, session, step))
        finally:
            step.seen = seen

    plant.function(releasing._can_be_asked, can_be_asked)


def _released_with_workers_of_its_own(plant: Plant) -> None:
    """The lane goes although only this broker can ask the worker about its run."""
    plant.function(
        releasing._can_be_asked,
        lambda original, state, session, step: not session.expired and step.seen == "running",
    )


# -- commits and controls ---------------------------------------------------------------------------------------------


def _lost_answer_is_a_lost_lane(plant: Plant) -> None:
    """The answer to a COMMIT was lost, and the group that is sent again finds itself committed."""

    def not_advanced(original: Any, self: Any) -> Any:
        original(self)
        return LaneLost(self._number)

    plant.method(Writing, "_not_advanced", not_advanced)


def _order_carried_out_again(plant: Plant) -> None:
    """The owner does not write the answer of an order in the transaction of its effect."""

    def write(original: Any, self: Any, answers: Any) -> None:
        return None

    plant.method(MemoryWriter, "answer_orders", write)


def _controls_are_one_value(plant: Plant) -> None:
    """A broker writes all controls of a kind from its memory, without those that others have set since it started."""
    writers: dict[tuple[int, str, str], tuple[str | None, int | None]] = {}  # by tables, kind and name

    def set_control(original: Any, self: Any, control: Any) -> None:
        tables = self._tables
        mine = tables.lanes[self._lane][:2]
        for kind, name in list(tables.controls):
            by = writers.get((id(tables), kind, name), mine)
            if kind == control.kind and by[0] != mine[0] and (by[1] or 0) > 0:
                tables.controls.pop((kind, name))
        writers[id(tables), control.kind, control.name] = mine
        original(self, control)

    plant.method(MemoryWriter, "set_control", set_control)


def _cursors_of_one_lane(plant: Plant) -> None:
    """A cursor names one lane only. Another broker begins the other lanes at their first event."""

    def cursor_of(original: Any, positions: Any) -> str:
        lane = max(positions)
        return str(original({lane: positions[lane]}))

    plant.function(events.cursor_of, cursor_of)


# -- workers ----------------------------------------------------------------------------------------------------------


def _credit_lent_at_once(plant: Plant) -> None:
    """A worker offers places to a broker that another one may still use."""
    plant.value(Promises, "promised", property(lambda self: 0))


BUGS: Final = (
    Bug("cluster: the fence compares no epoch", _fence_without_epoch, brokers=2),
    Bug(
        "cluster: the end of a lane is read by the statement that takes it",
        _end_read_in_the_take,
        brokers=2,
        always=frozenset({"late_commit", "broker_paused", "broker_away"}),
        is_rare=True,
    ),
    Bug("cluster: a dark broker acks heartbeats", _heartbeats_acked_in_the_dark, brokers=2),
    Bug("cluster: no broker is ever dark", _never_dark, brokers=2),
    Bug("cluster: safe_at counts from the first sight of a silent broker", _safe_from_the_first_sight, brokers=2),
    Bug("cluster: the workers of a lost lane are not reset", _sessions_of_a_lost_lane_kept, brokers=2, is_rare=True),
    Bug("cluster: results of another broker's steps are acked", _foreign_results_acked, brokers=2),
    Bug("cluster: results of another broker's steps load their tasks", _foreign_results_load_their_tasks, brokers=2),
    Bug("cluster: a lane is released before its last group", _released_before_its_last_group, brokers=2),
    Bug("cluster: a lane is released with steps that wait", _released_with_steps_that_wait, brokers=2),
    Bug(
        "cluster: a lane goes with a run that only its owner asks about",
        _released_with_workers_of_its_own,
        brokers=2,
    ),
    Bug("cluster: a lost answer to a COMMIT is taken for a lost lane", _lost_answer_is_a_lost_lane, brokers=2),
    Bug("cluster: the answer of an order is not written with its effect", _order_carried_out_again, brokers=2),
    Bug("cluster: the controls of a kind are one value", _controls_are_one_value, brokers=2, is_rare=True),
    Bug(
        "cluster: an `adopted` of an earlier session is believed",
        _adopted_of_an_earlier_session,
        brokers=2,
        is_rare=True,
    ),
    Bug("cluster: a `welcome` to an earlier hello is believed", _welcome_to_an_earlier_hello, brokers=2, is_rare=True),
    Bug(
        "cluster: no step is held after lost commits",
        _not_held_after_a_loss,
        brokers=2,
        always=frozenset({"commits_lost"}),
    ),
    Bug("cluster: the cursor of a follower names one lane", _cursors_of_one_lane, brokers=2),
    Bug("cluster: a worker lends credit before it has it back", _credit_lent_at_once, brokers=2),
)
