"""`stepwire.testing`: handlers without a broker, and the results of their return values and exceptions."""

import asyncio
import dataclasses
import logging
from typing import TypedDict

import msgspec
import pytest
from stepwire import ConfigurationError, Context, Permanent, StepError, Worker, testing
from stepwire.handler import completed, encode_output, make_handler
from stepwire.tracebacks import BACKTRACE_BYTES_MAX
from stepwire_protocol.messages import StepMetadata, StepRequest


@dataclasses.dataclass
class AsDataclass:
    n: int


class AsStruct(msgspec.Struct):
    n: int


class AsTypedDict(TypedDict):
    n: int


def with_dataclass(ctx: Context, given: AsDataclass) -> int:
    return given.n


def with_struct(ctx: Context, given: AsStruct) -> int:
    return given.n


async def with_typed_dict(ctx: Context, given: AsTypedDict) -> int:
    return given["n"]


def with_dict(ctx: Context, given: dict) -> int:
    return given["n"]


async def without_annotation(ctx, given):
    return given["n"]


@pytest.mark.parametrize("handler", [with_dataclass, with_struct, with_typed_dict, with_dict, without_annotation])
def test_the_input_is_decoded_to_the_annotated_type(handler):
    assert testing.run(handler, {"n": 7}).output == 7


@pytest.mark.parametrize("handler", [with_dataclass, with_struct, with_typed_dict])
def test_an_input_of_another_type_is_bad_input(handler):
    outcome = testing.run(handler, {"n": "seven"})
    assert (outcome.status, outcome.error.code, outcome.error.retryable) == ("error", "bad_input", False)


def test_a_tested_handler_has_results_config_attempt_and_progress():
    def handler(ctx: Context) -> list:
        ctx.progress(1, 2, "half")
        return [ctx.results["pay"]["id"], ctx.config["mode"], ctx.attempt, ctx.idempotency_key]

    outcome = testing.run(handler, results={"pay": {"id": 3}}, config={"mode": "x"}, attempt=2, idempotency_key="k")
    assert outcome.is_completed
    assert outcome.output == [3, "x", 2, "k"]
    assert outcome.progress == [(1, 2, "half")]


def test_a_workers_handler_is_found_by_its_handler_class():
    worker = Worker()
    worker.handler("Billing::**")(with_dict)
    worker.handler("Billing::special")(lambda ctx: "special")
    assert testing.run(worker, {"n": 1}, handler_class="Billing::a::b").output == 1
    assert testing.run(worker, handler_class="Billing::special").output == "special"
    with pytest.raises(ConfigurationError, match=r"it offers Billing::\*\*"):
        testing.run(worker, handler_class="Shipping")


def test_in_an_async_test_the_handler_is_awaited():
    async def the_test():
        return [(await testing.run_async(h, {"n": 5})).output for h in (with_typed_dict, with_dict)]

    assert asyncio.run(the_test()) == [5, 5]


def test_a_timeout_is_enforced_as_in_a_worker():
    async def handler(ctx):
        await asyncio.sleep(60)

    outcome = testing.run(handler, timeout_ms=10)
    assert (outcome.status, outcome.error.code) == ("failed", "timeout")
    assert testing.run(handler, timeout_ms=10, delivery_mode="at_most_once").error.code == "outcome_unknown"


def test_a_handler_that_cancels_itself_has_failed():
    async def handler(ctx):
        raise asyncio.CancelledError

    assert testing.run(handler).error.code == "CancelledError"


class OutOfStock(StepError):
    pass


class Untextual(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyError("nope"), "KeyError", "KeyError: 'nope'"),
        (SystemExit(3), "SystemExit", "SystemExit: 3"),
        (ValueError(), "ValueError", "ValueError"),
        (Untextual(), "Untextual", "Untextual"),
        (ValueError("\ud800\0"), "ValueError", "ValueError: ?�"),
        (Permanent("card declined"), None, "card declined"),
        (Permanent("card declined", code="declined"), "declined", "card declined"),
        (OutOfStock("no kettle"), "OutOfStock", "no kettle"),
        (OutOfStock(), "OutOfStock", "OutOfStock"),
    ],
)
def test_the_message_of_an_unexpected_exception_begins_with_its_type(error, code, message):
    def handler(ctx: Context) -> None:
        raise error

    outcome = testing.run(handler)
    assert (outcome.error.code, outcome.error.message) == (code, message)
    assert (outcome.error.backtrace is None) == isinstance(error, StepError)


def fail_deep(depth):
    if depth:
        fail_deeper(depth - 1)
    raise RuntimeError("x" * 10_000)


def fail_deeper(depth):
    fail_deep(depth)  # two functions, because Python shortens the frames of one


@pytest.mark.parametrize("is_async", [False, True])
def test_a_backtrace_begins_at_the_handler_and_leaves_out_the_sdk(is_async):
    def plain(ctx: Context) -> None:
        try:
            ctx.progress("half")
        except ConfigurationError as error:
            raise LookupError("no progress") from error

    async def awaiting(ctx: Context) -> None:
        await asyncio.sleep(0)
        plain(ctx)

    error = testing.run(awaiting if is_async else plain).error
    files = [line for line in error.backtrace if line.startswith("  File ")]
    assert [line.rpartition(" in ")[2] for line in files] == ["plain", *["awaiting"] * is_async, "plain"]
    assert {line.split('"')[1] for line in files} == {__file__}
    assert error.backtrace[-1] == "LookupError: no progress"


def test_a_long_backtrace_keeps_its_end():
    error = testing.run(lambda ctx: fail_deep(200)).error
    assert sum(len(line.encode()) + 1 for line in error.backtrace) <= BACKTRACE_BYTES_MAX
    assert error.backtrace[-1].startswith("RuntimeError: xxx")
    assert error.backtrace[-3].endswith(" in fail_deep")
    assert error.backtrace[0].endswith(" earlier lines)")
    assert len(error.message) <= 2_000


def test_an_exception_with_a_long_text_keeps_its_frames():
    def handler(ctx: Context) -> None:
        raise ValueError("\n".join(f"line {number}" for number in range(5_000)))

    backtrace = testing.run(handler).error.backtrace
    assert backtrace[0] == "Traceback (most recent call last):"
    assert "in handler" in backtrace[1]
    assert backtrace[-1] == "… (4980 more lines)"


def test_a_note_of_progress_is_cut_to_200_characters_and_made_sendable():
    def handler(ctx: Context) -> None:
        ctx.progress(1, note="n" * 200)
        ctx.progress(1, note="n" * 201)
        ctx.progress(1, note="\ud800\0")

    assert [each.note for each in testing.run(handler).progress] == ["n" * 200, "n" * 199 + "…", "?�"]


def test_log_records_carry_the_ids(caplog):
    def handler(ctx: Context) -> None:
        ctx.log.warning("hot")

    with caplog.at_level(logging.WARNING):
        testing.run(handler)
    (record,) = caplog.records
    assert (record.task_id, record.step_id, record.delivery) == (1, 2, 1)


def test_the_record_of_a_failed_run_names_the_handler_and_leaves_out_the_sdk(caplog):
    def handler(ctx: Context) -> None:
        ctx.progress("\ud800")

    testing.run(handler)
    (record,) = caplog.records
    assert (record.event, record.task_id, record.step_id, record.attempt) == ("run_failed", 1, 2, 0)
    assert (record.pathname, record.funcName) == (__file__, "handler")
    assert record.exc_info[0] is ConfigurationError
    assert "in handler" in record.exc_text
    assert "context.py" not in record.exc_text
    record.exc_text.encode()  # no lone surrogates, which some outputs cannot write


@pytest.mark.parametrize("done", [float("nan"), float("inf"), 2**53 + 1, "1"])
def test_progress_takes_finite_numbers_only(done):
    def handler(ctx: Context) -> None:
        ctx.progress(done)

    assert testing.run(handler).error.code == "ConfigurationError"


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (None, b"null"),
        ([None, 1.5], b"[null,1.5]"),
        (2**53 - 1, b"9007199254740991"),
        ("ä\n", '"ä\\n"'.encode()),
        ("\\u0000", b'"\\\\u0000"'),
        (AsStruct(1), b'{"n":1}'),
        (AsDataclass(1), b'{"n":1}'),
        ([[[{}]]] * 20, None),
        ({str(i): {} for i in range(100)}, None),
        ("9" * 20, b'"99999999999999999999"'),
        (msgspec.Raw(b' {"a": 1}'), b' {"a": 1}'),
    ],
)
def test_valid_outputs_are_encoded_unchanged(value, body):
    assert encode_output(value) == (msgspec.json.encode(value) if body is None else body)


def _deep(levels):
    return [] if levels == 1 else [_deep(levels - 1)]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [None, {"a": float("-inf")}],
        AsDataclass(float("inf")),
        2**53,
        -(2**53),
        {"a": [2**64 - 1]},
        "\0",
        {"\0": 1},
        _deep(30),
        msgspec.Raw(b"{"),
        msgspec.Raw(b"NaN"),
    ],
)
def test_outputs_that_no_broker_accepts_are_refused(value):
    with pytest.raises(ValueError, match=r"\w"):
        encode_output(value)


def test_an_output_may_be_as_deep_as_a_results_message_allows():
    assert encode_output(_deep(29))


def test_execution_time_is_rounded_to_a_microsecond():
    async def quick(ctx: Context) -> int:
        return 1

    handler = make_handler(quick, "quick")
    step = StepRequest(
        step_id=1,
        task_id=1,
        step_name="s",
        handler_class="quick",
        delivery=1,
        metadata=StepMetadata(attempt=0, retry_limit=0, timeout_ms=0, idempotency_key="k"),
    )
    for took_ms in (0.0019540000008419156, 12.3456789, 7.0):
        metadata = completed(handler, step, 1, took_ms).metadata
        assert metadata is not None
        assert metadata.execution_time_ms == round(took_ms, 3)


@pytest.mark.parametrize("body", [b'1}],"x":[{"output":2', b"1,2", b"", b"{}{}", b'{"a":1'])
def test_raw_json_that_is_not_one_whole_value_is_refused(body: bytes) -> None:
    """A part of a larger value would change the structure of the message that carries it."""
    with pytest.raises(ValueError, match=r"\w"):
        encode_output(msgspec.Raw(body))


@pytest.mark.parametrize("body", [b"1", b'"a"', b"null", b"[1]", b'{"a":1}'])
def test_raw_json_may_be_any_value(body: bytes) -> None:
    assert encode_output(msgspec.Raw(body)) == body
