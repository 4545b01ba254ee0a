"""Decodes frames into typed messages, and encodes messages into frames. No other module handles the bytes."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from . import limits, strict_json, topics
from .decode_errors import plain
from .errors import InvalidMessage
from .messages import (
    Adopted,
    BrokerMessage,
    FromWorker,
    Heartbeat,
    Hello,
    Progress,
    Refuse,
    Results,
    ResultsLevel0,
    Start,
    StepsLevel0,
    WorkerMessage,
)

_encode: Final = msgspec.json.Encoder().encode
_decode_worker: Final = msgspec.json.Decoder(WorkerMessage).decode
_decode_broker: Final = msgspec.json.Decoder(BrokerMessage).decode
_decode_results_level0: Final = msgspec.json.Decoder(ResultsLevel0).decode
_decode_steps_level0: Final = msgspec.json.Decoder(StepsLevel0).decode


def encode(message: Struct) -> bytes:
    """The JSON of a message, as it follows the topic."""
    return _encode(message)


def frame(topic: bytes, message: Struct) -> bytes:
    return topic + _encode(message)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Split a frame into (topic with its space, JSON). The JSON starts after the first space."""
    end = data.find(b" ") + 1
    if not end:
        raise InvalidMessage("no_topic" if data else "empty", "the frame has no space after its topic")
    return data[:end], data[end:]


def check_size(topic: bytes, body: bytes, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> None:
    """Raise InvalidMessage if a body is too large for its topic. Call this before the body is parsed."""
    if topic == topics.WORKERS:
        bytes_max = min(bytes_max, limits.WORKERS_BYTES_MAX)
    if len(body) > bytes_max:
        raise InvalidMessage("too_large", f"{len(body)} bytes, at most {bytes_max}")


def decode_worker(body: bytes, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> WorkerMessage:
    """Decode a level-1 message of a worker. Raises InvalidMessage: the caller ignores `unknown_type`, and answers every
    other code."""
    strict_json.parse(body, bytes_max, _containers_max(body))
    try:
        message: WorkerMessage = _decode_worker(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), WorkerMessage) from None
    _check_version(message.v)
    _check_items(message)
    return message


def decode_call(
    body: bytes, decoder: "msgspec.json.Decoder[Any]", items_of: Callable[[Any], list[Any]] | None, bytes_max: int
) -> Any:
    """Decode a worker's call over HTTP (polling.py). `items_of` is None for results. Raises InvalidMessage."""
    strict_json.parse(body, bytes_max)
    try:
        call = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), decoder.type) from None
    _check_version(call.v)
    if items_of is None:
        _check_results(call)
    else:
        _refuse_duplicates([item[:2] for item in items_of(call)])
    return call


def decode_results_level0(body: bytes, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> ResultsLevel0:
    """Decode the answer of a level-0 handler. Raises InvalidMessage."""
    value = strict_json.parse(body, bytes_max)
    version = value.get("protocol_version")
    try:
        message = _decode_results_level0(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), ResultsLevel0) from None
    if version is None and message.error is None:
        raise InvalidMessage("missing_version", "protocol_version is missing")
    if version not in (None, limits.PROTOCOL_LEVEL_0):
        raise InvalidMessage("unknown_version", f"level 0 is {limits.PROTOCOL_LEVEL_0}, not {str(version)[:32]!r}")
    if not message.results and message.error is None:
        raise InvalidMessage("bad_field", "`results` must not be empty")
    _refuse_duplicates([result.step_id for result in message.results])
    return message


def decode_broker(body: bytes) -> BrokerMessage:
    """Decode a level-1 message of a broker, at a worker. Skips strict_json: a broker sends strict JSON only."""
    try:
        message: BrokerMessage = _decode_broker(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), BrokerMessage) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage("not_json", str(error)) from None
    _check_version(message.v)
    return message


def decode_steps_level0(body: bytes) -> StepsLevel0:
    try:
        return _decode_steps_level0(body)
    except msgspec.ValidationError as error:
        raise InvalidMessage("bad_field", plain(str(error), StepsLevel0)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage("not_json", str(error)) from None


def is_level1(body: bytes) -> bool:
    """True if a message on `results ` has a `type`. Level-0 answers have none."""
    return _peek(body).type is not None


class Sender(NamedTuple):
    """The members of a refused message that address the reply to its sender. A member is None if it cannot be read."""

    worker: str | None
    type: str | None
    rid: int | None


def sender_of(body: bytes) -> Sender:
    """Read the sender from top-level members only, because an output may also contain `worker` and `rid`."""
    seen = _peek(body)
    worker, kind, rid = seen.worker, seen.type, seen.rid
    return Sender(
        worker if isinstance(worker, str) and _WORKER.fullmatch(worker) else None,
        kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else None,
        rid if type(rid) is int and 1 <= rid <= limits.INTEGER_MAX else None,
    )


def _containers_max(body: bytes) -> int:
    """Only results hold business data. In other messages, more arrays than held items are noise: refused unread."""
    if len(body) <= limits.CONTROL_CONTAINERS_MAX or _peek(body).type == Results.__struct_config__.tag:
        return limits.CONTAINERS_MAX
    return limits.CONTROL_CONTAINERS_MAX


# -- rules that types cannot express ----------------------------------------------------------------------------------

_VERSION: Final = re.compile(re.escape(limits.PROTOCOL_LEVEL_1.partition(".")[0]) + r"\.[0-9]{1,4}")

# The lists in which one (step_id, delivery) may occur only once.
_ITEMS: Final[dict[type[FromWorker], Callable[[Any], list[Any]]]] = {
    Hello: lambda message: message.holding,
    Heartbeat: lambda message: message.holding,
    Refuse: lambda message: message.items,
    Start: lambda message: message.items,
    Adopted: lambda message: message.items,
    Progress: lambda message: message.items,
}


def _check_version(v: str, member: str = "v") -> None:
    if v != limits.PROTOCOL_LEVEL_1 and not _VERSION.fullmatch(v):
        raise InvalidMessage(
            "unknown_version", f"{member} is {v[:32]!r}, supported: {', '.join(limits.VERSIONS_SUPPORTED)}"
        )


def _check_items(message: WorkerMessage) -> None:
    if type(message) is Results:
        _check_results(message)
    elif (items_of := _ITEMS.get(type(message))) and len(items := items_of(message)) > 1:
        _refuse_duplicates([item[:2] for item in items])


def _check_results(message: Any) -> None:
    _check_version(message.protocol_version, "protocol_version")
    items = [(result.step_id, result.delivery) for result in message.results]
    if UNSET in [delivery for _, delivery in items]:
        raise InvalidMessage(
            "bad_field", "`delivery` is missing in a result: level 1 needs the delivery of each result"
        )
    _refuse_duplicates(items)


def _refuse_duplicates(items: list[Any]) -> None:
    if len(items) > 1 and len(set(items)) != len(items):
        seen: set[Any] = set()
        for item in items:
            if item in seen:
                raise InvalidMessage("duplicate_item", f"{item} is listed twice")
            seen.add(item)


# -- reading the sender of an invalid message -------------------------------------------------------------------------

_WORKER: Final = re.compile(topics.WORKER_PATTERN)
_TYPE: Final = re.compile(r"[a-z_]{1,32}")
PEEKED_BYTES_MAX: Final = 256
SCANNED_BYTES_MAX: Final = 4_096  # of a text that is not JSON
_NULL: Final = Raw(b"null")
_MEMBER: Final = re.compile(
    rb'"(?:(?P<text>worker|type)"\s*:\s*"(?P<string>[A-Za-z0-9._:-]*)"|rid"\s*:\s*(?P<rid>[0-9]{1,16})\b)'
)


class _Peek(NamedTuple):
    type: object = None
    worker: object = None
    rid: object = None
    v: object = None
    protocol_version: object = None


class _RawPeek(Struct):
    """The members as text: a member may hold anything, at any length."""

    type: Raw = _NULL
    worker: Raw = _NULL
    rid: Raw = _NULL
    v: Raw = _NULL
    protocol_version: Raw = _NULL


_decode_peek: Final = msgspec.json.Decoder(_RawPeek).decode


def _peek(body: bytes) -> _Peek:
    try:
        seen = _decode_peek(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _peek_of_text(body)
    return _Peek(*map(_short_value, (seen.type, seen.worker, seen.rid, seen.v, seen.protocol_version)))


def _short_value(written: Raw) -> object:
    """The value, if it is short. Nothing that is compared with these members is longer."""
    text = bytes(written)
    if len(text) > PEEKED_BYTES_MAX:
        return text[:PEEKED_BYTES_MAX].decode(errors="replace").removeprefix('"')
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text


def _peek_of_text(body: bytes) -> _Peek:
    """Encoders write the short members first, and text before the first nested value is top level."""
    start = body[:SCANNED_BYTES_MAX]  # a long text that is not JSON must not stop the broker
    nested = [at for at in (start.find(b"{", 1), start.find(b"[", 1)) if at > 0]
    worker: object = None
    kind: object = None
    rid: object = None
    for member in _MEMBER.finditer(start[: min(nested, default=len(start))]):
        if member["rid"]:
            rid = int(member["rid"])
        elif member["text"] == b"worker":
            worker = member["string"].decode()
        else:
            kind = member["string"].decode()
    return _Peek(kind, worker, rid)


def _invalid(body: bytes, error: str, kind: Any) -> InvalidMessage:
    """Translate a validation error of msgspec into its code on the wire. `kind` is the type that was decoded."""
    if error.startswith("Invalid value") and error.endswith("`$.type`"):
        return InvalidMessage("unknown_type", f"type {str(_peek(body).type)[:32]!r}")
    for member in ("v", "protocol_version"):
        if f"missing required field `{member}`" in error and "`$." not in error:
            return InvalidMessage("missing_version", f"{member} is missing")
        if error.endswith(f"`$.{member}`"):
            return InvalidMessage("unknown_version", f"{plain(error, kind)}, because a version is a string like 2.0")
    return InvalidMessage("bad_field", plain(error, kind))
