"""Warnings about a workflow: probable mistakes in its document, and handlers that no connected worker offers now.

A workflow may be applied before its workers start, so an unoffered handler is a warning and never a refusal.
"""

from typing import Final

from msgspec import Struct

from . import takers
from .definitions.workflow import Workflow
from .phrases import named
from .reading.nearest import nearest
from .state import BrokerState

NOT_OFFERED: Final = "not_offered"
COMPARED_MAX: Final = 20  # handlers of one workflow that are compared with the offered names, because comparing is slow


class WorkflowWarning(Struct, frozen=True, kw_only=True):
    """A probable mistake that is allowed. `path` is the place in the document. The code `not_offered` has the
    `handlers` that no connected worker offers now, and `nearest`, the offered handler that was probably meant."""

    code: str
    message: str
    path: str | None = None
    handlers: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        return self.message


def of_document(workflow: Workflow) -> list[WorkflowWarning]:
    """The probable mistakes in the document. A workflow that was read from the database has none."""
    return [
        WorkflowWarning(code=problem.code, message=str(problem), path=problem.path or None)
        for problem in workflow.warnings
    ]


def of_handlers(state: BrokerState, workflow: Workflow) -> list[WorkflowWarning]:
    """One warning for each unoffered handler that resembles an offered one, and one for all others."""
    missing = [
        name
        for name in dict.fromkeys(step.handler_class for step in workflow.steps)
        if not takers.is_offered(state, name)
    ]
    meant = {name: meant_by(state, name) for name in missing[:COMPARED_MAX]}
    warnings = [
        _not_offered((name,), other, f"`{name}` is offered by no connected worker; did you mean `{other}`?")
        for name, other in meant.items()
        if other is not None
    ]
    rest = tuple(name for name in missing if meant.get(name) is None)
    if rest:
        verb = "is" if len(rest) == 1 else "are"
        connected = "" if state.sessions or state.level0.peers else " (no worker is connected)"
        names = named(f"`{name}`" for name in rest)
        warnings.append(_not_offered(rest, None, f"{names} {verb} offered by no connected worker{connected}"))
    return warnings


def meant_by(state: BrokerState, handler_class: str) -> str | None:
    """The offered handler with the most similar name. Patterns are not compared."""
    offered = {name for session in state.sessions.values() for name in session.handlers if "*" not in name}
    return nearest(handler_class, offered)


def _not_offered(handlers: tuple[str, ...], nearest: str | None, message: str) -> WorkflowWarning:
    return WorkflowWarning(code=NOT_OFFERED, message=message, handlers=handlers, nearest=nearest)
