"""Rows of `audit` whose effect is outside of the core: requests to the API, files of tokens and keys, backups.

A command of an operator writes its own row, where it decides its effect: `BrokerState.audit`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import json

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.model.commit_group import AuditNew
from stepwire_broker.core.model.events import ActionNoticed, Command, CommandOfOperator, Now
from stepwire_broker.core.state import BrokerState

from .submission import intake_refused


class RecordAction(CommandOfOperator, frozen=True):
    """Record an operator's action before it is carried out outside of the core. The answer is sent after the commit."""

    action: str
    target: str = ""
    reason: str = ""
    detail: Mapping[str, Any] = {}


class ActionRecorded(Answer, frozen=True):
    """The action is recorded durably."""


def on_record(state: BrokerState, event: RecordAction, now: Now) -> None:
    refused = intake_refused(state)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    state.audit(event, event.action, event.target, now, reason=event.reason, detail=event.detail)
    state.answer(event.request, ActionRecorded())


def on_noticed(state: BrokerState, event: ActionNoticed, now: Now) -> None:
    state.write_audit(
        AuditNew(
            at_ms=now.wall,
            principal=event.principal,
            via=event.via,
            action=event.action,
            target=event.target,
            reason="",
            detail=json.encode(event.detail).decode(),
            outcome=event.outcome,
            request_id=None,
        )
    )


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {RecordAction: on_record}
