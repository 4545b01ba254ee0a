"""Station one, requests: turn the bytes of a submission or a command into the command that the core decides on.

A request that is refused here was never accepted, so it costs only its parsing. A batch is processed as a whole where
possible (one strict parse, one minification, one typed decode), and task by task only where necessary.
"""

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from stepwire_protocol import sealed_payloads, secret_references, strict_json
from stepwire_protocol.decode_errors import plain, shortened
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import EMPTY_OBJECT, Name
from stepwire_protocol.sealed_payloads import SealedTask

from stepwire_broker.core.definitions.settings import LimitSettings, PositiveMs
from stepwire_broker.core.definitions.workflow import NAMESPACE_DEFAULT
from stepwire_broker.core.model.events import Command, NewTask, SubmitTasks
from stepwire_broker.core.reading.document_problems import path_text
from stepwire_broker.core.reading.nearest import did_you_mean

KEY_CHARACTERS_MAX: Final = 255
LABELS_MAX: Final = 64
PRIORITY_MAX: Final = 100
BATCH_BODY_FACTOR: Final = 4  # the largest batch, in multiples of the largest payload

Make: TypeAlias = Callable[[int], Command]  # the broker numbers the request when the core gets the command
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


def read_task(body: bytes, limits: LimitSettings, key: str | None = None) -> NewTask:
    """Read one submission. `key` is the request's Idempotency-Key header; a key in the body must be the same."""
    value, task = _read(body, _task, limits.payload_bytes)
    if key is not None:
        if task.idempotency_key not in (None, key):
            raise InvalidMessage("bad_field", "Idempotency-Key and `idempotency_key` differ: send only one of them")
        _check_key(key, "the Idempotency-Key header")
    return _new_task(task, value, key or task.idempotency_key, limits)


def read_tasks(body: bytes, limits: LimitSettings, key: str | None = None) -> list[NewTask]:
    """Read submissions that are stored together or not at all. With the header's `key`, the i-th task without a key of
    its own gets `<key>/<i>`, so that a resent batch is the same batch."""
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
                raise InvalidMessage("bad_field", f"the key {task_key!r} of `tasks[{i}]` occurs twice in this batch")
        tasks.append(_new_task(task, plain[i], task_key, limits, i))
    return tasks


def batch_bytes_max(limits: LimitSettings) -> int:
    return BATCH_BODY_FACTOR * limits.payload_bytes


def submission(tasks: list[NewTask]) -> Make:
    return lambda request: SubmitTasks(request, tasks, secrets.randbits(128))


_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{KEY_CHARACTERS_MAX}}}")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")

_task: Final = msgspec.json.Decoder(TaskBody)
_batch: Final = msgspec.json.Decoder(BatchBody)

_NO_CONTEXT: Final[dict[str, Any]] = {}
_deterministic: Final = msgspec.json.Encoder(order="deterministic").encode


def read_body(body: bytes, kind: type[S], bytes_max: int) -> S:
    """Decode the body of a command. Raises InvalidMessage."""
    return _read(body, msgspec.json.Decoder(kind), bytes_max)[1]


def _read(body: bytes, decoder: "msgspec.json.Decoder[S]", bytes_max: int) -> tuple[Any, S]:
    """Decode the body as plain values and as its type. The type is read from minified text, so that its raw members are
    compact."""
    value = strict_json.parse(body, bytes_max)
    try:
        return value, decoder.decode(msgspec.json.format(body, indent=-1))
    except msgspec.ValidationError as error:
        raise InvalidMessage("bad_field", _explained(str(error), decoder.type)) from None


def _explained(error: str, kind: Any) -> str:
    """The sentence for a validation error of msgspec, with the nearest known name of an unknown member."""
    error = shortened(error)
    member = _UNKNOWN.match(error)
    meant = did_you_mean(member[1], _names_in(kind)) if member else ""
    return f"{plain(error, kind)}{'; ' if meant else ''}{meant}"


def _names_in(kind: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__struct_fields__
    return (*names, *TaskBody.__struct_fields__) if kind is BatchBody else names


def _new_task(
    task: TaskBody, plain: dict[str, Any], key: str | None, limits: LimitSettings, at: int | None = None
) -> NewTask:
    context = bytes(task.context)  # a copy, so that one task does not keep the whole body in memory
    if context[0] != 0x7B:
        raise InvalidMessage("bad_field", f"`{_path(at)}context` must be an object")
    if len(context) > limits.payload_bytes:
        raise InvalidMessage("too_large", f"a context of {len(context)} bytes, at most {limits.payload_bytes}")
    if secret_references.may_hold(context):
        _check_references(plain["context"], at)
    namespace, workflow, version = task.namespace, task.workflow, task.version
    is_sealed = sealed_payloads.may_be(context) and sealed_payloads.is_sealed(plain["context"])
    if is_sealed:
        _check_sealed(plain["context"], namespace, workflow, key, at)
    labels = task.labels
    digest = b""
    if key is not None:
        if task.idempotency_key is not None:
            _check_key(key, f"`{_path(at)}idempotency_key`")
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
        is_sealed,
    )


def _check_sealed(context: Any, namespace: str, workflow: str, key: str | None, at: int | None) -> None:
    """Check the form of a sealed context, and that it was sealed for this task. Its content cannot be read."""
    if key is None:
        raise InvalidMessage("bad_field", f"`{_path(at)}context` is sealed, so the task needs its idempotency key")
    fault = sealed_payloads.fault(context, SealedTask(namespace, workflow, key))
    if fault is not None:
        raise InvalidMessage("bad_field", f"`{_path(at)}context`: {fault}")


def _check_references(context: Any, at: int | None) -> None:
    for path, fault in secret_references.faults(context, ("context",)):
        raise InvalidMessage("bad_field", f"`{_path(at)}{path_text(path)}`: {fault}")


def _check_key(key: str, where: str) -> None:
    if not _KEY.fullmatch(key):
        raise InvalidMessage(
            "bad_field",
            f"{where} is {key[:64]!r}: an idempotency key is 1 to {KEY_CHARACTERS_MAX} visible ASCII characters",
        )


def _path(at: int | None) -> str:
    return "" if at is None else f"tasks[{at}]."
