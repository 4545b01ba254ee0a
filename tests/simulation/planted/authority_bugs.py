"""Bugs that let a frame count although its sender may not send it."""

from typing import Any, Final

from stepwire_broker.core.model.worker_session import is_inner_name
from stepwire_broker.core.workers import authority
from stepwire_protocol import messages as wire
from stepwire_protocol import topics

from .plant import Bug, Plant


def _anyone_may_send(*kinds: type) -> Any:
    def plant(plant: Plant) -> None:
        def of_message(original: Any, state: Any, principal: str, message: Any) -> Any:
            return None if isinstance(message, kinds) else original(state, principal, message)

        plant.function(authority.of_message, of_message)

    return plant


def _higher_number_wins(plant: Plant) -> None:
    def of_message(original: Any, state: Any, principal: str, message: Any) -> Any:
        if isinstance(message, wire.Hello) and message.worker in state.sessions:
            return None
        return original(state, principal, message)

    plant.function(authority.of_message, of_message)


def _inner_ids_accepted(plant: Plant) -> None:
    def of_message(original: Any, state: Any, principal: str, message: Any) -> Any:
        worker = getattr(message, "worker", "")
        if is_inner_name(worker, state.identity.broker, state.router.executors):
            return None
        return original(state, principal, message)

    plant.function(authority.of_message, of_message)


def _revoked_results_count(plant: Plant) -> None:
    """The session is compared, and not whether its principal still has a grant."""

    def of_message(original: Any, state: Any, principal: str, message: Any) -> Any:
        session = state.sessions.get(getattr(message, "worker", ""))
        if isinstance(message, wire.Results) and session is not None and session.principal == principal:
            return None
        return original(state, principal, message)

    plant.function(authority.of_message, of_message)


def _inbox_for_anyone(plant: Plant) -> None:
    def of_subscription(original: Any, state: Any, principal: str, topic: bytes) -> Any:
        return None if topics.worker_of(topic) else original(state, principal, topic)

    plant.function(authority.of_subscription, of_subscription)


BUGS: Final = (
    Bug("the principal is ignored for results", _anyone_may_send(wire.Results, wire.ResultsLevel0)),
    Bug("the principal is ignored for gone", _anyone_may_send(wire.Gone)),
    Bug("the principal is ignored for a hello with a higher number", _higher_number_wins),
    Bug("ids of workers inside the process are accepted from a socket", _inner_ids_accepted),
    Bug("a result of a revoked principal is applied", _revoked_results_count),
    Bug("an inbox is granted to a second principal", _inbox_for_anyone),
)
