"""The requirements of each frame on its sender, in one table.

The bus asks about subscriptions, the core about messages.

The connection proves the principal; every name inside a frame is a claim. A worker's id belongs to the principal that
first used it, as long as a session, an inbox or the memory of an ended session exists. Frames that are refused change
nothing.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from stepwire_protocol import messages as wire
from stepwire_protocol import topics

from stepwire_broker.core.model.principal import PROCESS, SESSIONS_MAX, Rights
from stepwire_broker.core.model.worker_session import is_inner_name
from stepwire_broker.core.state import BrokerState

LEVEL0_TOPICS: Final = (topics.STEPS, topics.STEPS.rstrip())

UNAUTHORIZED: Final = "unauthorized"
FOREIGN_INBOX: Final = "foreign_inbox"
LEVEL0: Final = "level0"
SUBSCRIPTION: Final = "subscription"
WRONG_SENDER: Final = "wrong_sender"


class Refusal(NamedTuple):
    """Why a frame is refused: a code, and a sentence about the sender's grant."""

    code: str
    message: str


class Requirement(NamedTuple):
    """`is_met(state, rights, claim)`: `claim` is the worker or the batch that the frame names."""

    code: str
    is_met: Callable[[BrokerState, Rights, str], bool]
    violation: str  # with {principal} and {claim}


# -- requirements -----------------------------------------------------------------------------------------------------


def _name_is_allowed(state: BrokerState, rights: Rights, worker: str) -> bool:
    return rights.allows_worker(worker.partition(":")[0])


def _is_outside_the_process(state: BrokerState, rights: Rights, worker: str) -> bool:
    """No socket reaches the broker from inside its process, so a message that names such a worker is forged."""
    is_inside = is_inner_name(worker, state.identity.broker, state.router.executors)
    return not is_inside or rights.grant.principal == PROCESS


def _belongs_to_sender(state: BrokerState, rights: Rights, worker: str) -> bool:
    return owner_of(state, worker) in (None, rights.grant.principal)


def _may_take_level0(state: BrokerState, rights: Rights, claim: str) -> bool:
    return rights.grant.level0


def _received_the_batch(state: BrokerState, rights: Rights, batch_id: str) -> bool:
    """A batch from before this start is compared by the name under which it is stored: `level0.on_results`."""
    level0 = state.level0
    handout = level0.handouts.get(batch_id)
    peer = handout.peer if handout is not None else level0.expired.get(batch_id)
    return peer is None or peer.principal == rights.grant.principal


def _named(code: str) -> tuple[Requirement, ...]:
    return (
        Requirement(code, _name_is_allowed, "the grant of `{principal}` does not allow the worker `{claim}`"),
        Requirement(code, _is_outside_the_process, "`{claim}` is a worker inside the broker's process"),
        Requirement(code, _belongs_to_sender, "the worker `{claim}` belongs to another principal than `{principal}`"),
    )


_AT_LEVEL0: Final = Requirement(LEVEL0, _may_take_level0, "the grant of `{principal}` does not include level 0")
_OF_A_WORKER: Final = _named(UNAUTHORIZED)

# Each frame requires a principal with a grant, and these in order. `hello` also requires what `outside_grant` checks.
REQUIRED: Final[dict[str | type, tuple[Requirement, ...]]] = {
    # subscriptions; any other is refused with the code `subscription`
    "@<worker> ": _named(FOREIGN_INBOX),
    "steps": (_AT_LEVEL0,),
    "brokers ": (),
    # messages
    wire.Hello: _OF_A_WORKER,
    wire.Heartbeat: _OF_A_WORKER,
    wire.Bye: _OF_A_WORKER,
    wire.Gone: _OF_A_WORKER,
    wire.Accept: _OF_A_WORKER,
    wire.Refuse: _OF_A_WORKER,
    wire.Start: _OF_A_WORKER,
    wire.Results: _OF_A_WORKER,
    wire.Adopted: _OF_A_WORKER,
    wire.Progress: _OF_A_WORKER,
    wire.ResultsLevel0: (
        _AT_LEVEL0,
        Requirement(WRONG_SENDER, _received_the_batch, "the batch {claim} was sent to another principal"),
    ),
}


# -- the questions ----------------------------------------------------------------------------------------------------


def of_subscription(state: BrokerState, principal: str, topic: bytes) -> Refusal | None:
    """Return why this principal may not receive this topic, or None."""
    if topic in LEVEL0_TOPICS:
        return _first_violated(state, principal, "steps", "")
    if topic == topics.BROKERS:
        return _first_violated(state, principal, "brokers ", "")
    worker = topics.worker_of(topic)
    if worker is None:
        return Refusal(SUBSCRIPTION, "no peer receives this topic")
    return _first_violated(state, principal, "@<worker> ", worker)


def of_message(state: BrokerState, principal: str, message: Any) -> Refusal | None:
    """Return why this principal may not send this message, or None."""
    if isinstance(message, wire.ResultsLevel0):
        return _first_violated(state, principal, wire.ResultsLevel0, message.batch_id)
    session = state.sessions.get(message.worker)
    if session is not None and session.principal == principal and session.rights is not None:
        return None
    return _first_violated(state, principal, type(message), message.worker)


def may_answer(state: BrokerState, principal: str, worker: str) -> bool:
    """True if what the broker sends to this worker's inbox reaches no other principal, now or once it is subscribed."""
    receiver = state.inboxes.get(worker)
    return receiver in (None, principal) and owner_of(state, worker) in (None, principal)


def owner_of(state: BrokerState, worker: str) -> str | None:
    """Return the principal that this worker's id belongs to; None if no principal has used the id."""
    session = state.sessions.get(worker)
    if session is not None:
        return session.principal
    attached = state.attached.get(worker)
    if attached is not None:
        return attached.principal
    return state.inboxes.get(worker) or state.former_owners.get(worker)


def rights_of(state: BrokerState, principal: str) -> Rights | None:
    return state.principals.get(principal) or state.token_rights.get(principal)


def outside_grant(state: BrokerState, rights: Rights, hello: wire.Hello) -> str | None:
    """Return the first thing that a hello offers and that its sender's grant does not allow, or None."""
    grant = rights.grant
    whose = f"the grant of `{grant.principal}`"
    for offered in hello.handlers:
        if not rights.covers(offered):
            return f"{whose} does not cover the handler `{offered}`"
    for key, value in hello.labels.items():
        if not rights.allows_label(key, value):
            return f"{whose} does not allow the label {key}={value}"
    if hello.slots > grant.slots:
        return f"{whose} allows {grant.slots} slots, and the worker has {hello.slots}"
    if hello.worker in state.sessions:
        return None
    count = state.sessions_of.get(grant.principal, 0)
    if count >= grant.sessions:
        return f"{whose} allows {grant.sessions} sessions, and {count} are open"
    if len(state.sessions) >= SESSIONS_MAX:
        return f"{len(state.sessions)} sessions are open, and this broker accepts no further one"
    return None


def _first_violated(state: BrokerState, principal: str, frame: str | type, claim: str) -> Refusal | None:
    rights = rights_of(state, principal)
    if rights is None:
        return Refusal(UNAUTHORIZED, f"the principal `{principal}` has no grant")
    for requirement in REQUIRED[frame]:
        if not requirement.is_met(state, rights, claim):
            return Refusal(requirement.code, requirement.violation.format(principal=principal, claim=claim))
    return None
