"""Level 1: what a handler receives and returns, byte by byte."""

from typing import Any, Final

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage

TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NESTED: Final[Any] = {"a": {"b": {"c": {"d": [[[[{"e": {"f": [1, [2, [3]]]}}]]]]}}}}


def _echoes(name: str, what: str, value: Any, cause: str = "") -> None:
    @case(f"payload.{name}", Level.ONE, f"{what} arrives and returns unchanged", "3", needs="conform.echo", cause=cause)
    def echoes(stage: Stage) -> None:
        result = stage.run("conform.echo", value)
        if result["status"] != "completed" or not _same(result.get("output"), value):
            raise RuleBroken(f"conform.echo of {str(value)[:200]!r} gave {str(result)[:300]}")


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and _kinds(a) == _kinds(b)


def _kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _kinds(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_kinds(inner) for inner in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


_echoes("empty", "An empty object", {})
_echoes("null", "A member null", {"a": None, "b": False, "c": 0, "d": "", "e": []})
_echoes(
    "spaces",
    "Text with spaces",
    {"text": "one two  three", "a key with spaces": " "},
    "the frame is split at every space, not at the first one only",
)
_echoes(
    "unicode",
    "Text in every plane of Unicode",
    {"text": "größe Ω 漢字 \U0001f600 \u2028 \u00a0 \ufeff", "ключ": "значение"},
    "text is decoded or encoded in another encoding than UTF-8",
)
_echoes("escapes", "Text with quotes, backslashes and control characters", {"text": '"\\/\b\f\n\r\t\u0001\u001f\u007f'})
_echoes("integers", "The largest integers", {"a": 2**53 - 1, "b": -(2**53) + 1}, "integers are read as 32 bits")
_echoes("floats", "Numbers with a fraction", {"a": 0.1, "b": 1e-9, "c": 12345.678901, "d": -2.5e10})
_echoes("deep", "A value of twelve levels", NESTED)
_echoes("long_array", "An array of ten thousand numbers", {"numbers": list(range(10_000))})
_echoes("keys", "Members named like those of the protocol", {"type": "ack", "v": "9.9", "worker": "x", "rid": 5})


@case(
    "payload.mebibyte_in",
    Level.ONE,
    "A step of 1 MiB arrives",
    "19 and 20",
    needs="conform.echo",
    lasts_s=2,
    cause="MAXMSGSIZE of the SUB socket is below 8 MiB",
)
def mebibyte_in(stage: Stage) -> None:
    result = stage.run("conform.echo", {"text": "é" * (512 * 1024)})
    if len((result.get("output") or {}).get("text", "")) != 512 * 1024:
        raise RuleBroken(f"1 MiB came back as {str(result)[:300]}")


@case("payload.mebibyte_out", Level.ONE, "An output of 1 MiB arrives", "19 and 20", needs="conform.big", lasts_s=2)
def mebibyte_out(stage: Stage) -> None:
    result = stage.run("conform.big", {"bytes": 1_048_576})
    if len((result.get("output") or {}).get("text", "")) != 1_048_576:
        raise RuleBroken(f"1 MiB of output came as {str(result)[:300]}")


@case(
    "payload.context",
    Level.ONE,
    "The handler gets its ids, attempt, delivery, idempotency key, config and results as they were sent",
    "6",
    needs="conform.context",
)
def context(stage: Stage) -> None:
    step = stage.step(
        "conform.context",
        {"order_id": 1},
        handler_config={"shipping_timeout": 60},
        previous_results={"process_payment": {"transaction_id": "txn_789"}},
        delivery=3,
        metadata={"attempt": 2},
    )
    output = stage.steps(step).result().get("output") or {}
    expected = {
        "step_id": step["step_id"],
        "task_id": 6591,
        "attempt": 2,
        "delivery": 3,
        "idempotency_key": step["metadata"]["idempotency_key"],
        "config": {"shipping_timeout": 60},
        "results": {"process_payment": {"transaction_id": "txn_789"}},
        "handler_class": "conform.context",
    }
    wrong = {name: output.get(name) for name, value in expected.items() if output.get(name) != value}
    if wrong:
        raise RuleBroken(f"the handler saw {wrong!r}; expected { ({name: expected[name] for name in wrong})!r}")


@case(
    "payload.input", Level.ONE, "A step's `input` replaces its `task_context` as the input", "6", needs="conform.echo"
)
def input_member(stage: Stage) -> None:
    result = stage.run("conform.echo", {"order_id": 1}, input={"mapped": True})
    if result.get("output") != {"mapped": True}:
        raise RuleBroken(f"with input and task_context, the handler got {result.get('output')!r}")


@case("payload.null_input", Level.ONE, "An `input` of null is an input", "6", needs="conform.echo")
def null_input(stage: Stage) -> None:
    result = stage.run("conform.echo", {"order_id": 1}, input=None)
    if result["status"] != "completed" or result.get("output") is not None:
        raise RuleBroken(f"with the input null, conform.echo gave {result!r}")


@case(
    "payload.scalar_input", Level.ONE, "An `input` that is a number or an array is an input", "6", needs="conform.echo"
)
def scalar_input(stage: Stage) -> None:
    for value in (7, "text", [1, 2], True):
        result = stage.run("conform.echo", input=value)
        if result.get("output") != value:
            raise RuleBroken(f"with the input {value!r}, conform.echo gave {result!r}")


@case(
    "payload.traceparent",
    Level.ONE,
    "`traceparent` reaches the handler and what it calls; its flags are masked, not compared",
    "6",
    needs=("conform.context", "conform.trace"),
)
def traceparent(stage: Stage) -> None:
    metadata = {"traceparent": TRACEPARENT}
    seen = (stage.run("conform.context", metadata=dict(metadata)).get("output") or {}).get("traceparent")
    passed = (stage.run("conform.trace", metadata=dict(metadata)).get("output") or {}).get("traceparent") or ""
    if seen != TRACEPARENT:
        raise RuleBroken(f"the handler saw the traceparent {seen!r}")
    if passed.split("-")[1:2] != TRACEPARENT.split("-")[1:2]:
        raise RuleBroken(f"the traceparent that is passed on is {passed!r}: another trace")


@case(
    "payload.tracestate",
    Level.ONE,
    "`tracestate` reaches the handler together with `traceparent`",
    "6",
    strength="should",
    needs="conform.context",
)
def tracestate(stage: Stage) -> None:
    metadata = {"traceparent": TRACEPARENT, "tracestate": "congo=t61rcWkgMzE"}
    seen = (stage.run("conform.context", metadata=metadata).get("output") or {}).get("tracestate")
    if seen != "congo=t61rcWkgMzE":
        raise RuleBroken(f"the handler saw the tracestate {seen!r}")


@case(
    "payload.defaults",
    Level.ONE,
    "Members with a default may be absent from a step",
    "3 and 6",
    needs="conform.context",
)
def defaults(stage: Stage) -> None:
    step = stage.step("conform.context")
    for name in ("handler_config", "task_context", "previous_results", "delivery_mode"):
        del step[name]
    sent = {**step, "delivery_mode": "at_least_once"}
    stage.watch.sent((step["step_id"], 1), "at_least_once", "batch_d_1")
    message = stage.broker.message(
        "steps", session=stage.session(), batch_id="batch_d_1", protocol_version="2.0", steps=[step]
    )
    stage.send(message)
    output = stage.result_of((sent["step_id"], 1)).get("output") or {}
    if (output.get("config"), output.get("results")) != ({}, {}):
        raise RuleBroken(f"the handler saw config {output.get('config')!r} and results {output.get('results')!r}")
