"""The backlog: which steps workers of a kind could take, and how many of these workers the steps need."""

from stepwire_broker.core.backlog import counting, demand
from stepwire_broker.core.backlog.demand import Backlog, StoredLoad, WorkerKind
from stepwire_broker.core.definitions.settings import ExecutionSettings, RuleSettings, Settings
from stepwire_broker.core.guards.allowance import SetBreaker
from stepwire_broker.core.intake.commands import PauseTask
from stepwire_broker.core.membership.cluster_rows import RouteLoad
from stepwire_protocol import patterns

from .test_beats import Shared, other
from .world import ONE, W2, W, World, one


def kind(*handlers: str, slots: int | None = None, **labels: str) -> WorkerKind:
    return WorkerKind(handlers, patterns.any_of(handlers), labels, slots)


def seen(world: World, of: WorkerKind, *stored: StoredLoad) -> Backlog:
    return demand.backlog(world.state, of, stored, None)


def test_every_step_that_waits_or_runs_wants_a_slot_of_a_worker() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=9)
    before = seen(world, kind("h", slots=4))
    assert (before.waiting, before.running, before.slots, before.wanted_workers) == (9, 0, 0, 3)
    world.hello(W, slots=2, prefetch=3)
    after = seen(world, kind("h"))
    assert (after.waiting, after.running, after.workers, after.slots) == (7, 2, 1, 2)  # 3 of them wait at the worker
    assert (after.slots_per_worker, after.wanted_workers) == (2, 5)
    assert seen(world, kind("other")).wanted_workers == 0


def test_the_oldest_wait_is_that_of_the_first_step_that_has_no_slot() -> None:
    world = World()
    world.task(ONE)
    since_ms = world.now.wall
    world.pass_time(5_000)
    world.submit()
    assert seen(world, kind("h")).oldest_ms == since_ms


def test_steps_that_need_other_labels_want_no_worker_and_the_backlog_names_the_labels() -> None:
    world = World()
    world.apply(one(worker_selector={"gpu": "true"}))
    world.submit(count=7)
    plain = seen(world, kind("h", slots=1, gpu="false"))
    assert (plain.waiting, plain.wanted_workers, plain.unfit) == (0, 0, 7)
    assert plain.because == ["7 steps of `h` need the labels gpu=true, and these workers have gpu=false"]
    assert seen(world, kind("h", slots=1, gpu="true")).wanted_workers == 7


def test_steps_of_another_executor_want_no_worker_of_the_bus() -> None:
    rule = RuleSettings(match="default::**", executor="exec")
    world = World(Settings(execution=ExecutionSettings(rules=(rule,))), executors=["exec"])
    world.apply(ONE)
    world.submit(count=2)
    found = seen(world, kind("h"))
    assert (found.wanted_workers, found.unfit) == (0, 2)
    assert found.because == ["2 steps of `h` go to the executor `exec`, not to workers of the bus"]


def test_a_paused_task_wants_no_worker() -> None:
    world = World()
    task_id = world.task(ONE)
    world.ask(PauseTask, task_id=task_id)
    assert seen(world, kind("h")).wanted_workers == 0


def test_only_connected_workers_of_the_same_labels_that_take_new_steps_count_with_their_slots() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=4, labels={"gpu": "true"}, handlers=["h"])
    world.hello(W2, slots=3, handlers=["h"])
    assert seen(world, kind("h")).slots == 7
    assert seen(world, kind("h", gpu="true")).slots == 4
    world.state.sessions[W].draining = True
    assert seen(world, kind("h")).slots == 3


def test_the_steps_in_the_memory_of_other_brokers_count_as_their_rows_say() -> None:
    world = Shared()
    world.task(ONE)
    away = (RouteLoad("h", "bus", (), (), 5, 2, 1_000), RouteLoad("h", "bus", (("gpu", "true"),), (), 9, 0, 1))
    world.beaten(other(backlog=away))
    found = seen(world, kind("h", slots=1))
    assert (found.waiting, found.running, found.wanted_workers, found.unfit) == (6, 2, 8, 9)
    assert found.oldest_ms == 1_000


def test_the_row_of_a_broker_names_the_largest_parts_of_its_backlog() -> None:
    world = World()
    for number in range(counting.ROUTES_MAX + 1):
        world.task({"name": f"w{number}", "steps": [{"name": "only", "handler_class": f"h{number:03}"}]})
    world.submit("w7")
    row = counting.in_row(world.state)
    assert (len(row), row[0].handler_class, row[0].waiting) == (counting.ROUTES_MAX, "h007", 2)


def test_stored_tasks_count_for_the_labels_that_their_workflow_needs() -> None:
    world = World()
    world.apply({**ONE, "name": "plain"})
    world.apply({**one(worker_selector={"gpu": "true"}), "name": "gpu"})
    plain, gpu = (next(w.id for w in world.state.workflows.values() if w.name == name) for name in ("plain", "gpu"))
    assert demand.is_split(world.state, kind("h"), "h")
    assert not demand.is_split(world.state, kind("h", gpu="true"), "h")
    found = seen(world, kind("h", slots=10), StoredLoad("h", plain, 30), StoredLoad("h", gpu, 50))
    assert (found.waiting, found.stored, found.unfit, found.wanted_workers) == (30, 30, 50, 3)
    everything = seen(world, kind("h", slots=10, gpu="true"), StoredLoad("h", None, 80))
    assert everything.wanted_workers == 8


def test_a_handler_whose_breaker_is_open_wants_no_further_workers() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=3)
    world.ask(SetBreaker, handler_class="h", state="open", reason="")
    found = seen(world, kind("h", slots=1))
    assert (found.waiting, found.wanted_workers) == (3, 0)
    assert found.because == ["the breaker for `h` is open: 3 steps wait until it closes"]
