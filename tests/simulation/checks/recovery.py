"""P7 and P8: a dead worker's steps are free in time, a live worker keeps its own, a restarted broker dispatches."""

from typing import Any, Final

import msgspec

from tests.simulation.broker_node import BrokerNode
from tests.simulation.faults import DEATH_KINDS, RESTART_KINDS
from tests.simulation.worker_node import WorkerNode

from .books import Books

PROVEN_MS: Final = 2_000.0
SILENT_MARGIN_MS: Final = 1_000.0
RESTARTED_MS: Final = 3_000.0
CURRENT_SHARE: Final = 0.97  # of a lease: a heartbeat in this time proves that the worker is alive
FAR_OFF_MS: Final = 5_000  # a step that waits longer than this must make room


# -- workers ----------------------------------------------------------------------------------------------------------


class _Alive(msgspec.Struct):
    """The members of a hello or heartbeat that identify it."""

    worker: str
    sessions: dict[str, str] = {}
    next: dict[str, int] = {}
    n: int = 0


def note_alive(books: Books, broker: BrokerNode, frame: bytes) -> None:
    """A frame reached a broker's process, which may be suspended: note which worker it proves to be alive."""
    is_beat = frame.startswith(b'workers {"type":"heartbeat"')
    if not is_beat and not frame.startswith(b'workers {"type":"hello"'):
        return
    message = msgspec.json.decode(frame[8:], type=_Alive)
    worker = message.worker
    if books.world.hostile.is_revoked(worker):
        return  # the broker refuses it
    of = broker.id, worker
    is_old = message.n <= books.last_n.get(of, -1)
    books.last_n[of] = max(message.n, books.last_n.get(of, -1))
    session = broker.state.sessions.get(worker)
    if session is None:
        return
    if session.muted:
        books.muted.add(of)
    if is_old:
        return  # a late or repeated message proves nothing about now
    if message.sessions.get(broker.id) == session.id if is_beat else message.next.get(broker.id, 0) >= session.k:
        books.reached_ms[of] = books.world.now
        if not broker.is_paused:
            books.read_ms[of] = books.world.now


def note_death(books: Books, worker: WorkerNode) -> None:
    if worker.is_provable:
        books.provable[worker.id] = worker.host
    books.died_ms[worker.id] = books.world.now


def check_lost(books: Books, step_id: int, worker_id: str, fact: list[Any]) -> None:
    """The broker declares the session of this worker lost."""
    if any(worker.is_alive and worker.id == worker_id for worker in books.world.workers):
        _check_silent(books, step_id, worker_id, fact)
    elif books.world.faults.on <= DEATH_KINDS:  # the deaths are the only faults, so each is detected in time
        _check_detected(books, step_id, worker_id, fact[1])


def _check_silent(books: Books, step_id: int, worker_id: str, fact: list[Any]) -> None:
    broker = books.owner_of(step_id)
    of, lease_ms = (broker.id, worker_id), broker.settings.bus.lease_ms
    decided_ms = min(books.world.now, broker.clock.true_of_wall(fact[1], books.world.now))
    reached_ms = books.reached_ms.get(of, -1e12)
    if reached_ms > broker.paused_since_ms > books.read_ms.get(of, -1e12) + lease_ms * CURRENT_SHARE:
        return  # it was silent for a lease before the suspension, and its later messages were not read yet
    if decided_ms - lease_ms * CURRENT_SHARE < reached_ms <= decided_ms and of not in books.muted:
        books.fail("P8 a worker that sends heartbeats is not lost", f"step {step_id} at {worker_id}: {fact}")


def _check_detected(books: Books, step_id: int, worker_id: str, wall_ms: int) -> None:
    broker = books.owner_of(step_id)
    died_ms, taken_ms = books.died_ms[worker_id], books.taken_ms(step_id)
    took_ms = broker.clock.true_of_wall(wall_ms, books.world.now) - max(died_ms, taken_ms)
    # The owner of a lane that was taken may not have met the worker, to which the former owner may have given a lease.
    is_provable = books.provable.get(worker_id) == broker.host and taken_ms == 0
    bound_ms = PROVEN_MS if is_provable else broker.settings.bus.lease_ms * 1.03 + SILENT_MARGIN_MS
    books.numbers["deaths timed"] += 1
    if took_ms > bound_ms:
        books.fail("P7 a dead worker's steps are free in time", f"step {step_id} after {took_ms:.0f} ms")


# -- the broker -------------------------------------------------------------------------------------------------------


def watch_restart(books: Books, broker: BrokerNode) -> None:
    if books.world.faults.on <= RESTART_KINDS:
        books.world.schedule.after(RESTARTED_MS, _check_dispatches, books, broker, broker.life, books.world.now)


def _check_dispatches(books: Books, broker: BrokerNode, life: int, since_ms: float) -> None:
    """The broker has run for a while: if a worker is free for a step that has long been ready, it has dispatched."""
    world = books.world
    if not broker.is_alive or broker.life != life or books.dispatched_ms.get(broker.id, -1.0) > since_ms:
        return
    if broker.leaving == life:
        return  # the broker is draining
    if world.routes.is_on:
        return  # the rules decide which worker is free for a step
    books.numbers["restarts timed"] += 1
    is_full = _is_full(books, broker)
    ready_by = broker.now().wall - RESTARTED_MS
    for step_id, book in books.steps.items():
        stored = world.tables.steps[step_id].stored
        if book.state != "ready" or stored.ready_ms is None or stored.ready_ms > ready_by:
            continue
        if world.owner_of(step_id) is not broker:
            continue
        if stored.task_id not in broker.state.tasks and is_full:
            continue  # memory is full of tasks that run, or will within seconds
        name = world.tables.steps[step_id].handler_class
        if stored.attempt and world.breakers.is_on and _is_at_rest(books, stored.task_id, ready_by):
            continue  # its retry budget delays this retry: until then it is in the database, and becomes due there
        if not world.breakers.is_closed(broker, name):
            continue  # its handler was running before that start, and has reported since that it is down
        if books.tasks[stored.task_id].state == "running" and any(
            s.credit > 0 and s.offers(name) for s in broker.state.sessions.values()
        ):
            books.fail("P8 a restarted broker dispatches within 3 s", f"step {step_id} is still ready")


def _is_full(books: Books, broker: BrokerNode) -> bool:
    limits = broker.settings.limits
    return len(broker.state.tasks) >= limits.max_active_tasks or (
        broker.state.resident_bytes > limits.active_bytes and _is_any_task_moving(books, broker)
    )


def _is_any_task_moving(books: Books, broker: BrokerNode) -> bool:
    """A task in memory runs, or will within seconds. Then no task need make room."""
    soon_ms = broker.now().wall + FAR_OFF_MS
    return any(
        row.stored.state in ("ready", "dispatched")
        or (row.stored.state == "retry_wait" and (row.stored.not_before_ms or 0) <= soon_ms)
        for row in books.world.tables.steps.values()
        if row.stored.task_id in broker.state.tasks
    )


def _is_at_rest(books: Books, task_id: int, at_ms: float) -> bool:
    """True if the task was in the database at this time, and not due before it."""
    row = books.world.tables.tasks[task_id]
    return row.stored and row.wants is None and row.wake_ms is not None and row.wake_ms > at_ms


def fail_stuck(books: Books) -> None:
    """After all faults have ended, some task has not."""
    lines = []
    for task_id in sorted(books.open_tasks)[:3]:
        row = books.world.tables.tasks[task_id]
        steps = [(s.id, s.state, s.delivery, s.worker, s.reason) for s in books.world.tables.stored_steps(task_id)]
        live = any(broker.is_alive and task_id in broker.state.tasks for broker in books.world.brokers)
        lines.append(f"task {task_id} {row.state} {row.attention} in memory: {live}, steps {steps}")
    waiting = [s.number for s in books.world.people.submissions if not s.is_over]
    books.fail("P8 every task ends", f"stuck: {lines}; submissions not answered: {waiting}")
