"""References to secrets in a worker: resolved before the handler, and absent from all that leaves the worker."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import Raw
from stepwire import Context, Worker, testing
from stepwire.redaction import VALUES_MAX, Redactor
from stepwire.secret_files import VALUE_BYTES_MAX, SecretUnavailable, read_secret
from stepwire_protocol.messages import Progress

from . import process_handlers
from .dialogue import step
from .scripted_broker import ScriptedBroker

KEY = "sk_live_5eb63bbbe01eeed0"
CARD = "4929-7654-0001"
CONFIG = Raw(b'{"key":{"$secret":"stripe/live"}}')
CONTEXT = Raw(b'{"card":{"$secret":"card"},"n":1}')


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    (directory / "stripe").mkdir(parents=True, mode=0o700)
    for name, value in (("stripe/live", f"{KEY}\n"), ("card", CARD)):
        (directory / name).write_text(value)
        (directory / name).chmod(0o600)
    return directory


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker = ScriptedBroker("ipc://s", "ipc://r")
    yield broker
    broker.close()


@pytest.fixture
def worker(broker, directory, monkeypatch):
    monkeypatch.setenv("STEPWIRE_SECRETS_DIR", str(directory))
    worker = Worker.from_env(steps="ipc://s", results="ipc://r", name="test", slots=4, prefetch=50)
    yield worker
    worker.stop(drain_ms=100)


# -- resolving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_receives_the_values_in_the_place_of_references(broker, worker, kind):
    seen = []
    if kind == "async":

        @worker.handler("pay")
        async def pay(ctx: Context, given: dict) -> str:
            seen.append((ctx.config, given))
            return "paid"

    else:

        @worker.handler("pay")
        def pay_in_thread(ctx: Context, given: dict) -> str:
            seen.append((ctx.config, given))
            return "paid"

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="pay", handler_config=CONFIG, task_context=CONTEXT))
    assert bytes(broker.result(1).output) == b'"paid"'
    assert seen == [({"key": KEY}, {"card": CARD, "n": 1})]


def test_a_reference_with_an_escaped_key_is_a_reference(broker, worker):
    worker.handler("pay")(lambda ctx: len(ctx.config["key"]))
    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="pay", handler_config=Raw(b'{"key":{"\\u0024secret":"stripe/live"}}')))
    assert bytes(broker.result(1).output) == str(len(KEY)).encode()


def test_a_mapped_input_is_resolved_and_outputs_of_other_steps_are_not(broker, worker):
    seen = []
    worker.handler("pay")(lambda ctx, given: seen.append((given, ctx.results)))
    worker.start()
    broker.until_welcomed()
    reference = Raw(b'{"a":{"$secret":"card"}}')
    broker.run(step(1, handler="pay", input=reference, previous_results=reference, task_context=Raw(b"{}")))
    assert broker.result(1).status == "completed"
    assert seen == [({"a": CARD}, {"a": {"$secret": "card"}})]


def test_a_rotated_secret_is_used_for_the_next_step(broker, worker, directory):
    worker.handler("length")(lambda ctx: len(ctx.config["key"]))
    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="length", handler_config=CONFIG))
    assert bytes(broker.result(1).output) == str(len(KEY)).encode()
    (directory / "stripe/live").write_text("rotated")
    broker.run(step(2, handler="length", handler_config=CONFIG))
    assert bytes(broker.result(2).output) == b"7"


@pytest.mark.parametrize(
    ("secrets", "category"), [(lambda name: None, None), (lambda name: 1 / 0, "unavailable"), (None, None)]
)
def test_a_step_whose_secret_is_missing_fails_with_its_name_and_its_handler_is_not_called(broker, secrets, category):
    called = []
    worker = Worker(steps="ipc://s", results="ipc://r", name="test", secrets=secrets)
    worker.handler("pay")(lambda ctx: called.append(1))
    worker.start()
    try:
        broker.until_welcomed()
        broker.run(step(1, handler="pay", handler_config=CONFIG))
        result = broker.result(1)
    finally:
        worker.stop(drain_ms=100)
    assert (result.status, result.error.code, result.error.retryable) == ("error", "secret_unavailable", True)
    assert "'stripe/live'" in result.error.message
    assert result.error.category == category
    assert called == []


def test_a_lease_that_ends_while_a_secret_is_read_gives_the_step_back(broker):
    """A slow resolver must not let two workers run a step."""
    called = []
    asked = threading.Event()
    worker = Worker(steps="ipc://s", results="ipc://r", name="test", secrets=lambda name: slow())
    worker.handler("pay")(lambda ctx: called.append(1))
    worker.start()

    def slow() -> str:
        thread = worker._thread
        assert thread is not None
        for call in thread._calls.values():
            call.run.lease.until_ms = 0.0  # as after 10 s without an ack
        asked.set()
        return "value"

    try:
        broker.until_welcomed()
        broker.run(step(1, handler="pay", handler_config=CONFIG))
        broker.until(lambda: asked.is_set() and thread_holds(worker) == [])
    finally:
        worker.stop(drain_ms=100)
    assert called == []
    assert 1 not in broker.results


def thread_holds(worker: Worker) -> list[int]:
    assert worker._thread is not None
    return list(worker._thread._calls)


# -- redaction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
def test_errors_backtraces_progress_and_logs_hold_no_value_of_a_secret(broker, worker, kind, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    if kind == "process":
        worker.handler("pay", process=True)(process_handlers.tell_the_secret)
    elif kind == "thread":
        worker.handler("pay")(process_handlers.tell_the_secret)
    else:

        @worker.handler("pay")
        async def pay(ctx: Context, given: dict) -> None:
            process_handlers.tell_the_secret(ctx, given)

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="pay", handler_config=CONFIG, task_context=CONTEXT))
    error = broker.result(1).error
    assert error.message == "ValueError: refused: [secret card] and [secret stripe/live]"
    everything = [*map(msgspec.json.encode, broker.received), msgspec.json.encode(error), *capfd.readouterr()]
    everything += [f"{vars(record)} {logging.Formatter().format(record)}" for record in caplog.records]
    for text in map(str, everything):
        assert KEY not in text
        assert CARD not in text
    assert any("child has [secret card]" in record.getMessage() for record in caplog.records)


def test_a_progress_note_holds_no_value_of_a_secret(broker, worker):
    broker_has_it = threading.Event()

    @worker.handler("pay")
    def pay(ctx: Context) -> None:
        ctx.progress(1, 2, f"using {ctx.config['key']}")
        broker_has_it.wait(20)

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="pay", handler_config=CONFIG))
    broker.until(lambda: broker.first(Progress, lambda m: True))
    broker_has_it.set()
    (progress,) = [m for m in broker.received if isinstance(m, Progress)]
    assert progress.items[0][4] == "using [secret stripe/live]"


def test_an_exception_without_a_text_is_logged_in_a_process_with_secrets(caplog):
    class Untextual(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(ctx: Context) -> None:
        raise Untextual

    outcome = testing.run(fail, config={"key": {"$secret": "stripe/live"}}, secrets={"stripe/live": KEY})
    assert outcome.error.message == "Untextual"
    assert caplog.records


def test_an_output_holds_no_value_of_a_secret():
    def leak(ctx: Context) -> dict:
        return {"authorization": f"Bearer {ctx.config['key']}", ctx.config["key"]: [ctx.config["pin"]]}

    config = {"key": {"$secret": "stripe/live"}, "pin": {"$secret": "pin"}}
    outcome = testing.run(leak, config=config, secrets={"stripe/live": KEY, "pin": "eu"})
    assert outcome.output == {"authorization": "Bearer [secret stripe/live]", "[secret stripe/live]": ["eu"]}


def test_an_input_that_does_not_fit_is_refused_without_the_value():
    class Choice(msgspec.Struct):
        card: Literal["visa"]

    def pay(ctx: Context, given: Choice) -> None: ...

    outcome = testing.run(pay, {"card": {"$secret": "card"}}, secrets={"card": CARD})
    assert outcome.error.code == "bad_input"
    assert CARD not in outcome.error.message


def test_a_redactor_removes_lines_and_escaped_forms_and_prefers_the_longest_value():
    redactor = Redactor()
    redactor.add("pem", "-----BEGIN-----\nabcdefgh\n-----END-----")
    redactor.add("short", "tok")
    redactor.add("long", "token-of-many")
    redactor.add("odd", 'quo"te\\')
    texts = {
        "line abcdefgh!": "line [secret pem]!",
        repr("-----BEGIN-----\nabcdefgh\n-----END-----"): "'[secret pem]'",
        "token-of-many": "[secret long]",
        '{"a":"quo\\"te\\\\"}': '{"a":"[secret odd]"}',
    }
    assert {text: redactor.redact(text) for text in texts} == texts


def test_a_redactor_keeps_the_latest_values_and_is_bounded():
    redactor = Redactor()
    for number in range(VALUES_MAX + 1):
        redactor.add(f"n{number}", f"value-{number:06}")
    assert redactor.redact("value-000000 value-000001") == "value-000000 [secret n1]"


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "value"), [(b"x\n", "x"), (b"x\r\n", "x"), (b"x\n\n", "x\n"), (b" x ", " x "), (b"x\r", "x\r")]
)
def test_one_line_end_is_not_part_of_a_value(directory, content, value):
    (directory / "card").write_bytes(content)
    assert read_secret(str(directory), "card") == value


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o400])
def test_a_file_that_others_cannot_use_is_read(directory, mode):
    (directory / "card").chmod(mode)
    assert read_secret(str(directory), "card") == CARD


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602, 0o604])
def test_a_file_that_others_may_use_is_refused(directory, mode):
    (directory / "card").chmod(mode)
    with pytest.raises(SecretUnavailable, match=rf"secret 'card'.*mode {mode:04o}.*chmod 600"):
        read_secret(str(directory), "card")


def test_links_inside_the_directory_are_followed_and_others_are_refused(directory, tmp_path):
    (directory / "linked").symlink_to("card")
    assert read_secret(str(directory), "linked") == CARD
    (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").chmod(0o600)
    (directory / "leaving").symlink_to(tmp_path / "outside")
    with pytest.raises(SecretUnavailable, match="leads out of"):
        read_secret(str(directory), "leaving")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "empty"), (b"\n", "empty"), (b"\xff", "UTF-8"), (b"x" * (VALUE_BYTES_MAX + 1), "more than 65536 bytes")],
)
def test_a_file_without_a_usable_value_is_refused(directory, content, why):
    (directory / "card").write_bytes(content)
    with pytest.raises(SecretUnavailable, match=f"secret 'card'.*{why}"):
        read_secret(str(directory), "card")


def test_a_pipe_a_directory_and_a_missing_file_are_refused_without_waiting(directory):
    os.mkfifo(directory / "pipe", 0o600)
    began = time.monotonic()
    for name, why in (("pipe", "no regular file"), ("stripe", "no regular file"), ("none", "no such file")):
        with pytest.raises(SecretUnavailable, match=f"secret '{name}'.*{why}"):
            read_secret(str(directory), name)
    assert time.monotonic() - began < 60


def test_a_directory_that_others_may_write_is_refused_unless_it_is_sticky(directory):
    directory.chmod(0o777)
    with pytest.raises(SecretUnavailable, match="chmod 700"):
        read_secret(str(directory), "card")
    directory.chmod(0o1777)
    assert read_secret(str(directory), "card") == CARD
