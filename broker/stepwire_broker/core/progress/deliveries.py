"""The link between a step's current delivery and the session that holds it: set and removed only here."""

from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.state import BrokerState


def hand_to(step: Step, session: WorkerSession) -> None:
    """Record that this session holds the step's current delivery."""
    step.session = session
    session.deliveries[step.id] = step
    if step.is_suspect:
        session.suspects += 1


def remove_delivery(state: BrokerState, step: Step) -> None:
    """Remove the step's current delivery from its session, or from the deliveries recovered after a start."""
    session = step.session
    if session is not None:
        session.deliveries.pop(step.id, None)
        session.asking.discard(step.id)
        if step.is_suspect:
            session.suspects -= 1
        step.session = None
    elif step.worker is not None and state.recovered:
        of_worker = state.recovered.get(step.worker)
        if of_worker is not None and of_worker.pop(step.id, None) is not None and not of_worker:
            del state.recovered[step.worker]
    if state.guards.probes:
        allowance.gave_up(state, step)
    step.batch = None
    step.seen = step.cancel = None
    if state.progress:
        state.progress.pop(step.id, None)
