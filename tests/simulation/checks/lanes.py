"""L: what the core counts of its lanes, and what it sends, is of lanes that it owns."""

from stepwire_broker.core.shadows.shadow import FIRST
from stepwire_protocol import codec
from stepwire_protocol import messages as wire

from tests.simulation.broker_node import BrokerNode

from .books import Books

NAMED = (b"step", b'go",', b"adop")  # the beginnings of types of messages that name steps which a broker owns


def check_counts(books: Books, broker: BrokerNode) -> None:
    """The counts of the broker are the sums of those of its lanes, and those of a lane equal a recount of its rows."""
    state, tables = broker.state, books.world.tables
    lanes = state.lanes.values()
    by_namespace = {name: 0 for lane in lanes for name in lane.open_by_namespace}
    for lane in lanes:
        for name, steps in lane.open_by_namespace.items():
            by_namespace[name] += steps
    if (by_namespace, sum(by_namespace.values())) != (state.open_by_namespace, state.open_steps):
        books.fail("L lanes add up", f"{by_namespace}, and the broker counts {state.open_by_namespace}")
    if sum(lane.unloaded for lane in lanes) != state.unloaded:
        books.fail("L lanes add up", f"{[lane.unloaded for lane in lanes]} unloaded, and in all {state.unloaded}")
    if not broker.is_alive or state.building:
        return
    undecided = {task_id for each in state.undecided.values() for task_id in each.ids}
    for lane in lanes:
        if tables.lanes[lane.number].epoch == lane.epoch:
            rows = [row.id for row in tables.open_tasks if row.lane == lane.number]
            unloaded = [task_id for task_id in rows if task_id not in state.tasks and task_id not in undecided]
            if len(unloaded) != lane.unloaded:
                books.fail("L lanes count what is unloaded", f"{lane.unloaded} in lane {lane.number}: {unloaded}")


def check_sent(books: Books, broker: BrokerNode, body: bytes) -> None:
    """A message names steps of lanes that the broker owns. A cancel may name any step."""
    if body[9:13] not in NAMED:
        return
    message = codec.decode_broker(body)
    if isinstance(message, wire.Steps):
        step_ids = [step.step_id for step in message.steps]
    else:
        assert isinstance(message, wire.Go | wire.Adopt), message
        step_ids = [item[0] for item in message.items]
    for step_id in step_ids:
        if step_id < FIRST and broker.state.lane_of(step_id) not in broker.state.lanes:
            books.fail("L nothing of a lost lane is said", f"step {step_id} in {message}")
