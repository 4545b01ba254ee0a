"""An operator drains a worker: it gets no further steps, also after a restart of the broker.

A level-0 handler is drained until its subscription ends: nothing names it in another connection.
"""

from collections.abc import Callable
from typing import Final

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.commit.operator_controls import DrainedWorker, control
from stepwire_broker.core.model.commit_group import AuditPart
from stepwire_broker.core.model.events import Command, CommandOfOperator, Now
from stepwire_broker.core.state import QUIETED_REMEMBERED_MAX, BrokerState


class DrainWorker(CommandOfOperator, frozen=True):
    """Send this worker no further steps; with `quit`, the worker ends when it holds no step."""

    worker: str
    quit: bool = False


class Quieted(Answer, frozen=True):
    """The worker gets no further steps. The ack of its next heartbeat informs it."""

    worker: str
    quit: bool


def on_drain_worker(state: BrokerState, event: DrainWorker, now: Now) -> None:
    """Send this worker nothing new, even in a later session of the same process."""
    peer = next((peer for peer in state.level0.peers.values() if peer.worker == event.worker), None)
    if peer is not None:
        peer.draining = True
        state.audit(event, "drain_worker", f"worker {peer.worker}", now, detail={"quit": False})
        state.answer(event.request, Quieted(peer.worker, quit=False))
        return
    session = state.sessions.get(event.worker)
    if session is None:
        message = f"no worker {event.worker} is connected to this broker"
        state.refuse_now(event.request, CommandRefused("not_found", message))
        return
    session.draining = True
    quits = event.quit or state.quieted.get(event.worker, False)
    state.quieted[event.worker] = quits
    if len(state.quieted) > QUIETED_REMEMBERED_MAX:
        state.forget_quieted(next(iter(state.quieted)))
    change = control(event.worker, DrainedWorker(quits, now.wall))
    state.set_control(change)
    part: AuditPart = ("control", f"{change.kind} {change.name}")
    state.audit(event, "drain_worker", f"worker {event.worker}", now, part=part, detail={"quit": quits})
    state.answer(event.request, Quieted(event.worker, quits))


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {DrainWorker: on_drain_worker}
