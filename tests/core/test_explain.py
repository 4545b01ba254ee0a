"""Every explanation of why a step is not running, each produced on the real machine."""

from pathlib import Path

import pytest
from stepwire_broker.core import explain
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.brokers.listeners import BrokerEndpoints, PartialWorker, of_row
from stepwire_broker.core.definitions.settings import ExecutionSettings, LimitSettings, RuleSettings, Settings
from stepwire_broker.core.guards.allowance import SetBreaker
from stepwire_broker.core.intake.commands import CancelTask, PauseTask
from stepwire_broker.core.intake.routing_rules import SetRule
from stepwire_broker.core.loading.residency import restored
from stepwire_broker.core.model import events
from stepwire_broker.core.model.principal import Grant, with_built_in
from stepwire_broker.core.why import CODES, WAITS_FOR
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor
from stepwire_protocol import messages as wire

from .world import BROKER, CHAIN, DIES_MS, ONCE, ONE, W2, W, World, held, once, one, steps


def why(world: World, task_id: int, name: str = "only") -> explain.Why:
    """Explain the step from its committed rows; the live step must give the same explanation."""
    rows = world.rows
    workflow = world.state.workflows[rows.tasks[task_id].workflow_id]
    task = restored(workflow, rows.task(task_id), rows.steps_of(task_id))
    stored = explain.step(world.state, task.steps[workflow.by_name[name]], world.now)
    if task_id in world.state.tasks and stored.code != "committing":
        assert explain.step(world.state, world.step(task_id, name), world.now) == stored
    return stored


def why_task(world: World, task_id: int) -> explain.WhyTask:
    row = world.rows.task(task_id)
    task = restored(world.state.workflows[row.workflow_id], row, world.rows.steps_of(task_id))
    return explain.task(world.state, task, world.now)


def clock(world: World, ms: int = 0) -> str:
    minutes, seconds = divmod((world.now.wall + ms) % 86_400_000 // 1000, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02} UTC"


# -- several brokers --------------------------------------------------------------------------------------------------


def other_broker(world: World, *partial: PartialWorker, name: str = "b2") -> None:
    addresses.on_others(world.state, [BrokerEndpoints(name, "", (), partial)], world.now)


def test_why_names_a_worker_that_is_connected_to_another_broker_only() -> None:
    world = World()
    other_broker(world, PartialWorker("shop-1:0123456789abcdef", ("h", "i"), ("b2", "b3")))
    task_id = world.task(ONE)
    reason = why(world, task_id)
    assert reason[:2] == (
        "worker_elsewhere",
        "offered by `shop-1:0123456789abcdef`, which is connected to b2, b3 only; this task is b1's: "
        "give the worker the endpoints of b1",
    )
    world.hello()
    assert why(world, task_id).code == "handed_out"


def test_why_does_not_name_a_worker_elsewhere_for_a_handler_that_it_does_not_offer() -> None:
    world = World()
    other_broker(world, PartialWorker("shop-1:0123456789abcdef", ("other.*",), ("b2",)))
    assert why(world, world.task(ONE)).code == "no_worker_offers"


def test_the_row_of_a_broker_names_workers_without_a_session_with_a_live_broker() -> None:
    world = World()
    world.hello(handlers=["h"])
    world.hello(W2)
    other_broker(world)
    assert of_row("b1", addresses.row_of(world.state)).partial_workers == (), "no heartbeat says so"
    world.beat(W, n=5)
    assert of_row("b1", addresses.row_of(world.state)).partial_workers == (PartialWorker(W, ("h",), ("b1",)),)
    world.say(wire.Heartbeat(v="2.0", worker=W, n=6, sessions={"b1": "7.1", "b2": "9.1"}, free={}))
    assert of_row("b1", addresses.row_of(world.state)).partial_workers == ()


def test_why_names_a_worker_that_serves_its_brokers_in_turn() -> None:
    world = World()
    other_broker(world)
    world.hello(slots=1, prefetch=0, free={BROKER: 0})
    world.say(wire.Heartbeat(v="2.0", worker=W, n=6, sessions={"b1": "7.1", "b2": "9.1"}, free={"b1": 0, "b2": 1}))
    task_id = world.task(ONE)
    assert why(world, task_id)[:2] == (
        "workers_busy",
        "all 1 slot of the 1 worker that could run it are busy, or promised: "
        f"`{W}` takes 1 step and has 2 brokers, which it serves in turn",
    )


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_why_names_the_running_step_that_a_step_waits_for() -> None:
    world = World()
    world.hello()
    task_id = world.task(CHAIN)
    world.accept(world.batches()[0])
    world.stay(W, 4000, [held(world.batches()[0], "running", 1000)])
    world.pass_time(1000)
    assert why(world, task_id, "a")[:2] == (
        "running",
        f"runs on `{W}`, started {clock(world, -4000)}; lease renewed 1 s ago",
    )
    waits = why(world, task_id, "b")
    assert waits.code == "waits_for"
    assert waits.message == f"waits for `a` (runs on `{W}`, started {clock(world, -4000)}; lease renewed 1 s ago)"
    assert why(world, task_id, "c").message.startswith("waits for `b`, which waits for `a` (runs on ")


def test_why_counts_the_dependencies_that_a_step_waits_for() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b"}, {"name": "c", "depends_on": ["a", "b"]}))
    assert why(world, task_id, "c").message == (
        "waits for `a` (no worker offers `h` (no worker is connected)), and for 1 more"
    )


def test_a_very_long_chain_is_not_followed_to_its_end() -> None:
    world = World()
    chain = [{"name": "s0"}, *({"name": f"s{n}", "depends_on": [f"s{n - 1}"]} for n in range(1, 300))]
    task_id = world.task(steps(*chain))
    assert why(world, task_id, "s50").message.startswith("waits for `s49`, which waits for `s0` (no worker offers")
    assert (
        why(world, task_id, "s299").message == "waits for `s298`, which waits for `s198` (which waits for other steps)"
    )


def test_why_reports_that_the_payloads_of_a_rule_are_being_read() -> None:
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=30)), answers_reads=False)
    world.hello()
    rule = {"context": "a", "op": "exists"}
    flow = steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "trigger_rule": rule})
    task_id = world.task(flow, context=b'{"a":"large enough to stay in the database"}')
    world.result(world.batches()[0])
    found = why(world, task_id, "b")
    assert found == (
        "payload_fetched",
        "all dependencies are final; the payloads that its rule compares are being read",
        None,
        None,
    )
    assert why_task(world, task_id).why.message == f"`b`: {found.message}"
    world.read()
    assert why(world, task_id, "b").code in ("payload_fetched", "handed_out")  # now for its dispatch


# -- ready ------------------------------------------------------------------------------------------------------------


def test_why_reports_that_no_worker_is_connected() -> None:
    world = World()
    task_id = world.task(ONE)
    found = why(world, task_id)
    assert found == ("no_worker_offers", "no worker offers `h` (no worker is connected)", world.now.wall, None)


def test_why_lists_the_offered_handlers_when_no_worker_offers_the_steps() -> None:
    world = World()
    world.hello(handlers=["a", "b::**"])
    world.hello(W2, handlers=["c", "d", "e", "f"])
    task_id = world.task(ONE)
    assert why(world, task_id)[:2] == (
        "no_worker_offers",
        "no worker offers `h` (2 workers connected, offering a, b::**, c, d, e and 1 more)",
    )


def test_why_names_the_offered_handler_that_was_probably_meant() -> None:
    world = World()
    world.hello(handlers=["a", "b", "c", "d", "e", "order.validate", "order.*"])
    assert why(world, world.task(one(handler_class="order:validat")))[:2] == (
        "no_worker_offers",
        "no worker offers `order:validat` (did you mean `order.validate`? 1 worker connected, offering a, b, c, d, e"
        " and 2 more)",
    )


def test_why_names_another_executor_that_offers_the_handler() -> None:
    world = World()
    world.hello(executor="local")
    reason = why(world, world.task(ONE))
    assert reason[:2] == (
        "no_worker_offers",
        "no worker offers `h` (connected: only executor `local`); executor `local` offers it",
    )
    assert reason.hint == Hint(HintCode.ROUTE_TO_EXECUTOR, path="default::flow::only", executor="local")


def test_why_names_a_worker_that_offered_the_handler_and_refused_it() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONE)
    world.refuse(world.batches()[0], "unknown_handler")
    assert why(world, task_id)[:2] == (
        "no_worker_offers",
        f"no worker offers `h` ({W} offered it and then refused it as unknown)",
    )


@pytest.mark.parametrize(("labels", "theirs"), [({"region": "us"}, "theirs are region=us"), ({}, "they have none")])
def test_why_compares_the_labels_when_no_worker_has_those_required(labels: dict[str, str], theirs: str) -> None:
    world = World()
    world.hello(labels=labels)
    task_id = world.task(one(worker_selector={"region": "eu", "gpu": "yes"}))
    assert why(world, task_id)[:2] == (
        "no_worker_matches",
        f"no worker that offers `h` has the labels gpu=yes, region=eu ({theirs})",
    )


def test_why_names_the_setting_that_keeps_a_step_inside_the_broker() -> None:
    world = World()
    world.hello()
    assert why(world, world.task(one(worker_selector="local")))[:2] == (
        "no_worker_offers",
        "no worker of executor `local` offers `h` (connected: only executor `bus`); the worker_selector keeps it inside"
        " the broker",
    )


def test_why_reports_an_executor_that_is_no_longer_configured() -> None:
    rule = RuleSettings("**", executor="k8s")
    world = World(executors=["k8s"])
    world.ask(SetRule, match="**", rule=rule)
    task_id = world.task(ONE)
    world.executors.discard("k8s")
    world.restart()
    assert why(world, task_id)[:2] == ("no_executor", "executor `k8s`, which rule 1 (**) names, is not configured")


def test_why_counts_busy_slots_and_the_steps_ahead_in_the_queue() -> None:
    world = World()
    world.hello(slots=2, prefetch=0)
    first = world.task(ONE)
    task_ids = [first, *(world.task(ONE) for _ in range(4))]
    found = [why(world, task_id) for task_id in task_ids]
    assert [each.code for each in found] == ["handed_out"] * 2 + ["workers_busy"] * 3
    assert found[2].message == "all 2 slots of the 1 worker that could run it are busy"
    assert found[4].message == "all 2 slots of the 1 worker that could run it are busy; queued behind 2 steps"


def test_why_reports_a_step_queued_until_the_writer_is_free() -> None:
    world = World(auto=False)
    world.hello(slots=1, prefetch=0, free={BROKER: 0})
    world.apply(ONE)
    world.settle()
    world.submit()
    world.submit()
    world.settle()
    first, second = sorted(world.rows.tasks)
    world.submit()  # the writer has this one now
    world.beat(free=2, n=9)
    assert why(world, first)[:2] == ("queued", "dispatched with the next commit")
    assert why(world, second).message == "dispatched with the next commit; queued behind 1 step"
    world.settle()
    assert why(world, first).code == "handed_out"


def test_why_reports_a_step_whose_next_state_is_being_written() -> None:
    world = World(auto=False)
    task_id = [world.apply(ONE), world.settle(), world.submit(), world.settle(), *world.rows.tasks][-1]
    world.hello()
    assert world.writing is not None  # its dispatch
    assert why(world, task_id)[:2] == ("committing", "its state is changing: the next state is being written")
    world.commit()
    assert why(world, task_id).code == "handed_out"


def test_why_reports_that_a_payload_is_being_read() -> None:
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=10)), answers_reads=False)
    task_id = world.task(ONE, context=b'{"a":"large enough to stay in the database"}')
    world.hello()
    assert why(world, task_id)[:2] == ("payload_fetched", "the payload is being read from the database")
    world.read()
    assert why(world, task_id).code == "handed_out"


def test_why_reports_a_task_that_waits_in_the_database() -> None:
    world = World(Settings(limits=LimitSettings(max_active_tasks=1)), answers_reads=False)
    world.hello(slots=1, prefetch=0)
    world.task(ONE)
    task_id = world.task(ONE)
    assert task_id not in world.state.tasks
    assert why(world, task_id)[:2] == (
        "not_loaded",
        "the task waits in the database: 1 tasks are in memory, at most 1, and 1 wait to be loaded",
    )


def test_why_reports_a_paused_task() -> None:
    world = World()
    task_id = world.task(ONE)
    world.ask(PauseTask, task_id=task_id)
    paused = ("paused", "the task is paused", None, Hint(HintCode.RESUME_TASK, task_id=task_id))
    assert why(world, task_id) == paused
    assert why_task(world, task_id) == (paused, None)


def test_why_reports_a_stalled_database() -> None:
    world = World()
    task_id = world.task(ONE)
    world.auto = False
    world.submit()
    world.stall()
    world.hello()
    found = why(world, task_id)
    assert found.code == "database_stalled"
    assert "(disk_full)" in found.message


def test_why_reports_a_lane_that_moves_to_another_broker() -> None:
    world = World(lanes=2)
    task_id = world.task(ONE)
    world.handle(events.ReleaseLane(world.state.tasks[task_id].lane))
    assert why(world, task_id).code == "lane_moving"


def test_why_reports_a_draining_broker() -> None:
    world = World()
    task_id = world.task(ONE)
    world.handle(events.Drain())
    assert why(world, task_id).code == "broker_draining"


def test_why_reports_a_paused_executor() -> None:
    world = World()
    world.hello()
    world.ask(PauseExecutor, executor="bus")
    task_id = world.task(ONE)
    found = why(world, task_id)
    assert found.code == "executor_paused"
    assert found.hint == Hint(HintCode.RESUME_EXECUTOR, executor="bus")
    assert world.batches() == []
    world.ask(ResumeExecutor, executor="bus")
    assert why(world, task_id).code == "handed_out"


def test_why_reports_a_full_executor() -> None:
    world = World(Settings(execution=ExecutionSettings(default_executor="told")), executors=["told"])
    world.handle(events.Attached(W, "told"))
    world.hello(slots=1, prefetch=0)
    _, second = world.task(ONE), world.task(ONE)
    found = why(world, second)
    assert found.code == "executor_full"
    assert found.message.startswith("the executor `told` has 1 step, and accepts at most 1 at a time")
    world.handle(events.Detached(W))
    world.handle(events.Attached(W2, "told"))
    world.hello(W2, slots=1, prefetch=0, free={BROKER: 0})
    found = why(world, second)
    assert found.code == "executor_full"
    assert "reports that it has no capacity now" in found.message


def test_why_reports_that_no_worker_over_http_requests_steps() -> None:
    world = World(Settings(execution=ExecutionSettings(default_executor="poll")), executors=["poll"])
    world.handle(events.Attached(W, "poll"))
    world.hello(slots=2, free={BROKER: 0})
    found = why(world, world.task(ONE))
    assert found.code == "no_poll_waits"
    assert found.message.startswith("1 worker over HTTP could run it, with 0 steps in 2 slots, and none requests")


def test_why_names_the_workers_that_are_leaving_or_stuck() -> None:
    world = World()
    world.hello(slots=1, prefetch=0)
    world.task(one(timeout_ms=1000))
    world.beat(holding=[held(world.batches()[0], "running", 60_000)], free=0)
    world.hello(W2, free={BROKER: 0})
    world.say(wire.Bye(v="2.0", worker=W2))
    found = why(world, world.task(ONE))
    assert found.code == "workers_leaving"
    assert f"`{W}` is stuck: all its runs have exceeded their timeouts" in found.message
    assert f"`{W2}` is draining" in found.message


def test_why_reports_a_step_that_runs_alone_because_workers_died_with_it() -> None:
    world = World()
    task_ids = [world.task(ONE) for _ in range(2)]
    for number in (1, 2):
        world.hello(k=number, n=number * 10, slots=4, prefetch=0)
        for batch in world.batches():
            if batch.session == world.session_id(number):
                world.accept(batch)
        world.pass_time(DIES_MS)
    world.hello(k=3, n=50, slots=4, prefetch=0)
    found = sorted(why(world, task_id).code for task_id in task_ids)
    assert found == ["handed_out", "runs_alone"]


# -- dispatched -------------------------------------------------------------------------------------------------------


def test_why_names_the_worker_that_has_the_step_and_has_not_started_it() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONE)
    at = clock(world)
    batch = world.batches()[0]
    world.pass_time(1000)
    assert why(world, task_id).message == (
        f"handed to `{W}` {at}, which has not accepted it yet; lease renewed 1 s ago"
    )
    world.accept(batch)
    world.beat(holding=[held(batch, "queued")])
    assert why(world, task_id).message == f"handed to `{W}` {at}, which has not started it; lease renewed 0 s ago"
    world.ask(CancelTask, task_id=task_id)
    assert why(world, task_id).message.endswith("; the worker was asked to stop it: the task was cancelled")
    world.beat(n=5, holding=[held(batch, "done")])
    assert why(world, task_id).code == "result_awaited"


def test_why_reports_a_worker_without_heartbeats() -> None:
    world = World()
    world.hello(heartbeat_ms=0)
    assert "the worker sends no heartbeats" in why(world, world.task(ONE)).message


def test_why_reports_a_step_dispatched_before_the_brokers_start() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONE)
    world.restart()
    world.pass_time(1)
    found = why(world, task_id)
    assert found.code == "worker_awaited"
    assert found.message.endswith("before this broker started; the worker has 10 s left to connect again")


# -- failed, held, over -----------------------------------------------------------------------------------------------


def test_why_reports_a_back_off_with_its_last_error() -> None:
    world = World()
    world.hello()
    task_id = world.task(one(retry_limit=4, backoff={"kind": "constant", "base_ms": 30_000, "jitter": "none"}))
    world.fail(world.batches()[0], message="no route to the bank")
    found = why(world, task_id)
    assert found.code == "back_off"
    assert found.message == (
        f"in back-off until {clock(world, 30_000)}; attempt 2 of 5 comes next; last error: no route to the bank"
    )
    assert why_task(world, task_id).why.message == f"`only`: {found.message}"
    assert world.state.counters.retried == 1


def test_why_shortens_a_long_error_and_counts_a_far_time_in_days() -> None:
    world = World()
    world.hello()
    task_id = world.task(
        one(backoff={"kind": "constant", "base_ms": 200_000_000, "max_ms": 300_000_000, "jitter": "none"})
    )
    world.fail(world.batches()[0], message="x" * 1000)
    message = why(world, task_id).message
    assert message.startswith("in back-off until in 2 days; ")
    assert message.endswith(f" {'x' * 199}…")


def test_why_reports_a_step_held_because_its_worker_died() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONCE)
    at = clock(world)
    world.start(world.batches()[0])
    world.pass_time(DIES_MS)
    found = why(world, task_id)
    assert found.code == "held"
    assert found.message == (
        f"held: granted to `{W}` {at}, which is gone; the step was allowed to start, and its outcome is unknown"
    )
    assert found.hint == why_task(world, task_id).why.hint == Hint(HintCode.RESOLVE_STEP, step_id=task_id + 1)
    assert why_task(world, task_id).why.message == f"`only`: {found.message}"


def test_why_reports_a_step_held_because_its_handler_does_not_know_the_outcome() -> None:
    world = World()
    world.hello()
    task_id = world.task(once())
    world.start(world.batches()[0])
    world.fail(world.batches()[0], code="outcome_unknown", message="the gateway did not answer")
    found = why(world, task_id)
    assert found.code == "held"
    assert ", which is gone" not in found.message
    assert "last error: the gateway did not answer" in found.message
    assert found.hint == Hint(HintCode.RESOLVE_STEP, step_id=task_id + 1)


@pytest.mark.parametrize("retry_limit", [0, 1])
def test_why_reports_a_failed_step_with_its_error(retry_limit: int) -> None:
    world = World()
    world.hello()
    task_id = world.task(one(retry_limit=retry_limit, backoff={"kind": "constant", "base_ms": 50, "jitter": "none"}))
    for number in range(retry_limit + 1):
        world.fail(world.batches()[number], message="no")
        world.pass_time(60)
    tries = " after 2 attempts" if retry_limit else ""
    assert why(world, task_id).message == f"failed {clock(world, -60)}{tries}: no"
    assert why_task(world, task_id).why.message == f"`only`: failed {clock(world, -60)}{tries}: no"


def test_why_reports_a_completed_step_and_task() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONE)
    world.result(world.batches()[0])
    assert why(world, task_id) == ("completed", f"completed on `{W}` {clock(world)}", world.now.wall, None)
    assert why_task(world, task_id).why.message == f"the task is completed since {clock(world)}"


def test_why_reports_a_cancelled_or_skipped_step() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.ask(CancelTask, task_id=task_id)
    assert why(world, task_id, "a").message == f"cancelled {clock(world)}: the task was cancelled"
    other = World()
    other.hello()
    task_id = other.task({**CHAIN, "steps": [{**CHAIN["steps"][0], "retry_limit": 0}, *CHAIN["steps"][1:]]})
    other.fail(other.batches()[0])
    assert why(other, task_id, "b").message == f"skipped {clock(other)}: `a` failed"
    assert why(other, task_id, "c").message == f"skipped {clock(other)}: `b` was skipped"


def test_why_reports_that_the_trigger_rule_of_a_skipped_step_is_false() -> None:
    world = World()
    world.hello()
    task_id = world.task(
        steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "trigger_rule": {"failed": "a"}}),
    )
    world.result(world.batches()[0])
    assert why(world, task_id, "b").message == f"skipped {clock(world)}: its trigger rule is false"


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_why_of_a_task_names_the_step_with_the_most_important_reason() -> None:
    world = World()
    world.hello(handlers=["h"])
    task_id = world.task(steps({"name": "runs"}, {"name": "starves", "handler_class": "nobody"}, {"name": "runs_too"}))
    found = why_task(world, task_id)
    assert found.step is not None
    assert found.step.definition.name == "starves"
    assert found.why.message == (
        "`starves`: no worker offers `nobody` (1 worker connected, offering h); its other steps: 2 with a worker"
    )


def test_why_of_a_task_counts_its_other_steps_by_what_they_wait_for() -> None:
    world = World()
    world.hello(handlers=["h"])
    unoffered = [{"name": name, "handler_class": "nobody"} for name in ("n1", "n2")]
    fails = {"name": "fails", "retry_limit": 0}
    task_id = world.task(steps(fails, {"name": "retries"}, {"name": "runs"}, *unoffered))
    (batch,) = world.batches()
    world.fail(batch, position=0)
    world.fail(batch, position=1)
    assert why_task(world, task_id).why.message == (
        "`n1`: no worker offers `nobody` (1 worker connected, offering h);"
        " its other steps: 1 waiting for a retry, 1 with a worker, 1 waiting for a worker, 1 failed"
    )


def test_every_reason_of_an_open_step_has_a_phrase_by_which_it_is_counted() -> None:
    assert set(WAITS_FOR) == set(CODES) - {"waits_for", "completed", "failed", "cancelled", "skipped"}


def test_why_of_a_paused_task_names_the_step_that_still_runs() -> None:
    world = World()
    world.hello()
    task_id = world.task(ONE)
    world.ask(PauseTask, task_id=task_id)
    assert why_task(world, task_id).why.code == "handed_out"


def test_why_reports_an_open_and_then_a_half_open_breaker() -> None:
    world = World()
    world.hello(slots=20, prefetch=0)
    world.apply(one(retry_limit=0))
    world.apply({**ONCE, "name": "pay"})
    for _ in range(5):
        world.submit()
        world.fail(world.batches()[-1], category="unavailable", message="no network")
    task_id = world.submit().task_ids[0]
    opened = clock(world)
    left_ms = world.state.guards.by_handler["h"].breaker.until_mono - world.mono
    assert why(world, task_id)[:2] == (
        "breaker_open",
        f"the breaker for `h` is open since {opened}, after 5 failures in a row (the last: failed: no network); "
        f"the handler is tried again at {clock(world, left_ms)}",
    )
    more = world.submit(count=2).task_ids
    (money,) = world.submit("pay").task_ids
    world.pass_time(left_ms)
    rest = "2 trial steps in progress; 2 must succeed"
    half_open = f"the breaker for `h` is half-open since {clock(world)}: {rest}"
    assert why(world, task_id).code == "handed_out"
    assert why(world, more[1])[:2] == ("breaker_half_open", half_open)
    rest = "; at_most_once steps wait until the breaker is closed"
    assert why(world, money)[:2] == ("breaker_half_open", half_open + rest)


def test_why_reports_a_breaker_that_an_operator_holds_open() -> None:
    world = World()
    world.hello(slots=20, prefetch=0)
    world.apply({**ONCE, "name": "pay"})
    world.ask(SetBreaker, handler_class="h", state="open")
    (money,) = world.submit("pay").task_ids
    assert why(world, money) == (
        "breaker_open",
        f"the breaker for `h` is held open by an operator since {clock(world)}",
        world.now.wall,
        Hint(HintCode.RELEASE_BREAKER, handler_class="h"),
    )


def test_why_reports_retries_that_wait_for_their_budget() -> None:
    world = World()
    world.hello(slots=20, prefetch=0)
    world.apply(one(backoff={"kind": "constant", "base_ms": 100, "jitter": "none"}))
    ids = world.submit(count=20).task_ids
    for batch in world.batches():
        for position in range(len(batch.steps)):
            world.fail(batch, position=position)
    world.beat(n=99, free=20)
    world.pass_time(100)
    assert why(world, ids[0]).code == "handed_out"
    assert why(world, ids[19])[:2] == (
        "retries_wait",
        "retries of `h` wait: in the last 60 s 10 of its 10 starts were retries; the limit is 20 %, or 10 retries; "
        "first attempts are not delayed",
    )


def test_why_names_the_worker_whose_key_does_not_allow_the_step() -> None:
    world = World()
    allowed = Grant(principal="shop", workers=("w",), handlers=("h",), namespaces=("shop",))
    world.handle(events.GrantsChanged(with_built_in([allowed])))
    hello = wire.Hello(v="2.0", worker=W, n=1, handlers=["h"], slots=1, prefetch=0, next={BROKER: 1}, versions=["2.0"])
    world.handle(hello, "shop")
    task_id = world.task({**ONE, "namespace": "billing"})
    assert why(world, task_id).code == "outside_grant"
    message = "no connected principal may run `h`: `w:0000000000000001` offers it; its key does not allow the namespace"
    assert why(world, task_id).message == f"{message} `billing`"
    world.handle(events.GrantsChanged(with_built_in()))
    assert "the grant of `shop` was withdrawn" in why(world, task_id).message


def test_a_worker_over_http_gets_only_steps_of_the_namespaces_of_its_token() -> None:
    world = World(Settings(execution=ExecutionSettings(default_executor="poll")), executors=["poll"])
    grant = Grant(principal="token:shop", workers=("w",), handlers=("h",), namespaces=("shop",))
    world.handle(events.Attached(W, "poll", grant=grant))
    free = {BROKER: 2}
    hello = wire.Hello(v="2.0", worker=W, n=1, handlers=["h"], slots=2, free=free, next={BROKER: 1}, versions=["2.0"])
    world.handle(hello, "token:shop")
    foreign, own = (world.task({**ONE, "namespace": namespace}) for namespace in ("billing", "shop"))
    assert why(world, own).code == "handed_out"
    assert why(world, foreign).code == "outside_grant"
    assert "its token does not allow the namespace `billing`" in why(world, foreign).message


def test_why_names_the_size_of_a_step_that_is_too_large_for_every_worker() -> None:
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=1 << 20)))
    world.hello(max_message_bytes=65_536)
    task_id = world.task(ONE, context=b'"' + b"x" * 70_000 + b'"')
    assert why(world, task_id).code == "workers_too_small"
    assert "needs a message of 73728 bytes" in why(world, task_id).message
    assert "accepts more than 65536" in why(world, task_id).message


def test_every_code_of_why_occurs_in_a_test_of_this_file() -> None:
    """A code that no situation produces has no place in the table. The codes of final states are tested by message."""
    final = ["failed", "cancelled", "skipped"]
    tests = Path(__file__).read_text()
    assert all(f'"{code}"' in tests for code in CODES if code not in final)
