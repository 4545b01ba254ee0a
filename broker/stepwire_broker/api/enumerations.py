"""Strings of documents that take one of a few values. Each becomes a named enumeration in `/openapi.json`.

The values of a document stay plain strings: the tables of the core decide which of them exist.
"""

from typing import Annotated, Final, TypeAlias, get_args

from stepwire_broker.core import why
from stepwire_broker.core.answers import reason_codes
from stepwire_broker.core.model import facts, states
from stepwire_broker.core.routing.router import Decided

from .openapi_schemas import one_of

HANDLER_ERROR: Final = "handler_error"  # the reason of a step whose handler failed it with a code of its own
HANDLER_ERROR_SENTENCE: Final = "the handler failed the step with a code of its own, which is in `error`"
OWNER_SILENT: Final = "owner_silent"  # the reason of an open step that only the owner of its task could explain
OWNER_SILENT_SENTENCE: Final = "the broker that owns the task has not explained the step in time"
REASONS: Final = {
    **reason_codes.SENTENCES,
    **why.CODES,
    HANDLER_ERROR: HANDLER_ERROR_SENTENCE,
    OWNER_SILENT: OWNER_SILENT_SENTENCE,
}

KINDS: Final[tuple[str, ...]] = tuple(str(kind.__struct_config__.tag) for kind in get_args(facts.Fact))
PROGRESS: Final = "progress"  # the kind of the events of streams that are not in the history
STREAM_KINDS: Final = (*KINDS, PROGRESS)

TaskState: TypeAlias = Annotated[str, one_of("TaskState", states.TaskState)]
StepState: TypeAlias = Annotated[str, one_of("StepState", states.StepState)]
Attention: TypeAlias = Annotated[str, one_of("Attention", ("held",))]
ReasonCode: TypeAlias = Annotated[str, one_of("ReasonCode", REASONS)]
AttemptOutcome: TypeAlias = Annotated[
    str, one_of("AttemptOutcome", ("completed", "backed_off", "failed", "held", "undelivered", "cancelled"))
]
EventKind: TypeAlias = Annotated[str, one_of("EventKind", STREAM_KINDS)]
RuleOrigin: TypeAlias = Annotated[str, one_of("RuleOrigin", ("config", "runtime"))]
RouteDecision: TypeAlias = Annotated[str, one_of("RouteDecision", Decided)]
ExecutionMode: TypeAlias = Annotated[str, one_of("ExecutionMode", ("local", "distributed"))]
Direction: TypeAlias = Annotated[str, one_of("Direction", ("in", "out"))]
