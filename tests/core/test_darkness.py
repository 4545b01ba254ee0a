"""A dark broker sends nothing: its lease in the database may be over. The shipped turn checks it before every send."""

from typing import Any

from stepwire_broker.core.answers.answers import CommandRefused, TasksSubmitted
from stepwire_broker.core.commit.decision import Decision
from stepwire_broker.core.membership.cluster_rows import Beaten, BrokerRow, LaneOwner
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.principal import PROCESS
from stepwire_broker.stages.turn import Around, Turn
from stepwire_protocol import codec
from stepwire_protocol import messages as wire

from .world import BROKER, ONE, W, World

LEASE_MS = 10_000
DARK_MS = 9_400


class Turning(World):
    """A world in which the shipped turn carries the decisions out. It is also the wire of that turn."""

    def __init__(self) -> None:
        super().__init__()
        self.state.members = Members(BROKER, 7, "1", LEASE_MS, self.mono)

    def handle(self, event: Any, principal: str = PROCESS) -> None:
        turn = self.turn
        turn.handle(event, principal)
        turn.flush()
        while self.answers_reads and self.reads:
            self.read()

    def flush(self) -> None:
        self.turn.flush()

    @property
    def turn(self) -> Turn:
        def ignore(_: Any) -> None:
            pass

        around = Around(
            clock=lambda: self.now,
            wire=self,
            put=self._put,
            answer=self._answer,
            read=self.reads.append,
            watch=ignore,
            breaker_changed=ignore,
            complain=ignore,
            progressed=ignore,
            offers_left_out=ignore,
            worker_news=ignore,
            lane_gone=ignore,
            conclude=ignore,
        )
        return Turn(self.machine, around)

    def _put(self, group: CommitGroup) -> None:
        self.writings[group.lane] = group
        if self.auto:
            self.commit(group.lane)

    def _answer(self, decision: Decision) -> None:
        for each in decision.answers:
            self.answers[each.request] = each.answer

    def send(self, topic: bytes, body: bytes) -> bool:
        self._deliver(topic + body)
        return True

    def send_frame(self, frame: bytes) -> bool:
        self._deliver(frame)
        return True

    def grant(self, to: str) -> None:
        self.granted.append(to)

    def send_to_peer(self, to: str, body: bytes) -> bool:
        self.handed.append(codec.decode_steps_level0(body))
        return True

    def renew(self) -> None:
        """A beat succeeds, and shows that the broker owns its lanes."""
        row = BrokerRow(id=BROKER, epoch=7, beat=1, lease_ms=LEASE_MS)
        lanes = tuple(LaneOwner(n, BROKER, 7, lane.epoch) for n, lane in self.state.lanes.items())
        self.handle(Beaten(sent_mono=self.mono, received_mono=self.mono, brokers=(row,), lanes=lanes))


def dark(world: Turning) -> Turning:
    world.mono += DARK_MS
    assert world.state.members is not None
    assert world.state.members.is_dark(world.mono)
    world.forget()
    return world


def test_a_dark_broker_neither_welcomes_nor_acknowledges_nor_hands_out() -> None:
    world = Turning()
    world.apply(ONE)
    world.hello()
    task_id = world.task(ONE)
    batch = world.batches()[0]
    dark(world)
    world.hello("w9:0000000000000009")
    world.beat(n=3)
    world.result(batch)
    assert world.sent == []
    assert world.row(task_id).state == "completed"  # its rows are still fenced by the epoch of the lane


def test_a_request_to_a_dark_broker_is_refused_and_its_rows_may_be_stored() -> None:
    world = Turning()
    world.apply(ONE)
    dark(world)
    answer = world.submit()
    assert isinstance(answer, CommandRefused)
    assert answer.code == "broker_dark"
    assert len(world.rows.tasks) == 1


def test_a_broker_back_from_the_dark_goes_on_with_its_sessions_and_tasks() -> None:
    world = Turning()
    world.hello()
    world.apply(ONE)
    dark(world)
    world.submit()
    assert world.batches() == []
    world.renew()
    (batch,) = world.batches(W)
    world.beat(n=3)
    assert isinstance(world.last(wire.HeartbeatAck), wire.HeartbeatAck)
    world.result(batch)
    assert world.acked
    assert isinstance(world.submit(), TasksSubmitted)


def test_steps_for_level_0_that_a_dark_broker_did_not_send_are_handed_out_later() -> None:
    world = Turning()
    world.auto = False
    world.peer()
    world.settle()
    world.apply(ONE)
    world.settle()
    world.submit()
    assert world.writing is not None
    assert world.writing.steps_dispatched  # handed out when this group is durable
    dark(world)
    world.settle()
    assert world.handed == []
    world.renew()
    world.settle()
    assert len(world.handed) == 1
