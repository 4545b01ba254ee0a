"""Where a step runs: the table, the rules, and one function for every way in which a step starts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.definitions.settings import (
    CanarySettings,
    ExecutionSettings,
    RuleSettings,
    Settings,
    ShadowSettings,
)
from stepwire_broker.core.intake.commands import PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.intake.routing_rules import SetRule
from stepwire_broker.core.model import events
from stepwire_broker.core.model.targets import LOCAL
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.core.routing.router import (
    Decided,
    Router,
    RulesRefused,
    check,
    check_rule,
    decide,
    hidden,
    near_miss,
)
from stepwire_protocol.patterns import matches

from .vectors import vectors
from .world import W2, W, World, held

EXECUTORS = frozenset({"bus", "local", "exec", "poll"})


def router(*rules: RuleSettings, executors: Any = EXECUTORS, bus: bool = True, **execution: Any) -> Router:
    return Router(ExecutionSettings(rules=rules, **execution), executors, bus_is_distributed=bus)


def executor_of(router: Router, path: str, selector: Any = None) -> str:
    return router.route(path, selector).target.executor


# -- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("force_local", "has_distributed", "has_labels", "mode", "on_missing", "result"), vectors("decisions")
)
def test_the_decision_follows_the_table(
    force_local: bool, has_distributed: bool, has_labels: bool, mode: Any, on_missing: Any, result: str
) -> None:
    decided = decide(
        force_local=force_local,
        has_distributed=has_distributed,
        has_labels=has_labels,
        mode=mode,
        on_missing=on_missing,
    )
    assert decided == result


@given(st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["local", "distributed"]))
def test_a_step_is_never_silently_local(force: bool, there: bool, labels: bool, mode: Any) -> None:
    decided = decide(force_local=force, has_distributed=there, has_labels=labels, mode=mode, on_missing="error")
    is_asked_for = force or (mode == "local" and not labels)
    assert (decided is Decided.LOCAL) is is_asked_for


@pytest.mark.parametrize(
    ("bus_is_distributed", "configured", "executor"),
    [(True, None, "bus"), (False, None, "local"), (True, "local", "local"), (True, "distributed", "bus")],
)
def test_a_broker_distributes_by_default_if_its_bus_does(
    bus_is_distributed: bool, configured: Any, executor: str
) -> None:
    """With an inproc bus only, there is no worker to distribute to."""
    assert executor_of(router(bus=bus_is_distributed, default_execution_mode=configured), "n::w::s") == executor


def test_an_inproc_bus_is_no_distributed_executor() -> None:
    place = router(executors={"bus", "local"}, bus=False, default_execution_mode="distributed").route("n::w::s", None)
    assert place.decided is Decided.NO_EXECUTOR


# -- rules ------------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_wins() -> None:
    rules = RuleSettings("batch::**", executor="exec"), RuleSettings("**", executor="poll")
    routes = router(*rules)
    assert executor_of(routes, "batch::nightly::clean") == "exec"
    assert executor_of(routes, "shop::order::charge") == "poll"


def test_rules_apply_to_distributed_steps_only() -> None:
    routes = router(RuleSettings("**", executor="exec"), default_execution_mode="local")
    assert executor_of(routes, "n::w::s") == LOCAL
    assert executor_of(routes, "n::w::s", {"gpu": "true"}) == "exec"
    assert executor_of(router(RuleSettings("**", executor="exec")), "n::w::s", "local") == LOCAL


def test_a_steps_selector_replaces_its_rules() -> None:
    routes = router(RuleSettings("**", worker_selector={"gpu": True, "zone": 4}))
    assert routes.route("n::w::s", None).target.selector == (("gpu", "true"), ("zone", "4"))
    assert routes.route("n::w::s", {"zone": "5"}).target.selector == (("zone", "5"),)


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([RuleSettings("a::**", executor="k8s")], "k8s is not a configured executor: bus, exec, local, poll"),
        ([RuleSettings("**", canary=CanarySettings(10, executor="k8s"))], "k8s is not a configured executor"),
        ([RuleSettings("**", shadow=ShadowSettings(executor="k8s"))], "k8s is not a configured executor"),
        ([RuleSettings("**", canary=CanarySettings(10))], "canary: set an executor, a worker_selector, or both"),
        ([RuleSettings("a::::b")], "empty segment"),
        ([RuleSettings("")], "1 to 512 are allowed"),
        ([RuleSettings("a::b**")], "** must be a whole segment"),
        ([RuleSettings("**", worker_selector={"a": None})], "worker_selector.a"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_by_name(rules: list[RuleSettings], says: str) -> None:
    with pytest.raises(RulesRefused) as refused:
        check(ExecutionSettings(rules=tuple(rules)), EXECUTORS)
    assert says in str(refused.value)
    with pytest.raises(RulesRefused):
        check_rule(rules[0], EXECUTORS)


def test_the_default_executor_must_be_configured() -> None:
    with pytest.raises(RulesRefused, match=r"default_executor is k8s, which is not a configured executor: bus, exec"):
        check(ExecutionSettings(default_executor="k8s"), EXECUTORS)


def test_a_rule_that_never_matches_is_found_with_the_one_that_hides_it() -> None:
    rules = [RuleSettings("shop::**"), RuleSettings("shop::order::*"), RuleSettings("*::order::charge")]
    assert [(one.match, by.match) for one, by in hidden(router(*rules).rules)] == [("shop::order::*", "shop::**")]


@pytest.mark.parametrize(
    ("match", "path", "says"),
    [
        ("*::ml::*", "public::embedded::ml::train", None),
        ("*::ml::train", "public::a::ml::train", "*::ml::train"),
        ("shop::*", "shop::order::charge", "* matches exactly one segment; shop::** would match"),
        ("Shop::**", "shop::order::charge", "the rule differs in upper and lower case"),
        ("shop::order::chrage", "shop::order::charge", "only the segment chrage differs: the path has charge"),
        ("order::charge", "shop::order::charge", "the path has more segments"),
    ],
)
def test_a_rule_that_nearly_matches_is_named(match: str, path: str, says: str | None) -> None:
    miss = near_miss(router(RuleSettings("zzz::yyy::xxx::www"), RuleSettings(match)).rules, path)
    assert miss is not None
    assert miss.rule.match == match
    assert says is None or says in miss.why


@pytest.mark.parametrize("match", ["shop::order::pay", "zzz::yyy::xxx", "shop::**::refund"])
def test_a_rule_for_another_step_is_no_near_miss(match: str) -> None:
    assert near_miss(router(RuleSettings(match)).rules, "shop::order::charge") is None


# -- canaries ---------------------------------------------------------------------------------------------------------


def test_a_canary_takes_its_share_and_a_task_stays_on_its_side() -> None:
    routes = router(RuleSettings("**::charge", canary=CanarySettings(10, worker_selector={"release": "next"})))
    (rule,) = routes.rules
    assert rule.canary is not None
    chosen = {task_id for task_id in range(20_000) if rule.part(task_id) < rule.canary.below}
    assert 1_800 < len(chosen) < 2_200
    again = router(*(RuleSettings("**::charge", canary=CanarySettings(30, worker_selector={"release": "next"})),))
    (wider,) = again.rules
    assert wider.canary is not None
    assert chosen <= {task_id for task_id in range(20_000) if wider.part(task_id) < wider.canary.below}


def test_the_workers_of_a_canary_take_no_other_steps() -> None:
    settings = Settings(
        execution=ExecutionSettings(
            rules=(RuleSettings("**", canary=CanarySettings(50, worker_selector={"release": "next"})),)
        )
    )
    world = World(settings)
    world.hello(W, labels={"release": "next"}, slots=200)
    world.hello(W2, slots=200)
    for _ in range(61):
        world.task(ONE)
    (rule,) = world.state.router.rules
    assert rule.canary is not None
    counted: dict[bool, int] = {}
    for worker, is_canary in ((W, True), (W2, False)):
        tasks = [step.task_id for batch in world.batches(worker) for step in batch.steps]
        assert len(tasks) > 10
        assert all((rule.part(task_id) < rule.canary.below) is is_canary for task_id in tasks)
        counted[is_canary] = len(tasks)
    assert world.state.canaries == {"**": [counted[True], counted[False]]}


@pytest.mark.parametrize(
    ("selector", "without"),
    [
        ({}, {"release": "next"}),
        ({"region": "eu"}, {"release": "next"}),
        ({"release": "now"}, {}),  # no worker with release=now bears release=next
        ({"release": "next"}, {}),  # the step itself requires the label
    ],
)
def test_a_target_excludes_the_labels_of_a_canary_only_where_that_excludes_a_worker(
    selector: dict[str, str], without: dict[str, str]
) -> None:
    canary = CanarySettings(50, worker_selector={"release": "next"})
    place = router(RuleSettings("**", worker_selector=selector, canary=canary)).route("a::b::c", None)
    assert dict(place.target.without) == without


@pytest.mark.parametrize(("percent", "worker"), [(0, W2), (100, W)])
def test_a_canary_of_nothing_or_all_is_a_switch(percent: float, worker: str) -> None:
    canary = CanarySettings(percent, worker_selector={"release": "next"})
    world = World(Settings(execution=ExecutionSettings(rules=(RuleSettings("**", canary=canary),))))
    world.hello(W, labels={"release": "next"})
    world.hello(W2)
    world.task(ONE)
    assert [len(world.batches(w)) for w in (worker, W if worker is W2 else W2)] == [1, 0]


# -- every way to start a step ----------------------------------------------------------------------------------------

ONE: dict[str, Any] = {
    "name": "flow",
    "steps": [{"name": "s", "handler_class": "h", "retry_limit": 1, "backoff": {"base_ms": 0, "jitter": "none"}}],
}
ONCE: dict[str, Any] = {"name": "once", "steps": [{"name": "s", "handler_class": "h", "delivery_mode": "at_most_once"}]}
TWO: dict[str, Any] = {
    "name": "two",
    "steps": [{"name": "a", "handler_class": "first"}, {"name": "s", "handler_class": "h", "depends_on": ["a"]}],
}


def submitted(world: World) -> None:
    world.task(ONE)


def depended(world: World) -> None:
    world.task(TWO)
    world.result(world.batches(W)[-1], W)


def retried_by_itself(world: World) -> None:
    world.task(ONE)
    world.fail(world.batches(W2)[-1], W2)
    world.pass_time(10)


def retried_by_an_operator(world: World) -> None:
    task_id = world.task(ONE)
    world.fail(world.batches(W2)[-1], W2, retryable=False)
    world.ask(RetryTask, task_id=task_id)


def resumed(world: World) -> None:
    task_id = world.task(TWO)
    world.ask(PauseTask, task_id=task_id)
    world.result(world.batches(W)[-1], W)
    assert not world.batches(W2)
    world.ask(ResumeTask, task_id=task_id)


def resolved(world: World) -> None:
    world.task(ONCE)
    steps = world.batches(W2)[-1]
    world.start(steps, W2)
    world.fail(steps, W2, code="outcome_unknown")
    world.ask(ResolveStep, step_id=steps.steps[0].step_id, outcome="retry", reason="looked")


def given_back(world: World) -> None:
    world.task(ONE)
    world.refuse(world.batches(W2)[-1], "busy", W2)


def lost(world: World) -> None:
    world.task(ONE)
    world.handle(events.ProcessDied(W2))
    world.hello(W2, k=2)


def loaded_after_a_restart(world: World) -> None:
    world.hello(W2, k=2, handlers=["nothing"])
    world.task(ONE)
    world.restart()
    world.hello(W)
    world.hello(W2, executor="exec")


@pytest.mark.parametrize(
    "way",
    [
        submitted,
        depended,
        retried_by_itself,
        retried_by_an_operator,
        resumed,
        resolved,
        given_back,
        lost,
        loaded_after_a_restart,
    ],
)
def test_every_way_to_start_a_step_uses_the_router(way: Callable[[World], None]) -> None:
    """The steps go to `exec`. A worker on the bus offers their handler too, and gets none of them."""
    rules = (RuleSettings("*::*::s", executor="exec"),)
    world = World(Settings(execution=ExecutionSettings(rules=rules)), executors=["exec"])
    world.hello(W)
    world.hello(W2, executor="exec")
    way(world)
    assert world.batches(W2)[-1].steps[-1].step_name == "s"
    assert all(step.step_name != "s" for batch in world.batches(W) for step in batch.steps)


FAR: dict[str, Any] = {"name": "far", "steps": [{**ONE["steps"][0], "worker_selector": {"gpu": "yes"}}]}


def test_a_submission_without_an_executor_is_refused_and_not_run_here() -> None:
    world = World(bus_is_distributed=False)
    world.hello(W, executor=LOCAL)
    world.apply(FAR)
    answer = world.submit("far")
    assert isinstance(answer, CommandRefused)
    assert answer.code == "no_executor"


def test_a_retry_without_an_executor_is_refused_and_not_run_here() -> None:
    world = World()
    world.hello(W, labels={"gpu": "yes"})
    task_id = world.task(FAR)
    world.fail(world.batches(W)[-1], W, retryable=False)
    world.bus_is_distributed = False
    world.restart()
    world.hello(W2, executor=LOCAL)
    answer = world.ask(RetryTask, task_id=task_id)
    assert isinstance(answer, CommandRefused)
    assert answer.code == "no_executor"


def test_a_worker_on_an_inproc_bus_is_local() -> None:
    """An inproc worker is in the broker's own process, with a session or without one."""
    world = World(bus_is_distributed=False)
    world.hello(W)
    world.task(ONE)
    assert len(world.batches(W)) == 1
    world.handle(events.ProcessDied(W))
    world.peer()
    assert len(world.handed) == 1


def test_on_missing_local_runs_the_step_inside_the_broker() -> None:
    settings = Settings(execution=ExecutionSettings(default_execution_mode="distributed", on_missing="local"))
    world = World(settings, bus_is_distributed=False)
    world.hello(W, executor=LOCAL)
    world.task(ONE)
    assert len(world.batches(W)) == 1


# -- changes at run time ----------------------------------------------------------------------------------------------


def test_a_rule_set_at_run_time_moves_ready_steps_and_no_others() -> None:
    world = World(executors=["exec"])
    world.hello(W, slots=1, prefetch=0)
    world.task(ONE)
    world.task(ONE)
    world.hello(W2, executor="exec")
    assert [len(world.batches(w)) for w in (W, W2)] == [1, 0]
    answer = world.ask(SetRule, match="default::**", rule=RuleSettings("default::**", executor="exec"))
    assert answer.is_set
    assert [len(world.batches(w)) for w in (W, W2)] == [1, 1]
    world.result(world.batches(W)[0], W)
    assert len(world.state.tasks) == 1


def test_a_rule_set_at_run_time_survives_a_restart_and_can_be_removed() -> None:
    world = World(executors=["exec"])
    world.ask(SetRule, match="**", rule=RuleSettings("**", executor="exec"))
    world.restart()
    assert executor_of(world.state.router, "n::w::s") == "exec"
    assert not world.ask(SetRule, match="**", rule=None).is_set
    world.restart()
    assert executor_of(world.state.router, "n::w::s") == "bus"
    assert world.ask(SetRule, match="**", rule=None).code == "not_found"


def test_a_runtime_rule_replaces_the_configured_rule_of_its_match_and_others_come_first() -> None:
    configured = RuleSettings("a::**", executor="exec"), RuleSettings("b::**", executor="exec")
    runtime = [RuleSettings("c::**"), RuleSettings("b::**", executor="poll")]
    routes = Router(ExecutionSettings(rules=configured), EXECUTORS, bus_is_distributed=True, runtime=runtime)
    assert [(r.number, r.match, r.executor, r.origin) for r in routes.rules] == [
        (1, "c::**", None, "runtime"),
        (2, "a::**", "exec", "config"),
        (3, "b::**", "poll", "runtime"),
    ]


def test_a_rule_that_cannot_be_used_changes_nothing() -> None:
    world = World()
    answer = world.ask(SetRule, match="**", rule=RuleSettings("**", executor="k8s"))
    assert answer.code == "invalid"
    assert not world.state.router.rules


def test_a_rule_is_answered_when_it_is_stored() -> None:
    world = World(auto=False, executors=["exec"])
    world.settle()
    assert world.ask(SetRule, match="**", rule=RuleSettings("**", executor="exec")) is None
    world.commit()
    assert world.answers[world.requests].is_set


def test_a_reloaded_configuration_moves_ready_steps() -> None:
    world = World(executors=["exec"])
    world.task(ONE)
    world.hello(W2, executor="exec")
    assert not world.batches(W2)
    world.handle(events.Reconfigure(ExecutionSettings(rules=(RuleSettings("**", executor="exec"),))))
    assert len(world.batches(W2)) == 1


# -- workers inside the process ---------------------------------------------------------------------------------------


def test_a_worker_of_an_earlier_process_of_this_broker_is_dead() -> None:
    world = World(executors=["exec"])
    own = own_worker("exec", world.state.identity.broker, world.state.identity.epoch, 1)
    world.ask(SetRule, match="**", rule=RuleSettings("**", executor="exec"))
    world.hello(own, executor="exec")
    first, second = world.task(ONE), world.task(ONCE)
    world.start(world.batches(own)[-1], own)
    world.restart()
    states = {t.id: t.steps[0].state for t in world.state.tasks.values()}
    assert states == {first: "ready", second: "held"}


def test_a_detached_worker_loses_its_steps() -> None:
    world = World()
    world.hello(W, executor=LOCAL)
    task_id = world.task({**ONE, "steps": [{**ONE["steps"][0], "worker_selector": "local"}]})
    world.handle(events.Detached(W))
    assert world.state.tasks[task_id].steps[0].state == "ready"
    assert W not in world.state.sessions


@pytest.mark.parametrize(("drains", "blamed"), [(False, 1), (True, 0)], ids=["it broke", "the broker stops"])
def test_a_step_that_runs_when_the_broker_stops_is_not_blamed_for_the_death_of_its_worker(
    drains: bool, blamed: int
) -> None:
    """Otherwise a step that takes longer than a drain would fail for good after a few restarts."""
    world = World()
    world.hello(W, executor=LOCAL)
    task_id = world.task({**ONE, "steps": [{**ONE["steps"][0], "worker_selector": "local"}]})
    world.beat(holding=[held(world.batches()[0], "running", 10)])
    if drains:
        world.handle(events.Drain())
    world.handle(events.Detached(W))
    (step,) = world.state.tasks[task_id].steps
    assert (step.state, step.lost_sessions) == ("ready", blamed)


@given(st.text("ab*:", max_size=12), st.text("ab:", max_size=12))
def test_routing_agrees_with_matching(pattern: str, path: str) -> None:
    try:
        routes = router(RuleSettings(pattern, executor="exec"))
    except RulesRefused:
        return
    assert (executor_of(routes, path) == "exec") is matches(pattern, path)
