"""The worker over real sockets, against a scripted broker."""

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw
from stepwire import Context, OutcomeUnknown, Permanent, Retry, Worker
from stepwire.worker import socket_thread
from stepwire_protocol.messages import Bye, Cancel, Go, Heartbeat, HeartbeatAck, Hello, Progress, Refuse, Results, Start

from . import process_handlers
from .dialogue import once, step
from .scripted_broker import ScriptedBroker


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker = ScriptedBroker("ipc://s", "ipc://r")
    yield broker
    broker.close()


@pytest.fixture
def worker(broker):
    worker = Worker(steps="ipc://s", results="ipc://r", name="test", slots=4, prefetch=50)
    yield worker
    worker.stop(drain_ms=100)


def output(result):
    assert result.status == "completed", result.error
    return msgspec.json.decode(result.output)


@pytest.mark.parametrize("scheme", ["ipc", "tcp", "inproc"])
def test_steps_run_and_results_come_back_over_each_transport(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endpoints = {
        "ipc": ("ipc://s", "ipc://r"),
        "tcp": ("tcp://127.0.0.1:*",) * 2,
        "inproc": ("inproc://s", "inproc://r"),
    }
    broker = ScriptedBroker(*endpoints[scheme])
    context = broker.context if scheme == "inproc" else None
    worker = Worker(steps=broker.steps_endpoint, results=broker.results_endpoint, context=context)

    @worker.handler("double")
    def double(ctx: Context, order: dict) -> int:
        return order["n"] * 2

    worker.start()
    try:
        broker.until_welcomed()
        broker.run(*[step(i, handler="double", task_context=Raw(b'{"n":%d}' % i)) for i in range(1, 11)])
        assert [output(broker.result(i)) for i in range(1, 11)] == [2 * i for i in range(1, 11)]
        broker.until(lambda: broker.received[-1] and broker.first(Heartbeat, lambda m: m.holding == []))
    finally:
        worker.stop(drain_ms=100)
        broker.close()


class Order(msgspec.Struct):
    order_id: int


def test_async_handlers_wait_side_by_side_and_each_has_its_own_context_variables(broker, worker):
    variable = contextvars.ContextVar("variable", default="clean")
    together = asyncio.Event()
    waiting = []

    @worker.handler("meet")
    async def meet(ctx: Context, order: Order) -> dict:
        seen = variable.get()
        variable.set(f"dirty {order.order_id}")
        waiting.append(order.order_id)
        if len(waiting) == 4:
            together.set()
        async with asyncio.timeout(10):
            await together.wait()
        return {"order": order.order_id, "seen": seen, "kept": variable.get()}

    worker.start()
    broker.until_welcomed()
    broker.run(*[step(i, handler="meet", task_context=Raw(b'{"order_id":%d}' % i)) for i in range(1, 9)])
    for i in range(1, 9):
        waiting += [0] if i > 4 else []
        assert output(broker.result(i)) == {"order": i, "seen": "clean", "kept": f"dirty {i}"}


def test_the_context_of_a_handler_has_the_members_of_its_step(broker, worker):
    @worker.handler("look::*")
    def look(ctx: Context, given: dict) -> list:
        return [
            *(ctx.task_id, ctx.step_id, ctx.step_name, ctx.attempt, ctx.delivery, ctx.delivery_mode),
            *(ctx.idempotency_key, ctx.config, ctx.results, given, ctx.handler_class, 0 < ctx.remaining_ms <= 30_000),
        ]

    worker.start()
    broker.until_welcomed()
    broker.run(
        step(
            5,
            3,
            handler="look::here",
            handler_config=Raw(b'{"c":1}'),
            task_context=Raw(b'{"t":1}'),
            previous_results=Raw(b'{"p":1}'),
            input=Raw(b'{"i":1}'),
        )
    )
    expected = [1_000_005, 5, "s5", 0, 3, "at_least_once", "k/5", {"c": 1}, {"p": 1}, {"i": 1}, "look::here", True]
    assert output(broker.result(5)) == expected


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    ("raised", "status", "code", "retryable", "retry_after_ms"),
    [
        (ValueError("no"), "failed", "ValueError", None, None),
        (Permanent("no", code="card_declined"), "failed", "card_declined", False, None),
        (Retry("later", after=1.5), "failed", None, True, 1500),
        (OutcomeUnknown("no answer"), "failed", "outcome_unknown", None, None),
        (SystemExit(3), "failed", "SystemExit", None, None),
        (RuntimeError("nul \0 and half \ud800"), "failed", "RuntimeError", None, None),
    ],
)
def test_an_exception_of_a_handler_becomes_a_result_of_the_protocol(
    broker, worker, kind, raised, status, code, retryable, retry_after_ms
):
    if kind == "async":

        @worker.handler("h")
        async def h(ctx):
            raise raised
    else:

        @worker.handler("h")
        def h2(ctx):
            raise raised

    worker.start()
    broker.until_welcomed()
    broker.run(step(1))
    result = broker.result(1)
    assert (result.status, result.error.code) == (status, code)
    assert (result.error.retryable, result.error.retry_after_ms) == (retryable, retry_after_ms)


def _deep(levels):
    return [] if levels == 0 else [_deep(levels - 1)]


@pytest.mark.parametrize("value", [object(), 2**60, {"a": "\0"}, "\ud800", Raw(b'{"a":1,"a":2}'), _deep(40)])
def test_an_output_that_is_not_valid_json_is_an_error_and_unknown_for_at_most_once(broker, worker, value):
    @worker.handler("h")
    def h(ctx):
        return value

    worker.start()
    broker.until_welcomed()
    broker.run(step(1), once(2))
    broker.until_received(Start)
    broker.send(Go, session=broker.session, items=[(2, 1)])
    assert (broker.result(1).status, broker.result(1).error.code) == ("error", "bad_output")
    assert broker.result(1).error.retryable is False
    assert broker.result(2).error.code == "outcome_unknown"


def _yields(ctx):
    yield 1


async def _yields_async(ctx):
    yield 1


def _calls_async(ctx):
    return _step(ctx)


async def _step(ctx):
    return None


@pytest.mark.parametrize(
    ("function", "advice"),
    [(_yields, "uses yield"), (_yields_async, "uses yield"), (_calls_async, "await it")],
)
def test_an_output_that_was_never_computed_is_an_error_with_advice(broker, worker, function, advice):
    worker.handler("h")(function)
    worker.start()
    broker.until_welcomed()
    broker.run(step(1))
    assert broker.result(1).error.code == "bad_output"
    assert advice in broker.result(1).error.message


def test_an_input_of_the_wrong_type_is_an_error_that_is_not_retried(broker, worker):
    @worker.handler("h")
    async def h(ctx: Context, order: Order) -> None:
        raise AssertionError("entered")

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, task_context=Raw(b'{"order_id":"seven"}')))
    result = broker.result(1)
    assert (result.status, result.error.code, result.error.retryable) == ("error", "bad_input", False)
    assert "$.order_id" in result.error.message


def test_an_at_most_once_step_runs_after_go(broker, worker):
    entered = threading.Event()

    @worker.handler("h")
    def h(ctx):
        entered.set()

    worker.start()
    broker.until_welcomed()
    broker.run(once(1))
    broker.until_received(Start)
    broker.until_received(Start, lambda m: m is not broker.first(Start))
    assert not entered.is_set()
    broker.send(Go, session=broker.session, items=[(1, 1)])
    assert broker.result(1).status == "completed"


def test_heartbeats_go_on_while_a_handler_computes_in_pure_python(broker, worker):
    stop = threading.Event()

    @worker.handler("spin")
    async def spin(ctx):
        n = 0
        while not stop.is_set():
            n += 1

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="spin"))
    broker.until_received(Heartbeat, lambda m: [h[2] for h in m.holding] == ["running"])
    before = len([m for m in broker.received if isinstance(m, Heartbeat)])
    broker.until(lambda: len([m for m in broker.received if isinstance(m, Heartbeat)]) >= before + 4)
    assert 1 not in broker.results
    stop.set()
    broker.result(1)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_timed_out_handler_is_stopped_by_cancellation_or_by_its_signal(broker, worker, kind):
    if kind == "async":

        @worker.handler("h")
        async def h(ctx):
            await asyncio.sleep(60)
    else:

        @worker.handler("h")
        def h2(ctx):
            ctx.cancelled.wait(60)
            raise RuntimeError("stopped")

    worker.start()
    broker.until_welcomed()
    broker.run(step(1, timeout_ms=150), once(2, timeout_ms=150))
    broker.until_received(Start)
    broker.send(Go, session=broker.session, items=[(2, 1)])
    assert (broker.result(1).status, broker.result(1).error.code) == ("failed", "timeout")
    assert broker.result(2).error.code == "outcome_unknown"
    broker.run(step(3, timeout_ms=150))  # the loop and the threads work on
    assert broker.result(3).error.code == "timeout"


def test_a_cancelled_async_handler_may_clean_up_before_it_is_reported(broker, worker):
    tidied = threading.Event()

    @worker.handler("h")
    async def h(ctx):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            tidied.set()

    worker.start()
    broker.until_welcomed()
    broker.run(step(1))
    broker.until_received(Heartbeat, lambda m: bool(m.holding))
    broker.send(Cancel, session=broker.session, items=[(1, 1)], reason="task_cancelled")
    assert broker.result(1).error.code == "cancelled"
    assert tidied.is_set()


def test_progress_reaches_the_broker(broker, worker):
    @worker.handler("h")
    def h(ctx):
        ctx.progress(3, 10, "three")
        ctx.cancelled.wait(0.3)

    worker.start()
    broker.until_welcomed()
    broker.run(step(1))
    assert broker.until_received(Progress).items == [(1, 1, 3, 10, "three")]


def test_results_are_sent_again_until_they_are_acked(broker, worker):
    @worker.handler("h")
    def h(ctx):
        return 1

    broker.acks = False
    worker.start()
    broker.until_welcomed()
    broker.run(step(1))
    broker.until(lambda: len([m for m in broker.received if isinstance(m, Results)]) >= 2)
    broker.acks = True
    broker.until_received(Results, lambda m: m is not broker.first(Results))
    broker.until(lambda: _latest_heartbeat(broker).holding == [])


def _latest_heartbeat(broker):
    return [m for m in broker.received if isinstance(m, Heartbeat)][-1]


def test_a_broker_that_comes_back_finds_the_worker_and_its_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker = ScriptedBroker("ipc://s", "ipc://r")
    worker = Worker(steps="ipc://s", results="ipc://r", name="test")
    finish = threading.Event()

    @worker.handler("h")
    def h(ctx):
        finish.wait(30)
        return "late"

    worker.start()
    try:
        broker.until_welcomed()
        broker.run(step(1))
        broker.until_received(Heartbeat, lambda m: bool(m.holding))
        broker.close()
        finish.set()
        broker = ScriptedBroker("ipc://s", "ipc://r", epoch=2)
        assert output(broker.result(1)) == "late"
        broker.until_received(Heartbeat, lambda m: m.sessions == {"b1": "2.1"})
    finally:
        worker.stop(drain_ms=100)
        broker.close()


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_process_handler_runs_in_another_process_with_its_input(broker, worker):
    worker.handler("square", process=True)(process_handlers.square)
    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="square", task_context=Raw(b'{"n":7}')))
    result = output(broker.result(1))
    assert result["square"] == 49
    assert result["pid"] != os.getpid()


def test_a_process_reports_progress_is_killed_at_its_timeout_and_is_replaced(broker, worker):
    worker.handler("hang", process=True)(process_handlers.hang)
    worker.handler("square", process=True)(process_handlers.square)
    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="hang", timeout_ms=3_000))
    assert broker.until_received(Progress).items[0][:3] == (1, 1, 1)
    assert broker.result(1).error.code == "timeout"
    broker.run(step(2, handler="square", task_context=Raw(b'{"n":3}')))
    assert output(broker.result(2))["square"] == 9


def test_the_death_of_a_process_is_an_error_and_unknown_for_at_most_once(broker, worker):
    worker.handler("die", process=True)(process_handlers.die)
    worker.start()
    broker.until_welcomed()
    broker.run(step(1, handler="die"), once(2, handler="die"))
    broker.until_received(Start)
    broker.send(Go, session=broker.session, items=[(2, 1)])
    error = broker.result(1).error
    assert (error.code, error.retryable) == ("process_died", True)
    assert "exit code 7" in error.message
    assert broker.result(2).error.code == "outcome_unknown"


# -- life -------------------------------------------------------------------------------------------------------------


def test_hello_carries_the_identity_of_the_process(broker, worker):
    worker.handler("h")(lambda ctx: None)
    worker.start()
    hello = broker.until_received(Hello)
    assert hello.worker == worker.id
    assert hello.worker.startswith("test:")
    assert hello.pid == os.getpid()
    with open("/proc/self/stat") as stat:
        assert hello.pid_started == int(stat.read().rpartition(")")[2].split()[19])
    assert hello.proof
    assert hello.host


def test_hello_carries_the_version_of_the_handlers_from_the_environment(broker, monkeypatch):
    monkeypatch.setenv("STEPWIRE_HANDLER_VERSION", "2026-03-01.4")
    worker = Worker.from_env(steps="ipc://s", results="ipc://r")
    worker.handler("h")(lambda ctx: None)
    worker.start()
    try:
        assert broker.until_received(Hello).handler_version == "2026-03-01.4"
    finally:
        worker.stop(drain_ms=100)


def test_a_handler_receives_the_trace_context(broker, worker):
    worker.handler("h")(lambda ctx: [ctx.traceparent, ctx.tracestate])
    worker.start()
    broker.until_welcomed()
    trace = ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1"]
    plain = step(1)
    metadata = msgspec.structs.replace(plain.metadata, traceparent=trace[0], tracestate=trace[1])
    broker.run(msgspec.structs.replace(plain, metadata=metadata), step(2))
    assert output(broker.result(1)) == trace
    assert output(broker.result(2)) == [None, None]


def test_a_worker_started_again_is_another_worker(broker, worker):
    worker.handler("h")(lambda ctx: None)
    worker.start()
    first = worker.id
    broker.until_welcomed()
    worker.stop()
    worker.start()
    assert worker.id != first


def test_stop_gives_back_unstarted_steps_and_waits_for_runs(broker):
    worker = Worker(steps="ipc://s", results="ipc://r", slots=1)
    finish, entered = threading.Event(), threading.Event()

    @worker.handler("h")
    def h(ctx):
        entered.set()
        finish.wait(30)
        return "done"

    worker.start()
    broker.until_welcomed()
    broker.run(step(1), step(2))
    broker.until(entered.is_set)
    worker.drain()
    refuse = broker.until_received(Refuse)
    assert (refuse.code, refuse.items) == ("draining", [(2, 1)])
    assert not worker.wait(0)
    finish.set()
    assert output(broker.result(1)) == "done"
    broker.until(lambda: worker.wait(0))
    assert broker.first(Bye)


PROGRAM = """
import asyncio, sys
from stepwire import Worker
worker = Worker.from_env()

@worker.handler("slow")
async def slow(ctx):
    print("entered", flush=True)
    await asyncio.sleep(1.0)
    return "finished"

@worker.handler("for_ever")
async def for_ever(ctx):
    print("entered", flush=True)
    await asyncio.sleep(1000)

if __name__ == "__main__":
    worker.run()
    print("left", flush=True)
"""


@pytest.fixture
def program(broker, tmp_path):
    Path("program.py").write_text(PROGRAM)
    environ = {**os.environ, "STEPWIRE_STEPS": "ipc://s", "STEPWIRE_RESULTS": "ipc://r", "STEPWIRE_SLOTS": "1"}
    child = subprocess.Popen([sys.executable, "program.py"], env=environ, stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_lets_runs_finish_and_exits_with_zero(broker, program, number):
    broker.until_welcomed()
    broker.run(step(1, handler="slow"), step(2, handler="slow"))
    assert program.stdout.readline() == "entered\n"
    program.send_signal(number)
    assert broker.until_received(Refuse).items == [(2, 1)]
    assert output(broker.result(1)) == "finished"
    broker.until(lambda: program.poll() is not None)
    assert program.returncode == 0
    assert program.stdout.read() == "left\n"


def test_a_second_interrupt_exits_at_once(broker, program):
    broker.until_welcomed()
    broker.run(step(1, handler="for_ever"))
    assert program.stdout.readline() == "entered\n"
    program.send_signal(signal.SIGINT)
    broker.until_received(Bye)
    program.send_signal(signal.SIGINT)
    broker.until(lambda: program.poll() is not None)
    assert program.returncode == 130


def test_a_stop_signal_from_the_terminal_only_quiets_the_worker(broker, program):
    broker.until_welcomed()
    program.send_signal(signal.SIGTSTP)
    broker.until_received(Heartbeat, lambda m: m.free == {"b1": 0})
    assert program.poll() is None
    broker.run(step(1, handler="slow"))
    assert output(broker.result(1)) == "finished"


def test_a_quit_of_a_broker_ends_the_worker_although_a_run_does_not_stop(broker, monkeypatch):
    monkeypatch.setattr(socket_thread, "DRAIN_MS", 50)
    monkeypatch.setattr(socket_thread, "EXPEL_MS", 50)
    worker = Worker(steps="ipc://s", results="ipc://r", slots=1)
    stuck = threading.Event()
    worker.handler("h")(lambda ctx: stuck.wait(60))
    worker.start()
    try:
        broker.until_welcomed()
        broker.run(step(1))
        beat = broker.until_received(Heartbeat, lambda m: bool(m.holding))
        broker.send(HeartbeatAck, session=broker.session, n=beat.n, quit=True)
        broker.until(lambda: worker.wait(0), "the worker to end")
    finally:
        stuck.set()


def test_a_run_that_outlasts_the_drain_is_given_back(broker):
    worker = Worker(steps="ipc://s", results="ipc://r", slots=2)

    @worker.handler("h")
    async def h(ctx):
        await asyncio.sleep(1000)

    worker.start()
    broker.until_welcomed()
    broker.run(step(1), once(2))
    broker.until_received(Start)
    broker.send(Go, session=broker.session, items=[(2, 1)])
    broker.until_received(Heartbeat, lambda m: [h[2] for h in m.holding] == ["running", "running"])
    worker.drain(drain_ms=10)
    assert broker.until_received(Refuse).items == [(1, 1)]
    assert broker.result(2).error.code == "outcome_unknown"
    broker.until(lambda: worker.wait(0))
