"""L: each lane has one owner. Only the owner writes the lane and speaks of it, and only it has its tasks in memory."""

from tests.memory_store.tables import LaneOwner
from tests.simulation.broker_node import BrokerNode

from .books import Books


def check_commit(books: Books, lane: int, writer_of: LaneOwner) -> None:
    """L1: a transaction is durable now. Its lane has the owner and the epoch for which the writer was opened, and its
    sequence follows the one before."""
    tables = books.world.tables
    row, seq = tables.lanes[lane], tables.seqs[lane]
    if row != writer_of:
        books.fail("L1 only its owner writes a lane", f"lane {lane}: {writer_of} wrote, and {row} owns it")
    if seq != books.last_seq.get(lane, 0) + 1:
        books.fail("L1 a lane's sequence has no gap", f"lane {lane}: {seq} follows {books.last_seq.get(lane, 0)}")
    books.last_seq[lane] = seq


def _kept(broker: BrokerNode) -> set[int]:
    return {number for number, lane in broker.state.lanes.items() if lane.release is None or not lane.release.is_due}


def check_memory(books: Books, broker: BrokerNode) -> None:
    """L4: the tasks in a broker's memory are of lanes that it has opened. L2: no other broker that may speak has opened
    one of them. A lane whose release was sent to the database may be another broker's already: its owner decides
    nothing more in it that a commit would not refuse."""
    lanes = broker.state.outbox.lanes
    for task in broker.state.tasks.values():
        if task.lane not in lanes:
            books.fail("L4 a broker has only tasks of its lanes", f"task {task.id} of lane {task.lane} at {broker.id}")
    if broker.state.lanes.keys() != lanes.keys():
        books.fail("L4 a broker has only tasks of its lanes", f"{list(broker.state.lanes)} and {list(lanes)}")
    for other in books.world.brokers:
        if other is not broker and other.is_alive and not (broker.is_dark or other.is_dark):
            both = _kept(broker) & _kept(other)
            if both:
                books.fail("L2 a lane has one owner that may speak", f"{sorted(both)} at {broker.id} and {other.id}")


def check_speaks(books: Books, broker: BrokerNode, what: object) -> None:
    """L3: something leaves a broker, whose lease is not over."""
    if broker.is_dark:
        books.fail("L3 a dark broker sends nothing", f"{broker.id} sent {what!r}")


def check_gone(books: Books, broker: BrokerNode, lane: int, writer_of: LaneOwner) -> None:
    """L1: a broker forgets a lane as lost. Another broker has taken it, or this one has taken it again."""
    if books.world.tables.lanes[lane].epoch == writer_of.epoch:
        books.fail("L1 a lane is lost only to another owner", f"lane {lane} is still {broker.id}'s: {writer_of}")


def check_release(books: Books, broker: BrokerNode, lane: int) -> None:
    """L2: a broker decides that a lane may go. All its groups are durable. What it has at workers runs, and the other
    living brokers can ask these workers."""
    world, state = books.world, broker.state
    books.numbers["lanes released"] += 1
    handed, stored = broker.handed.get(lane, 0), world.tables.seqs[lane]
    if stored < handed:
        books.fail(
            "L2 a lane goes after its last group", f"lane {lane} of {broker.id}: {handed} handed, {stored} stored"
        )
    others = [other for other in world.brokers if other is not broker and other.is_alive]
    known = [other for other in others if other.id in state.live_brokers]
    workers = {worker.id: worker for worker in world.workers if worker.is_alive}
    for session in state.sessions.values():
        worker = workers.get(session.worker)
        for step in session.deliveries.values() if worker is not None else ():
            if step.task.lane != lane:
                continue
            if not books.steps[step.id].runs_of(step.delivery):
                books.fail("L2 a lane goes without steps that wait", f"lane {lane}, step {step.id} at {session.worker}")
            assert worker is not None
            unreached = [other.id for other in known if other.id not in worker.links]
            if unreached:
                books.fail(
                    "L2 a lane goes without runs that no other broker can ask about",
                    f"lane {lane}, step {step.id} at {session.worker}, which does not reach {unreached}",
                )


def check_balance(books: Books) -> None:
    """L6: the faults ended long ago. Each lane is served, and the shares of the brokers differ by at most one."""
    world = books.world
    shares = {broker.id: len(broker.state.lanes) for broker in world.brokers if broker.is_alive}
    served = {lane for broker in world.brokers if broker.is_alive for lane in broker.state.lanes}
    if served != world.tables.lanes.keys():
        books.fail("L6 every lane is served", f"{sorted(served)} of {sorted(world.tables.lanes)}")
    if len(shares) < len(world.brokers) or max(shares.values()) > min(shares.values()) + 1:
        books.fail("L6 the shares are equal", f"{shares}")


def check_steady(books: Books, before: dict[int, LaneOwner]) -> None:
    """L6: nothing happened, so no lane has moved."""
    if before != books.world.tables.lanes:
        books.fail("L6 steady brokers move no lane", f"{before}, and then {books.world.tables.lanes}")
