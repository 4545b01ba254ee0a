"""Level 1: messages that a worker cannot read, and members that it does not know."""

import json
from typing import Any

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.frames import encoded
from stepwire_conform.stage import Batch, Stage


def _survives(stage: Stage) -> None:
    if not stage.setting.has("conform.echo"):
        stage.drop_seen("heartbeat")
        stage.expect("heartbeat", where=lambda m: m["sessions"].get("b1") == stage.session())
        return
    result = stage.run("conform.echo", {"still": "here"})
    if result.get("output") != {"still": "here"}:
        raise RuleBroken(f"afterwards conform.echo gave {result!r}")


def _ignored(name: str, what: str, *bodies: bytes) -> None:
    @case(
        f"malformed.{name}",
        Level.ONE,
        f"{what} does not end the worker, its session or its loop",
        "3 and 18",
        cause="an error while reading a message ends the loop that reads",
    )
    def ignored(stage: Stage) -> None:
        for body in bodies:
            stage.send_body(body)
        _survives(stage)


_ignored("not_json", "A message that is no JSON", b"{", b"", b"hello", b'{"type":"ack","v":', b"\x00\x01\x02")
_ignored("not_utf8", "A message that is not UTF-8", b'{"type":"ack","v":"2.0","broker":"\xff\xfe","epoch":7,"rids":[]}')
_ignored("not_an_object", "JSON that is no object", b"[]", b"7", b'"ack"', b"null")
_ignored("no_type", "A message without `type` or `v`", b"{}", b'{"v":"2.0"}', b'{"type":"ack"}')
_ignored(
    "wrong_members",
    "A message whose members have the wrong type",
    b'{"type":"ack","v":"2.0","broker":"b1","epoch":"7","rids":"all"}',
    b'{"type":"welcome","v":"2.0","broker":"b1","epoch":7,"session":7,"n":null}',
    b'{"type":"cancel","v":"2.0","broker":"b1","epoch":7,"session":"7.1","items":[1],"reason":"x"}',
)
_ignored(
    "unknown_type",
    "A type that a later minor version adds",
    b'{"type":"weather","v":"2.1","broker":"b1","epoch":7,"rain":true}',
)
_ignored("deep", "A message of 200 levels", b'{"type":"ack","v":"2.0","x":' + b"[" * 200 + b"]" * 200 + b"}")
_ignored("nan", "A message with NaN", b'{"type":"ack","v":"2.0","broker":"b1","epoch":7,"rids":[NaN]}')


@case(
    "malformed.frames",
    Level.ONE,
    "A message of several frames, or without a space, does not end the worker",
    "2",
)
def frames(stage: Stage) -> None:
    topic = f"@{stage.worker} ".encode()
    stage.broker.publish_frames([topic + b'{"type":"ack"}', b"second", b"third"])
    stage.broker.publish_frames([topic, b'{"type":"ack","v":"2.0","broker":"b1","epoch":7,"rids":[1]}'])
    stage.send_body(b"", topic=topic)
    _survives(stage)


@case(
    "malformed.bad_here",
    Level.ONE,
    "An unreadable message on `brokers ` does not end the worker",
    "2 and 3",
)
def bad_here(stage: Stage) -> None:
    stage.send_body(b"{", topic=b"brokers ")
    stage.send_body(b'{"type":"here"}', topic=b"brokers ")
    _survives(stage)


@case(
    "malformed.unknown_members",
    Level.ONE,
    "Members that the worker does not know are ignored, at every depth",
    "3 and 16",
    needs="conform.echo",
    cause="unknown members are refused: no later minor version could be used",
)
def unknown_members(stage: Stage) -> None:
    step = stage.step("conform.echo", {"a": 1}, later={"deep": [1]}, metadata={"later": 7, "tracing": {"x": None}})
    result = stage.steps(step, later=[1, {"a": 2}], priority=7).result()
    if result.get("output") != {"a": 1}:
        raise RuleBroken(f"a step with unknown members gave {result!r}")
    stage.send(stage.broker.message("ack", rids=[], later=True))
    stage.broker.welcome_members = {"later": {"a": 1}, "brokers": []}
    stage.send(stage.broker.here() | {"later": 1})
    stage.broker.ack_members = {"later": [1]}
    _survives(stage)


@case(
    "malformed.order",
    Level.ONE,
    "The order of members has no meaning",
    "3",
    needs="conform.echo",
    cause="the worker expects `type` first",
)
def order(stage: Stage) -> None:
    step = stage.step("conform.echo", {"a": 1})
    batch_id = "batch_order_1"
    stage.watch.sent((step["step_id"], 1), "at_least_once", batch_id)
    message = stage.broker.message(
        "steps", session=stage.session(), batch_id=batch_id, protocol_version="2.0", steps=[step]
    )
    stage.send_body(json.dumps(dict(reversed(message.items())), indent=1).encode())
    stage.result_of((step["step_id"], 1))


@case(
    "malformed.minor_version",
    Level.ONE,
    "A message of a later minor version is read",
    "16",
    needs="conform.echo",
)
def minor_version(stage: Stage) -> None:
    result = stage.steps(stage.step("conform.echo", {"a": 1}), v="2.7").result()
    if result.get("output") != {"a": 1}:
        raise RuleBroken(f"a step of version 2.7 gave {result!r}")


@case(
    "malformed.major_version",
    Level.ONE,
    "A message of another major version is not obeyed",
    "16",
    needs="conform.echo",
    cause="`v` is not checked",
)
def major_version(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {"a": 1}), v="3.0")
    stage.nothing("results", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="its version is 3.0")
    _survives(stage)


def _refused_as_bad(name: str, what: str, change: Any) -> None:
    @case(
        f"malformed.steps_{name}",
        Level.ONE,
        f"A step {what} cannot be read: it is refused with `bad_message`, or its broker would send it for ever",
        "18",
        needs="conform.echo",
        cause="an unreadable `steps` message is dropped in silence",
    )
    def refused(stage: Stage) -> None:
        step = stage.step("conform.echo", {"a": 1})
        item = (step["step_id"], 1)
        change(step)
        batch_id = stage.broker.next_batch()
        stage.watch.sent(item, "at_least_once", batch_id)
        message = stage.broker.message(
            "steps", session=stage.session(), batch_id=batch_id, protocol_version="2.0", steps=[step]
        )
        batch = Batch(stage, stage.broker, batch_id, [item], encoded(message))
        batch.again()
        refusal = batch.refused("bad_message")
        if refusal["items"] != [list(item)]:
            raise RuleBroken(f"refuse names {refusal['items']!r}, and the item is {list(item)}")
        _survives(stage)


_refused_as_bad("without_handler", "without a `handler_class`", lambda step: step.pop("handler_class"))
_refused_as_bad("without_metadata", "without `metadata`", lambda step: step.pop("metadata"))
_refused_as_bad("float_task_id", "whose `task_id` is 6591.0", lambda step: step.update(task_id=6591.0))
_refused_as_bad("text_attempt", 'whose `attempt` is "0"', lambda step: step["metadata"].update(attempt="0"))
_refused_as_bad("unknown_mode", "with an unknown `delivery_mode`", lambda step: step.update(delivery_mode="twice"))


@case(
    "malformed.too_large",
    Level.ONE,
    "A `steps` message larger than the worker's `max_message_bytes` is refused with `too_large`",
    "5 and 18",
    needs="conform.echo",
    lasts_s=3,
    strength="should",
)
def too_large(stage: Stage) -> None:
    assert stage.watch.hello is not None
    limit = stage.watch.hello.get("max_message_bytes", 4_194_304)
    if limit > 6 * 1024 * 1024:
        return
    batch = stage.steps(stage.step("conform.echo", {"text": "x" * (limit + 1000)}))
    batch.refused("too_large")
    _survives(stage)


@case(
    "malformed.other_session",
    Level.ONE,
    "Steps of a session that is not the current one are ignored",
    "7 (W2)",
    needs="conform.echo",
    cause="the session of `steps` is not compared",
)
def other_session(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {"a": 1}), session=f"{stage.broker.epoch}.77")
    stage.nothing(
        "results", "accept", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="another session's steps"
    )
    _survives(stage)
