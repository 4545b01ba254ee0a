"""Level 0: a loop that receives on `steps`, runs, and answers on `results `."""

from typing import Any, Final

from stepwire_conform.broker import PlayedBroker
from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.frames import Message, encoded
from stepwire_conform.setting import ENOUGH_S
from stepwire_conform.stage import Stage

CONFORM_HANDLERS: Final = ("conform.echo", "conform.fail", "conform.big", "conform.bad_output")
UNKNOWN: Final = "conform.no_such_handler"


def batch_of(
    stage: Stage,
    *steps: dict[str, Any],
    batch_id: str | None = None,
    broker: PlayedBroker | None = None,
    **members: Any,
) -> str:
    """Send a batch to the handler. Returns its id."""
    batch_id = batch_id or stage.broker.next_batch()
    message = {"to": "7.1", "batch_id": batch_id, "protocol_version": "1.0", "steps": list(steps), **members}
    stage.send_body(encoded(message), topic=b"steps ", broker=broker)
    return batch_id


def step_of(stage: Stage, handler: str, context: Any = None, **members: Any) -> dict[str, Any]:
    step = stage.step(handler, context, **members)
    del step["delivery"], step["delivery_mode"]
    return step


def answer_to(stage: Stage, batch_id: str, within_s: float = ENOUGH_S) -> Message:
    return stage.expect("results", batch_id=batch_id, within_s=within_s)


def run(stage: Stage, handler: str, context: Any = None, **members: Any) -> dict[str, Any]:
    """Send one step, and return its result."""
    step = step_of(stage, handler, context, **members)
    answer = answer_to(stage, batch_of(stage, step))
    found: list[dict[str, Any]] = [r for r in answer.get("results", []) if r["step_id"] == step["step_id"]]
    if len(found) != 1:
        raise RuleBroken(f"the answer to step {step['step_id']} is {answer!r}")
    return found[0]


def offers(stage: Stage, handler: str) -> bool:
    """Whether the program knows this handler of the conformance worker."""
    try:
        result = run(stage, handler, {"kind": "error", "bytes": 1})
    except RuleBroken:
        return stage.running.exit_code() is not None  # the handler is there, and has ended the program
    return (result.get("error") or {}).get("code") != "unknown_handler"


def echoed(stage: Stage, value: Any) -> None:
    result = run(stage, "conform.echo", value)
    if result["status"] != "completed" or result.get("output") != value:
        raise RuleBroken(f"conform.echo of {str(value)[:200]!r} gave {str(result)[:300]}")


def answers(stage: Stage) -> None:
    """The loop still answers, whatever the handlers are."""
    run(stage, "conform.echo" if stage.setting.has("conform.echo") else UNKNOWN, {"a": 1})


@case("loop.subscribes", Level.ZERO, "A handler subscribes `steps ` and no other topic", "17")
def subscribes(stage: Stage) -> None:
    others = [topic for topic in stage.broker.subscriptions if topic not in (b"steps", b"steps ")]
    if others:
        raise RuleBroken(f"the handler also subscribes {others!r}")


@case("loop.answers", Level.ZERO, "The handler answers a batch on `results `, with its `batch_id`", "17")
def answers_a_batch(stage: Stage) -> None:
    answers(stage)


@case(
    "loop.members",
    Level.ZERO,
    'An answer has `protocol_version` "1.0" and no `type`, and each result names its step',
    "17",
)
def members(stage: Stage) -> None:
    step = step_of(stage, _some(stage), {"a": 1})
    answer = answer_to(stage, batch_of(stage, step))
    if answer.get("protocol_version") != "1.0" or "type" in answer.body:
        raise RuleBroken(f"protocol_version is {answer.get('protocol_version')!r}: {answer!r}")


@case("loop.echo", Level.ZERO, "The output of a handler reaches the broker", "17", needs="conform.echo")
def echo(stage: Stage) -> None:
    echoed(stage, {"order_id": 12345})


@case(
    "loop.batch_id",
    Level.ZERO,
    "`batch_id` returns as it was sent, up to 128 characters",
    "17",
    cause="the batch_id is parsed, shortened or replaced",
)
def batch_id(stage: Stage) -> None:
    for one in ("b", "batch 7 with spaces", "ß" * 100, "x" * 128):
        answer_to(stage, batch_of(stage, step_of(stage, _some(stage), {"a": 1}), batch_id=one))


@case(
    "loop.other_topics",
    Level.ZERO,
    "Frames whose topic is not `steps` are skipped: the greeting of the broker reaches every connection",
    "17",
    cause="every frame is taken for a batch",
)
def other_topics(stage: Stage) -> None:
    stage.send_body(encoded(stage.broker.here()), topic=b"brokers ")
    stage.send_body(b'{"to":"7.9","batch_id":"not_for_you","steps":[]}', topic=b"stepsX ")
    stage.send_body(b'{"a":1}', topic=b"steps_batch ")
    answers(stage)


@case("loop.several", Level.ZERO, "Each step of a batch is answered", "17")
def several(stage: Stage) -> None:
    steps = [step_of(stage, _some(stage), {"a": i}) for i in range(3)]
    batch = batch_of(stage, *steps)
    wanted = {step["step_id"] for step in steps}
    stage.until(
        lambda: (
            wanted <= {r["step_id"] for m in stage.seen("results") if m.get("batch_id") == batch for r in m["results"]}
        ),
        "results of all three steps",
    )


@case("loop.once", Level.ZERO, "A batch is answered once", "17", strength="should")
def once(stage: Stage) -> None:
    batch = batch_of(stage, step_of(stage, _some(stage), {"a": 1}))
    answer_to(stage, batch)
    stage.nothing("results", for_s=0.8, where=lambda m: m.get("batch_id") == batch, why="it was answered before")


@case("loop.sequence", Level.ZERO, "Fifty batches, one after the other, are all answered", "17", lasts_s=2)
def sequence(stage: Stage) -> None:
    for _ in range(50):
        answers(stage)


@case(
    "loop.burst",
    Level.ZERO,
    "Batches that arrive together are all answered",
    "17",
    cause="one frame is read for each wake-up",
)
def burst(stage: Stage) -> None:
    batches = [batch_of(stage, step_of(stage, _some(stage), {"a": i})) for i in range(10)]
    for batch in batches:
        answer_to(stage, batch)


@case(
    "loop.failure",
    Level.ZERO,
    "A handler that raises gives `failed` with an error, and the loop goes on",
    "17 and SDK_GUIDE 1",
    needs="conform.fail",
    cause="an exception of a handler ends the loop",
)
def failure(stage: Stage) -> None:
    result = run(stage, "conform.fail", {"kind": "error"})
    if result["status"] != "failed" or not result.get("error"):
        raise RuleBroken(f"a handler that raised gave {result!r}")
    answers(stage)


@case(
    "loop.permanent",
    Level.ZERO,
    "A permanent failure is `failed` with `retryable: false`",
    "5",
    needs="conform.fail",
    strength="should",
)
def permanent(stage: Stage) -> None:
    result = run(stage, "conform.fail", {"kind": "permanent"})
    retryable = (result.get("error") or {}).get("retryable", (result.get("metadata") or {}).get("retryable"))
    if retryable is not False:
        raise RuleBroken(f"a permanent failure gave {result!r}")


@case(
    "loop.unknown_handler",
    Level.ZERO,
    "An unknown `handler_class` is answered with `error` and the code `unknown_handler`, without a run",
    "17",
    strength="should",
    cause="every step runs the same function, whatever its handler_class",
)
def unknown_handler(stage: Stage) -> None:
    result = run(stage, UNKNOWN, {"a": 1})
    if (result.get("error") or {}).get("code") != "unknown_handler":
        raise RuleBroken(f"a step of {UNKNOWN} gave {result!r}")


def _malformed(name: str, what: str, *bodies: bytes) -> None:
    @case(
        f"loop.malformed_{name}",
        Level.ZERO,
        f"{what} does not end the loop",
        "17 and 3",
        cause="an error while reading a frame ends the loop",
    )
    def malformed(stage: Stage) -> None:
        for body in bodies:
            stage.send_body(body, topic=b"steps ")
        stage.wait(0.1)
        answers(stage)


_malformed("json", "A batch that is no JSON", b"{", b"", b"hello", b'{"batch_id":"x","steps":[')
_malformed("object", "A batch that is no object", b"[]", b"7", b"null")
_malformed("steps", "A batch without steps, or with steps of another form", b"{}", b'{"batch_id":"m_1"}')
_malformed("step", "A step without its members", b'{"to":"7.1","batch_id":"m_2","protocol_version":"1.0","steps":[{}]}')


@case(
    "loop.unknown_members",
    Level.ZERO,
    "Unknown members are ignored, and `to` as well",
    "3 and 17",
)
def unknown_members(stage: Stage) -> None:
    step = step_of(stage, _some(stage), {"a": 1}, later=[1, {"b": 2}], metadata={"later": None})
    answer_to(stage, batch_of(stage, step, later=True, priority={"a": 1}))


@case("loop.optional", Level.ZERO, "A step without idempotency_key and traceparent is run", "17")
def optional(stage: Stage) -> None:
    step = step_of(stage, _some(stage), {"a": 1})
    del step["metadata"]["idempotency_key"]
    answer_to(stage, batch_of(stage, step))


def _echoes(name: str, what: str, value: Any, cause: str = "") -> None:
    @case(f"loop.{name}", Level.ZERO, f"{what} arrives and returns unchanged", "3", needs="conform.echo", cause=cause)
    def echoes(stage: Stage) -> None:
        echoed(stage, value)


_echoes("spaces", "Text with spaces", {"text": "one two  three", " ": " "}, "the frame is split at every space")
_echoes("unicode", "Text in every plane of Unicode", {"text": "größe Ω 漢字 \U0001f600 \u2028"}, "text is not UTF-8")
_echoes("integers", "The largest integer", {"a": 2**53 - 1})
_echoes("null", "A member null", {"a": None, "b": False, "c": 0, "d": "", "e": []})
_echoes("large", "A text of 1 MiB", {"text": "x" * 1_048_576}, "MAXMSGSIZE is too small")


@case(
    "loop.input",
    Level.ZERO,
    "`input` replaces `task_context`, where a step has one",
    "6 and 17",
    needs="conform.echo",
    strength="should",
)
def input_member(stage: Stage) -> None:
    result = run(stage, "conform.echo", {"order_id": 1}, input={"mapped": True})
    if result.get("output") != {"mapped": True}:
        raise RuleBroken(f"with input and task_context, the handler got {result.get('output')!r}")


@case(
    "loop.nan",
    Level.ZERO,
    "An output with NaN is answered with JSON, or as a failure: no broker reads NaN",
    "3",
    needs="conform.bad_output",
    cause="the JSON encoder writes NaN",
)
def nan(stage: Stage) -> None:
    run(stage, "conform.bad_output", {"kind": "nan"})
    answers(stage)


@case(
    "loop.object",
    Level.ZERO,
    "An output that is no JSON is answered as a failure, and the loop goes on",
    "17",
    needs="conform.bad_output",
    cause="an output that cannot be encoded ends the loop",
)
def no_json(stage: Stage) -> None:
    run(stage, "conform.bad_output", {"kind": "object"})
    answers(stage)


@case(
    "loop.restart",
    Level.ZERO,
    "After a restart of the broker the handler gets and answers batches again",
    "17 and 20",
    fresh=True,
    lasts_s=3,
    cause="the binding does not reconnect, or the subscription is lost",
)
def restart(stage: Stage) -> None:
    broker = stage.broker
    answers(stage)
    broker.close()
    stage.wait(0.5)
    broker.epoch += 1
    broker.greeted = {"steps": 0, "results": 0}
    broker.open()
    stage.until(
        lambda: broker.is_subscribed(b"steps ") or broker.is_subscribed(b"steps"), "subscription after the restart"
    )
    stage.until(lambda: broker.greeted["results"] > 0, "connection to the results endpoint after the restart")
    stage.wait(0.5)
    answers(stage)


@case(
    "loop.brokers",
    Level.ZERO,
    "A handler with a list of brokers gets batches of each, and answers all of them",
    "17",
    strength="should",
    brokers=2,
    cause="only the first endpoint of STEPWIRE_STEPS and STEPWIRE_RESULTS is used; they are separated by commas",
)
def brokers(stage: Stage) -> None:
    for broker in stage.brokers:
        stage.until(
            lambda broker=broker: broker.is_subscribed(b"steps ") or broker.is_subscribed(b"steps"),  # type: ignore[misc]
            f"subscription of `steps ` at {broker.id}",
        )
        stage.until(
            lambda broker=broker: broker.greeted["results"] > 0,  # type: ignore[misc]
            f"connection to the results endpoint of {broker.id}",
        )
    stage.wait(0.5)  # the time that a broker waits before the first batch
    batches = []
    for number, broker in enumerate(stage.brokers, 1):
        step = step_of(stage, _some(stage), {"a": number})
        batches.append(batch_of(stage, step, batch_id=f"batch_of_{broker.id}_{number}", broker=broker))
    for batch_id in batches:
        for broker in stage.brokers:
            stage.expect("results", batch_id=batch_id, broker=broker.id, what=f"answer to {batch_id} at {broker.id}")


def _some(stage: Stage) -> str:
    """A handler that may run: that of the conformance worker, or one that no program has."""
    return "conform.echo" if stage.setting.has("conform.echo") else UNKNOWN
