"""Level 1: what a result says when a handler does not complete."""

import json
from typing import Any

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


def _failure(stage: Stage, kind: str) -> dict[str, Any]:
    result = stage.run("conform.fail", {"kind": kind})
    if result["status"] != "failed" or not result.get("error"):
        raise RuleBroken(f"conform.fail with kind {kind} gave {result!r}")
    error: dict[str, Any] = result["error"]
    return error


@case(
    "errors.ordinary",
    Level.ONE,
    "A handler that raises an ordinary error gives `failed`, and the failure is retryable",
    "5 and SDK_GUIDE 6",
    needs="conform.fail",
)
def ordinary(stage: Stage) -> None:
    error = _failure(stage, "error")
    if error.get("retryable") is False:
        raise RuleBroken("an ordinary error is reported with retryable false")
    if not error.get("message"):
        raise RuleBroken("the error has no message")


@case(
    "errors.type",
    Level.ONE,
    "The message of an unexpected exception begins with its type, and `code` is that type",
    "SDK_GUIDE 16",
    strength="should",
    needs="conform.fail",
)
def type_of_error(stage: Stage) -> None:
    error = _failure(stage, "error")
    if not error.get("code") or not error["message"].startswith(error["code"]):
        raise RuleBroken(f"code is {error.get('code')!r} and message is {error.get('message')!r}")


@case(
    "errors.permanent",
    Level.ONE,
    "*Permanent* gives `failed` with `retryable: false` and the handler's code",
    "SDK_GUIDE 6",
    needs="conform.fail",
)
def permanent(stage: Stage) -> None:
    error = _failure(stage, "permanent")
    if error.get("retryable") is not False or error.get("code") != "conform":
        raise RuleBroken(f"Permanent with the code `conform` gave {error!r}")


@case(
    "errors.retry",
    Level.ONE,
    "*Retry(after)* gives `failed` with `retry_after_ms`",
    "SDK_GUIDE 6",
    needs="conform.fail",
)
def retry(stage: Stage) -> None:
    error = _failure(stage, "retry")
    if error.get("retry_after_ms") != 1500 or error.get("retryable") is False:
        raise RuleBroken(f"Retry after 1.5 s gave {error!r}")


@case(
    "errors.outcome_unknown",
    Level.ONE,
    "*OutcomeUnknown* gives `failed` with the code `outcome_unknown`",
    "5 and SDK_GUIDE 6",
    needs="conform.fail",
)
def outcome_unknown(stage: Stage) -> None:
    error = _failure(stage, "unknown")
    if error.get("code") != "outcome_unknown":
        raise RuleBroken(f"OutcomeUnknown gave {error!r}")


@case(
    "errors.unavailable",
    Level.ONE,
    "The category `unavailable` reaches the broker",
    "5",
    needs="conform.fail",
)
def unavailable(stage: Stage) -> None:
    error = _failure(stage, "unavailable")
    if error.get("category") != "unavailable":
        raise RuleBroken(f"StepError with the category `unavailable` gave {error!r}")


@case(
    "errors.unknown_handler",
    Level.ONE,
    "A step whose handler the worker does not have is refused with `unknown_handler`",
    "5 and 10",
    cause="the worker answers with an `error` result, or not at all: the step would be charged an attempt, or be sent"
    " for ever",
)
def unknown_handler(stage: Stage) -> None:
    if any(pattern in ("**", "*") for pattern in stage.setting.handlers):
        return  # the worker offers every name
    batch = stage.steps(stage.step("conform.no_such_handler", {}))
    refused = batch.refused("unknown_handler")
    if [list(item) for item in batch.items] != refused["items"]:
        raise RuleBroken(f"refuse names {refused['items']!r}, and the batch was {batch.items!r}")


@case(
    "errors.unknown_in_batch",
    Level.ONE,
    "A batch that is kept in part gets `refuse` for the refused items, and `accept` for the others",
    "10",
    needs="conform.wait",
)
def unknown_in_batch(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.no_such_handler", {}), stage.step("conform.wait", {"ms": 800}))
    refused = batch.refused("unknown_handler")
    if refused["items"] != [list(batch.items[0])]:
        raise RuleBroken(f"refuse names {refused['items']!r}, and only {list(batch.items[0])} has an unknown handler")
    batch.accepted()
    stage.result_of(batch.items[1])


@case(
    "errors.unknown_again",
    Level.ONE,
    "A refused item has a tombstone: the same message again is answered again, and never runs",
    "10 (W3)",
)
def unknown_again(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.no_such_handler", {}))
    if any(pattern in ("**", "*") for pattern in stage.setting.handlers):
        return
    batch.refused("unknown_handler")
    batch.again()
    stage.expect("refuse", batch_id=batch.id)


@case(
    "errors.bad_input",
    Level.ONE,
    "An input that does not fit the handler's type is an `error` with the code `bad_input`, and is not retried",
    "5 and SDK_GUIDE 6",
    needs="conform.typed",
)
def bad_input(stage: Stage) -> None:
    result = stage.run("conform.typed", {"order_id": "twelve"})
    _expect_error(result, "bad_input")


@case(
    "errors.good_input",
    Level.ONE,
    "A typed input reaches the handler, and unknown members of it do no harm",
    "3",
    needs="conform.typed",
)
def good_input(stage: Stage) -> None:
    result = stage.run("conform.typed", {"order_id": 7, "note": "late", "more": [1]})
    output = result.get("output") or {}
    if (output.get("order_id"), output.get("note")) != (7, "late"):
        raise RuleBroken(f"conform.typed gave {result!r}")


def _expect_error(result: dict[str, Any], code: str) -> None:
    error = result.get("error") or {}
    if result["status"] != "error" or error.get("code") != code or error.get("retryable") is not False:
        raise RuleBroken(f"expected status error, code {code}, retryable false: {json.dumps(result)[:400]}")


def _bad_output(kind: str, what: str, strength: str = "must") -> None:
    @case(
        f"errors.output_{kind}",
        Level.ONE,
        f"An output with {what} is reported as `error` with the code `bad_output`, or as JSON without it",
        "3 and SDK_GUIDE 3",
        needs="conform.bad_output",
        cause="the output is encoded without a check, and every broker refuses the whole message",
    )
    def bad_output(stage: Stage) -> None:
        result = stage.run("conform.bad_output", {"kind": kind})
        if result["status"] == "completed":
            return  # the language has made valid JSON of it
        _expect_error(result, "bad_output")


_bad_output("nan", "NaN")
_bad_output("bigint", "an integer beyond 2^53 − 1")
_bad_output("nul", "U+0000 in a string")
_bad_output("surrogate", "half of a surrogate pair")
_bad_output("object", "a value that is no JSON")


@case(
    "errors.too_large",
    Level.ONE,
    "A result larger than the broker's `max_message_bytes` becomes `error` with the code `too_large`",
    "11",
    needs="conform.big",
    fresh=True,
    auto=False,
    cause="`welcome.max_message_bytes` is ignored",
)
def too_large(stage: Stage) -> None:
    stage.broker.max_message_bytes = 100_000
    stage.open_session()
    result = stage.run("conform.big", {"bytes": 200_000})
    _expect_error(result, "too_large")


@case(
    "errors.split",
    Level.ONE,
    "Results that together exceed `max_message_bytes` are split by steps",
    "11",
    needs="conform.big",
    fresh=True,
    auto=False,
)
def split(stage: Stage) -> None:
    stage.broker.max_message_bytes = 100_000
    stage.open_session()
    batch = stage.steps(*[stage.step("conform.big", {"bytes": 60_000}) for _ in range(3)])
    for item in batch.items:
        result = stage.result_of(item)
        if result["status"] != "completed":
            raise RuleBroken(f"an output of 60,000 bytes was not delivered: {str(result)[:300]}")
    largest = max(len(m.raw) for m in stage.seen("results"))
    if largest > 100_200:
        raise RuleBroken(f"a message of {largest} bytes, and the broker accepts 100,000")


@case(
    "errors.refused",
    Level.ONE,
    "After `refused` with its rid, the worker never sends those bytes again",
    "11 and SDK_GUIDE 12",
    needs="conform.echo",
    lasts_s=3,
    cause="`refused` is not read, so the results are sent for ever",
)
def refused(stage: Stage) -> None:
    batch, rid = _refuse_results(stage)
    stage.drop_seen()
    stage.nothing("results", for_s=2.0, where=lambda m: m["rid"] == rid, why=f"rid {rid} was refused")
    assert batch is not None


@case(
    "errors.result_refused",
    Level.ONE,
    "Items of refused results are reported once more, as `error` with the code `result_refused`",
    "11",
    strength="should",
    needs="conform.echo",
)
def result_refused(stage: Stage) -> None:
    batch, rid = _refuse_results(stage)
    stage.broker.acks_results = True
    message = stage.expect("results", where=lambda m: m["rid"] != rid and m["batch_id"] == batch)
    _expect_error(message["results"][0], "result_refused")


def _refuse_results(stage: Stage) -> tuple[str, int]:
    stage.broker.acks_results = False
    stage.watch.allows_second_answer = True
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.send(
        stage.broker.message(
            "refused", code="nul_character", message="a string holds U+0000", refused="results", rid=rid
        )
    )
    stage.broker.acks_results = True
    return batch.id, rid


@case(
    "errors.refused_twice",
    Level.ONE,
    "If the report of refused results is refused as well, the worker forgets the items",
    "11",
    needs="conform.echo",
    lasts_s=3,
    cause="every refusal is answered with another report, for ever",
)
def refused_twice(stage: Stage) -> None:
    batch, rid = _refuse_results(stage)
    stage.broker.acks_results = False
    refused = {rid}
    for _ in range(40):
        stage.wait(0.1)
        for message in stage.seen("results"):
            if message["batch_id"] == batch and message["rid"] not in refused:
                refused.add(message["rid"])
                stage.send(
                    stage.broker.message(
                        "refused", code="bad_field", message="no", refused="results", rid=message["rid"]
                    )
                )
        if len(refused) > 3:
            raise RuleBroken(f"{len(refused)} messages were refused, and each was answered with another one")


@case(
    "errors.refused_other",
    Level.ONE,
    "`refused` without a rid is logged, and changes nothing",
    "6",
    needs="conform.echo",
)
def refused_other(stage: Stage) -> None:
    stage.send(stage.broker.message("refused", code="not_json", message="JSON is malformed (byte 5)"))
    stage.run("conform.echo", {})


@case(
    "errors.crash",
    Level.ONE,
    "A handler that crashes its process either ends the worker, whose lease or death the broker sees, or is reported"
    " as `process_died`",
    "8.5 and 15.3",
    needs="conform.crash",
    fresh=True,
)
def crash(stage: Stage) -> None:
    stage.may_end = True
    batch = stage.steps(stage.step("conform.crash", {}))
    stage.until(
        lambda: (
            stage.running.exit_code() is not None
            or any(batch.item == (r["step_id"], r["delivery"]) for m in stage.seen("results") for r in m["results"])
        ),
        "end of the program, or a result `process_died`",
    )
    if stage.running.exit_code() is not None:
        stage.until(lambda: bool(stage.broker.unsubscriptions), "end of the program's connections", within_s=6)
