"""The requests stage: from the bytes of a submission or an order to the command that the core decides on.

Whatever is refused here was never accepted, so it costs nothing but its reading. A batch is looked at as a whole as
often as it can be (one pass through the door, one minification, one typed decode), and per task only where it must.
"""

import difflib
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from stepwire_protocol import strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import EMPTY_OBJECT, Name, Text

from stepwire_broker.core.definitions.settings import LimitSettings, PositiveMs, RuleSettings
from stepwire_broker.core.definitions.workflow import NAMESPACE_DEFAULT
from stepwire_broker.core.model.events import (
    CancelTask,
    Command,
    DrainWorker,
    NewTask,
    PauseExecutor,
    PauseTask,
    ResolveStep,
    ResumeExecutor,
    ResumeTask,
    RetryTask,
    SetBreaker,
    SetRule,
    SubmitTasks,
)

KEY_CHARACTERS_MAX: Final = 255
LABELS_MAX: Final = 64
PRIORITY_MAX: Final = 100
BATCH_BODY_FACTOR: Final = 4  # a batch may be as large as so many of the largest payload

Make: TypeAlias = Callable[[int], Command]  # the broker numbers the request when it asks
LabelValue: TypeAlias = Annotated[str, Meta(max_length=256)]
S = TypeVar("S", bound=Struct)


class TaskBody(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`POST /v1/tasks`, and each of `tasks` in a batch."""

    workflow: Name
    namespace: Name = NAMESPACE_DEFAULT
    version: Name | None = None
    context: Raw = EMPTY_OBJECT
    idempotency_key: str | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    labels: Annotated[dict[Name, LabelValue], Meta(max_length=LABELS_MAX)] = {}
    deadline_ms: PositiveMs | None = None


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/tasks/batch`."""

    tasks: Annotated[list[TaskBody], Meta(min_length=1)]


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/tasks/{id}/cancel`."""

    reason: Text = ""


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/tasks/{id}/retry`."""

    from_step: Name | None = None
    again: bool = False
    new_key: bool = False
    reason: Text = ""


class NothingBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/tasks/{id}/pause` and `/resume`: nothing to say."""


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/workers/{worker}/drain`."""

    quit: bool = False


class RemoveRuleBody(Struct, frozen=True, forbid_unknown_fields=True):
    match: str


class BreakerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/breakers/{handler_class}`. `auto`: it is left to itself again."""

    state: Literal["open", "closed", "auto"]
    reason: Text = ""


class ResolveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/steps/{id}/resolve`. The reason is for whoever reads the history, so there must be one."""

    outcome: Literal["completed", "failed", "retry"]
    reason: Annotated[Text, Meta(min_length=1)]
    output: Raw = Raw(b"")
    message: Text = ""
    new_key: bool = False


def read_task(body: bytes, limits: LimitSettings, key: str | None = None) -> NewTask:
    """One submission. `key` is the request's Idempotency-Key header; the body may say the same one, never another."""
    value, task = _read(body, _task, limits.payload_bytes)
    if key is not None:
        if task.idempotency_key not in (None, key):
            raise InvalidMessage("bad_field", "Idempotency-Key and `idempotency_key` differ: say it once")
        _check_key(key, "the Idempotency-Key header")
    return _new_task(task, value, key or task.idempotency_key, limits, "$")


def read_tasks(body: bytes, limits: LimitSettings, key: str | None = None) -> list[NewTask]:
    """Submissions that are stored together or not at all. With the header's `key`, the i-th task that brings none of
    its own has `<key>/<i>`, so that a batch sent again is the same batch."""
    value, batch = _read(body, _batch, batch_bytes_max(limits))
    if len(batch.tasks) > limits.tasks_per_batch:
        raise InvalidMessage("too_large", f"{len(batch.tasks)} tasks in one batch, at most {limits.tasks_per_batch}")
    if key is not None:
        _check_key(f"{key}/{len(batch.tasks)}", "the Idempotency-Key header")
    tasks = []
    seen: set[tuple[str, str]] = set()
    plain = value["tasks"]
    for i, task in enumerate(batch.tasks):
        task_key = task.idempotency_key
        if task_key is None and key is not None:
            task_key = f"{key}/{i}"
        if task_key is not None:
            size = len(seen)
            seen.add((task.namespace, task_key))
            if len(seen) == size:
                raise InvalidMessage(
                    "bad_field", f"the key {task_key!r} stands twice in this batch - at `$.tasks[{i}]`"
                )
        tasks.append(_new_task(task, plain[i], task_key, limits, i))
    return tasks


def batch_bytes_max(limits: LimitSettings) -> int:
    return BATCH_BODY_FACTOR * limits.payload_bytes


def submission(tasks: list[NewTask]) -> Make:
    return lambda request: SubmitTasks(request, tasks, secrets.randbits(128))


def cancel(body: bytes, task_id: int, limits: LimitSettings) -> Make:
    _, said = _read(body or b"{}", _reason, limits.payload_bytes)
    return lambda request: CancelTask(request, task_id, said.reason)


def pause(body: bytes, task_id: int, limits: LimitSettings) -> Make:
    _read(body or b"{}", _nothing, limits.payload_bytes)
    return lambda request: PauseTask(request, task_id)


def resume(body: bytes, task_id: int, limits: LimitSettings) -> Make:
    _read(body or b"{}", _nothing, limits.payload_bytes)
    return lambda request: ResumeTask(request, task_id)


def retry(body: bytes, task_id: int, limits: LimitSettings) -> Make:
    _, said = _read(body or b"{}", _retry, limits.payload_bytes)
    return lambda request: RetryTask(request, task_id, said.from_step, said.again, said.new_key, said.reason)


def drain_worker(body: bytes, worker: str, limits: LimitSettings) -> Make:
    _, said = _read(body or b"{}", _drain, limits.payload_bytes)
    return lambda request: DrainWorker(request, worker, said.quit)


def pause_executor(body: bytes, executor: str, limits: LimitSettings) -> Make:
    _read(body or b"{}", _nothing, limits.payload_bytes)
    return lambda request: PauseExecutor(request, executor)


def resume_executor(body: bytes, executor: str, limits: LimitSettings) -> Make:
    _read(body or b"{}", _nothing, limits.payload_bytes)
    return lambda request: ResumeExecutor(request, executor)


def set_breaker(body: bytes, handler_class: str, limits: LimitSettings) -> Make:
    _, said = _read(body, _breaker, limits.payload_bytes)
    return lambda request: SetBreaker(request, handler_class, said.state, said.reason)


def set_rule(body: bytes, limits: LimitSettings) -> Make:
    _, said = _read(body, _rule, limits.payload_bytes)
    return lambda request: SetRule(request, said.match, said)


def remove_rule(body: bytes, limits: LimitSettings) -> Make:
    _, said = _read(body, _remove_rule, limits.payload_bytes)
    return lambda request: SetRule(request, said.match, None)


def resolve(body: bytes, step_id: int, limits: LimitSettings) -> Make:
    _, said = _read(body, _resolve, limits.payload_bytes)
    output = Raw(bytes(said.output)) if said.output else None
    if output is not None and said.outcome != "completed":
        raise InvalidMessage("bad_field", "only a step that is called completed has an output - at `$.output`")
    if said.message and said.outcome != "failed":
        raise InvalidMessage("bad_field", "only a step that is called failed has a message - at `$.message`")
    if said.new_key and said.outcome != "retry":
        raise InvalidMessage("bad_field", "only a step that is run again can have a new key - at `$.new_key`")
    if said.outcome == "failed" and not said.message:
        raise InvalidMessage("bad_field", "a step that is called failed needs a message that says why - at `$.message`")
    return lambda request: ResolveStep(request, step_id, said.outcome, said.reason, output, said.message, said.new_key)


_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{KEY_CHARACTERS_MAX}}}")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")

_task: Final = msgspec.json.Decoder(TaskBody)
_batch: Final = msgspec.json.Decoder(BatchBody)
_reason: Final = msgspec.json.Decoder(ReasonBody)
_nothing: Final = msgspec.json.Decoder(NothingBody)
_retry: Final = msgspec.json.Decoder(RetryBody)
_drain: Final = msgspec.json.Decoder(DrainBody)
_rule: Final = msgspec.json.Decoder(RuleSettings)
_remove_rule: Final = msgspec.json.Decoder(RemoveRuleBody)
_breaker: Final = msgspec.json.Decoder(BreakerBody)
_resolve: Final = msgspec.json.Decoder(ResolveBody)

_NO_CONTEXT: Final[dict[str, Any]] = {}
_deterministic: Final = msgspec.json.Encoder(order="deterministic").encode


def _read(body: bytes, decoder: "msgspec.json.Decoder[S]", bytes_max: int) -> tuple[Any, S]:
    """The body through the door, once, and as its type, from minified text: raw members of it are compact."""
    value = strict_json.parse(body, bytes_max)
    try:
        return value, decoder.decode(msgspec.json.format(body, indent=-1))
    except msgspec.ValidationError as error:
        raise InvalidMessage("bad_field", with_nearest(str(error), _MEMBERS[decoder.type])) from None


def with_nearest(error: str, known: tuple[str, ...]) -> str:
    """A validation error of msgspec, and if it is about an unknown member, which one may have been meant."""
    found = _UNKNOWN.match(error)
    nearest = difflib.get_close_matches(found[1], known, 1) if found else None
    return f"{error}; did you mean `{nearest[0]}`?" if nearest else error


def _new_task(task: TaskBody, plain: dict[str, Any], key: str | None, limits: LimitSettings, at: int | str) -> NewTask:
    context = bytes(task.context)  # a copy: the whole body must not live as long as its smallest task
    if context[0] != 0x7B:
        raise InvalidMessage("bad_field", f"Expected `object` - at `{_path(at)}.context`")
    if len(context) > limits.payload_bytes:
        raise InvalidMessage("too_large", f"a context of {len(context)} bytes, at most {limits.payload_bytes}")
    namespace, workflow, version = task.namespace, task.workflow, task.version
    labels = task.labels
    digest = b""
    if key is not None:
        if task.idempotency_key is not None:
            _check_key(key, f"`{_path(at)}.idempotency_key`")
        # The decoded context, not its text: the same object with its members in another order is the same submission.
        same = (
            namespace,
            workflow,
            version,
            plain.get("context", _NO_CONTEXT),
            task.priority,
            labels,
            task.deadline_ms,
        )
        digest = hashlib.sha256(_deterministic(same)).digest()
    return NewTask(
        namespace,
        workflow,
        version,
        context,
        key,
        digest,
        task.priority,
        _deterministic(labels) if labels else None,
        task.deadline_ms,
    )


def _check_key(key: str, where: str) -> None:
    if not _KEY.fullmatch(key):
        raise InvalidMessage(
            "bad_field",
            f"{where} is {key[:64]!r}: an idempotency key is 1 to {KEY_CHARACTERS_MAX} visible ASCII characters",
        )


def _path(at: int | str) -> str:
    return at if isinstance(at, str) else f"$.tasks[{at}]"


_MEMBERS: Final[dict[Any, tuple[str, ...]]] = {
    TaskBody: TaskBody.__struct_fields__,
    BatchBody: (*BatchBody.__struct_fields__, *TaskBody.__struct_fields__),
    ReasonBody: ReasonBody.__struct_fields__,
    NothingBody: (),
    RetryBody: RetryBody.__struct_fields__,
    DrainBody: DrainBody.__struct_fields__,
    BreakerBody: BreakerBody.__struct_fields__,
    RuleSettings: RuleSettings.__struct_fields__,
    RemoveRuleBody: RemoveRuleBody.__struct_fields__,
    ResolveBody: ResolveBody.__struct_fields__,
}
