"""P1 for operators: a control that was acknowledged is still set after a restart of the broker."""

from typing import Any, Final

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.commit.operator_controls import KINDS, DrainedWorker, ForcedBreaker, PausedExecutor
from stepwire_broker.core.guards.allowance import SetBreaker
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor

from tests.simulation.broker_node import BrokerNode

from .books import Books


def asked(books: Books, broker: BrokerNode, command: Any) -> None:
    if _set_by(command) is not None:
        books.controls_asked.append((broker.id, command))


def answered(books: Books, broker: BrokerNode, command: Any, answer: Any) -> None:
    change = _set_by(command)
    if change is None or (isinstance(answer, CommandRefused) and answer.code in ("commit_unknown", "broker_dark")):
        return  # the command may have been stored, or may be stored later
    books.controls_asked.remove((broker.id, command))
    if not isinstance(answer, CommandRefused):
        name, value = change
        books.controls[name] = value
    _check_rows(books)


def _check_rows(books: Books) -> None:
    """Each control that was acknowledged has its row, whatever was set at other brokers meanwhile."""
    rows = books.world.tables.controls
    asked = {change[0] for _, command in books.controls_asked if (change := _set_by(command)) is not None}
    for name, value in books.controls.items():
        is_wrong = ((_KINDS[name[0]], name[1]) in rows) != (value is not None)
        if is_wrong and name not in asked and not _has_ended(books, name):
            books.fail("P1 a control stays until an operator changes it", f"{name} was set to {value}")


_KINDS: Final = {
    "breaker": KINDS[ForcedBreaker],
    "paused": KINDS[PausedExecutor],
    "drained": KINDS[DrainedWorker],
}


def check_start(books: Books, broker: BrokerNode) -> None:
    """A broker has started. A command without an answer may have been stored or not."""
    changes = [change for _, command in books.controls_asked if (change := _set_by(command)) is not None]
    for name in {*books.controls, *(name for name, _ in changes)}:
        possible = {books.controls.get(name), *(value for each, value in changes if each == name)}
        now = _now(broker, name)
        if now not in possible and not _has_ended(books, name):
            books.fail("P1 what an operator set survives a restart", f"{name} is {now}, and was set to {possible}")
        books.controls[name] = now
    books.controls_asked = [asked for asked in books.controls_asked if asked[0] != broker.id]


def _set_by(command: Any) -> tuple[tuple[str, str], str | None] | None:
    """The name of the control that a command sets, and its value. None as the value: the command removes it."""
    match command:
        case SetBreaker():
            return ("breaker", command.handler_class), None if command.state == "auto" else command.state
        case PauseExecutor():
            return ("paused", command.executor), "paused"
        case ResumeExecutor():
            return ("paused", command.executor), None
        case DrainWorker():
            return ("drained", command.worker), "drained"
    return None


def _now(broker: BrokerNode, name: tuple[str, str]) -> str | None:
    state, (kind, of) = broker.state, name
    if kind == "breaker":
        guard = state.guards.by_handler.get(of)
        return None if guard is None or not guard.breaker.is_forced else str(guard.breaker.state)
    if kind == "paused":
        executor = state.executors.get(of)
        return None if executor is None or executor.paused_wall is None else "paused"
    return "drained" if of in state.quieted else None


def _has_ended(books: Books, name: tuple[str, str]) -> bool:
    """True for a drained process that has ended, or that has no id of its own."""
    alive = {worker.id for worker in books.world.workers if worker.is_alive}
    return name[0] == "drained" and name[1] not in alive
