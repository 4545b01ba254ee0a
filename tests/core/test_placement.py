"""Placement: credit, shares, batches, priorities, fairness, selectors, and steps that may kill workers."""

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import BatchSettings, BusSettings, LimitSettings, Settings
from stepwire_broker.core.intake.commands import CancelTask
from stepwire_broker.core.workers.executor_control import PauseExecutor
from stepwire_protocol import codec

from .world import BROKER, DIES_MS, ONE, W2, W, World, one, steps, worker_id


def batch_sizes(world: World, worker: str = W) -> list[int]:
    return [len(b.steps) for b in world.batches(worker)]


# -- credit and batches -----------------------------------------------------------------------------------------------


def test_a_worker_is_sent_no_more_steps_than_its_free_allows() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=20)
    world.hello(slots=2, prefetch=3)
    assert sum(batch_sizes(world)) == 5
    world.check()


def test_free_slots_of_all_workers_are_filled_before_any_prefetch() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=2, prefetch=10)
    world.hello(W2, slots=2, prefetch=10)
    world.submit(count=4)
    assert [batch_sizes(world, w) for w in (W, W2)] == [[2], [2]]


def test_reported_free_slots_are_filled_before_the_larger_room_of_a_busy_worker() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=8, prefetch=10, free={BROKER: 400}, slots_free={BROKER: 0})
    world.hello(W2, slots=8, prefetch=10, free={BROKER: 8}, slots_free={BROKER: 8})
    world.submit(count=20)
    assert [sum(batch_sizes(world, w)) for w in (W, W2)] == [12, 8]
    assert batch_sizes(world, W2) == [8]


def test_without_free_slots_the_worker_with_the_largest_share_of_its_room_gets_the_batch() -> None:
    world = World(settings=Settings(bus=BusSettings(batch=BatchSettings(max_steps=10))))
    world.apply(ONE)
    world.hello(W, slots=8, prefetch=10, free={BROKER: 100}, slots_free={BROKER: 0})
    world.hello(W2, slots=8, prefetch=10, free={BROKER: 20}, slots_free={BROKER: 0})
    world.submit(count=60)
    assert [sum(batch_sizes(world, w)) for w in (W, W2)] == [50, 10]


def test_each_message_of_a_worker_replaces_its_free_slots() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=2, prefetch=10, free={BROKER: 5}, slots_free={BROKER: 2})
    session = world.state.sessions[W]
    assert session.slots_open == 2
    world.submit(count=2)
    assert (session.credit, session.slots_open) == (3, 0)
    world.accept(world.batches(W)[0], free=3)  # a worker that does not report free slots
    assert (session.slots_free, session.slots_open) == (None, 0)
    world.beat(W, n=9, free=12)
    assert session.slots_open == 2


def test_a_batch_holds_at_most_max_steps() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=3))))
    world.apply(ONE)
    world.submit(count=8)
    world.hello(slots=8, prefetch=0)
    assert batch_sizes(world) == [3, 3, 2]


def test_a_batch_holds_at_most_max_bytes_and_the_rest_goes_at_once_in_the_next() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_bytes=10_000))))
    world.apply(ONE)
    world.submit(count=4, context=b'"' + b"x" * 4_000 + b'"')
    world.hello(slots=10, prefetch=0)
    assert batch_sizes(world) == [2, 2]


def test_credit_is_the_last_free_less_what_is_sent_and_unanswered() -> None:
    world = World()
    world.apply(ONE)
    world.hello(slots=2, prefetch=2)
    world.submit(count=3)
    session = world.state.sessions[W]
    assert session.credit == 1
    world.beat(n=5, free=4)  # sent before the batches arrived at the worker
    assert session.credit == 1
    for batch in world.batches():
        world.accept(batch, free=1)
    assert session.credit == 1
    assert session.unanswered == 0
    world.check()


def test_free_is_taken_from_the_message_with_the_highest_n() -> None:
    world = World()
    world.hello()
    session = world.state.sessions[W]
    world.beat(n=9, free=3)
    world.beat(n=8, free=14)
    assert session.free == 3
    world.beat(n=10, free=5)
    assert session.free == 5
    world.beat(n=11, free=None)  # no `free` for this broker changes nothing
    assert session.free == 5


def test_results_carry_free_under_the_same_n_as_heartbeats() -> None:
    world = World()
    world.task(ONE)
    world.hello(n=5)
    world.result(world.batches()[0], n=7, free=2)
    assert world.state.sessions[W].free == 2
    world.beat(n=6, free=14)
    assert world.state.sessions[W].free == 2


def test_a_result_answers_its_batch_and_gives_the_credit_back_exactly_once() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=4)
    world.hello(slots=4, prefetch=0)
    (batch,) = world.batches()
    world.result(batch, position=0)
    session = world.state.sessions[W]
    assert (session.free, session.unanswered) == (0, 0)
    world.accept(batch, free=1)
    assert (session.free, session.unanswered) == (1, 0)


def test_a_worker_that_has_sent_no_free_gets_nothing_until_it_sends_one() -> None:
    world = World()
    world.task(ONE)
    world.hello(free={})
    assert world.batches() == []
    world.beat(n=2, free=1)
    assert batch_sizes(world) == [1]


def test_batch_numbers_rise_and_their_digits_come_from_a_key_of_this_start() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=1))))
    world.apply(ONE)
    world.submit(count=6)
    world.hello(slots=3, prefetch=0)
    parts = [b.batch_id.split("_") for b in world.batches()]
    assert [(name, number) for name, _, number in parts] == [("batch", "1"), ("batch", "2"), ("batch", "3")]
    world.restart()
    world.hello(W2, slots=3, prefetch=0)
    parts += [b.batch_id.split("_") for b in world.batches(W2)]
    assert len({digits for _, digits, _ in parts}) == len(parts) == 6
    assert all(len(digits) == 16 for _, digits, _ in parts)


# -- choice -----------------------------------------------------------------------------------------------------------


def test_the_largest_free_share_goes_first_and_ties_go_to_the_longest_idle() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=10, prefetch=0, free={BROKER: 5})
    world.hello(W2, slots=4, prefetch=0, free={BROKER: 3})
    world.submit()
    assert batch_sizes(world, W2) == [1]  # 3 of 4 is more than 5 of 10
    world = World()
    world.apply(ONE)
    world.hello(W, slots=1, prefetch=1)
    world.pass_time(1)
    world.hello(W2, slots=1, prefetch=1)
    world.pass_time(1)
    world.submit()
    world.result(world.batches(W)[0], free=2, n=9)
    world.pass_time(1)
    world.submit()
    assert batch_sizes(world, W2) == [1]


def test_only_a_worker_that_offers_the_handler_gets_the_step() -> None:
    world = World()
    world.hello(W, handlers=["other", "shop::*::x"])
    world.task(one(handler_class="shop::ship::Ship"))
    assert world.batches() == []
    world.hello(W2, handlers=["shop::**"])
    assert batch_sizes(world, W2) == [1]


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ({"gpu": "true"}, {"gpu": "true", "zone": "a"}, True),
        ({"gpu": "true"}, {"gpu": "false"}, False),
        ({"gpu": "true"}, {}, False),
        ({"gpu": ""}, {}, False),
        ({"gpu": "", "zone": "a"}, {"gpu": "", "zone": "a"}, True),
    ],
)
def test_a_worker_must_bear_every_label_of_the_selector(
    selector: dict[str, str], labels: dict[str, str], matches: bool
) -> None:
    world = World()
    world.hello(labels=labels)
    world.task(one(worker_selector=selector))
    assert bool(world.batches()) is matches


def test_a_refused_step_goes_to_another_worker_and_to_the_same_only_if_there_is_no_other() -> None:
    world = World()
    world.hello(W, slots=4, prefetch=10)
    task_id = world.task(ONE)
    world.refuse(world.batches(W)[0], "busy", free=14)
    assert batch_sizes(world, W) == [1, 1]  # there is no other worker
    world.hello(W2, slots=1, prefetch=0)
    world.refuse(world.batches(W)[-1], "busy", free=14)
    assert batch_sizes(world, W2) == [1]
    assert world.row(task_id).attempt == 0


def test_a_step_that_avoids_a_worker_is_not_put_into_its_next_batch() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello(W)
    world.submit()
    world.settle()
    (batch,) = world.batches(W)
    world.hello(W2, slots=2, prefetch=0, free={BROKER: 1})
    world.apply({**ONE, "name": "other"})  # the writer has something to do
    world.submit(priority=1)
    world.refuse(batch, "busy", free=14)
    world.commit()
    world.settle()
    (kept_from_w,) = world.batches(W2)
    assert [s.step_id for s in kept_from_w.steps] == [batch.steps[0].step_id]
    assert len(world.batches(W)) == 2
    world.check()


def test_a_worker_that_does_not_know_a_handler_gets_no_step_of_it_again_in_its_session() -> None:
    world = World()
    world.apply(ONE)
    world.hello(W, slots=1, prefetch=0)
    world.submit(count=300)
    world.refuse(world.batches()[0], "unknown_handler", free=1)
    assert len(world.batches()) == 1
    task_id = min(world.state.tasks)
    assert world.row(task_id).state == "ready"
    assert world.row(task_id).reason == "unknown_handler"
    # The many steps that it cannot take do not block those that it can take.
    other = {"name": "other", "steps": [{"name": "only", "handler_class": "g"}]}
    world.task(other)
    assert len(world.batches()) == 2
    world.hello(W, k=2, slots=1, prefetch=0)
    assert world.batches()[-1].steps[0].handler_class == "h"


# -- order ------------------------------------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_age() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=10))))
    world.apply(ONE)
    ids = []
    for priority in (0, 5, -5, 5):
        ids.append(world.submit(priority=priority).task_ids[0])
        world.pass_time(1)
    world.hello()
    order = [s.task_id for b in world.batches() for s in b.steps]
    assert order == [ids[1], ids[3], ids[0], ids[2]]


def test_the_priority_of_a_step_is_added_to_that_of_its_task() -> None:
    world = World()
    world.apply(steps({"name": "low"}, {"name": "high", "priority": 7}))
    world.submit()
    world.hello(slots=2, prefetch=0)
    assert [s.step_name for s in world.batches()[0].steps] == ["high", "low"]


def test_a_flood_in_one_namespace_does_not_starve_another() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=2))))
    flow = {"name": "flow", "steps": [{"name": "only", "handler_class": "h"}]}
    world.apply(flow)
    world.apply({**flow, "namespace": "small"})
    world.submit(count=100, priority=9)
    world.submit(count=2, namespace="small")
    world.hello(slots=6, prefetch=0)
    taken = [world.state.tasks[s.task_id].namespace for b in world.batches() for s in b.steps]
    assert taken.count("small") == 2


# -- suspects ---------------------------------------------------------------------------------------------------------


def lose(world: World, worker: str) -> None:
    world.pass_time(DIES_MS)
    assert worker not in world.state.sessions


def test_a_suspect_goes_alone_and_a_session_holds_at_most_one() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=2)
    for number in (1, 2):
        lose(world, world.hello(worker_id(number=number), slots=2, prefetch=0))
    world.submit(count=4)
    world.forget()
    world.hello(W := worker_id(number=3), slots=10, prefetch=0)
    sizes = sorted(batch_sizes(world, W))
    assert sizes == [1, 4]  # one suspect alone; the other waits
    assert world.state.sessions[W].suspects == 1
    world.check()
    suspect = next(b for b in world.batches(W) if len(b.steps) == 1)
    world.result(suspect, W, free=9, n=9)
    assert sorted(batch_sizes(world, W)) == [1, 1, 4]
    world.check()


def test_many_suspects_do_not_block_other_steps() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=300, priority=9)
    for number in (1, 2):
        lose(world, world.hello(worker_id(number=number), slots=300, prefetch=0))
    world.submit(count=5)
    fresh = world.hello(worker_id(number=3), slots=10, prefetch=0)
    assert sum(batch_sizes(world, fresh)) == 6


def test_at_three_lost_sessions_a_step_fails_as_worker_lost() -> None:
    world = World()
    task_id = world.task(ONE)
    for number in (1, 2, 3):
        lose(world, world.hello(worker_id(number=number)))
    assert world.row(task_id).state == "failed"
    assert world.row(task_id).reason == "worker_lost"
    assert world.row(task_id).lost_sessions == 3
    assert world.stored(task_id).state == "failed"
    world.check()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_step_carries_the_outputs_of_its_direct_dependencies_by_name() -> None:
    world = World()
    task_id = world.task(
        steps({"name": "a"}, {"name": "b", "depends_on": ["a"]}, {"name": "c", "depends_on": ["b"]}), context=b'{"x":1}'
    )
    world.hello()
    world.result(world.batches()[-1], output=msgspec.Raw(b'{"n": [1, 2]}'))
    second = world.batches()[-1].steps[0]
    assert bytes(second.previous_results) == b'{"a":{"n":[1,2]}}'
    assert bytes(second.task_context) == b'{"x":1}'
    world.result(world.batches()[-1], output=msgspec.Raw(b"2"))
    assert bytes(world.batches()[-1].steps[0].previous_results) == b'{"b":2}'
    assert world.row(task_id, "a").output == '{"n":[1,2]}'


def test_a_mapped_input_is_sent_in_addition_to_the_other_fields() -> None:
    world = World()
    mapping = {"total": "results.a.sum", "who": "context.user.name", "none": "context.nobody"}
    world.task(
        steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "input": mapping}), context=b'{"user":{"name":"eve"}}'
    )
    world.hello()
    world.result(world.batches()[-1], output=msgspec.Raw(b'{"sum":3}'))
    given = msgspec.json.decode(world.batches()[-1].steps[0].input)
    assert given == {"total": 3, "who": "eve", "none": None}


def test_the_idempotency_key_is_the_same_over_attempts_and_deliveries() -> None:
    world = World()
    world.task(one(backoff={"base_ms": 100, "jitter": "none"}))
    world.hello()
    first = world.batches()[-1].steps[0]
    world.refuse(world.batches()[-1], "busy")
    second = world.batches()[-1].steps[0]
    world.fail(world.batches()[-1])
    world.pass_time(100)
    third = world.batches()[-1].steps[0]
    assert [s.delivery for s in (first, second, third)] == [1, 2, 3]
    assert [s.metadata.attempt for s in (first, second, third)] == [0, 0, 1]
    assert len({s.metadata.idempotency_key for s in (first, second, third)}) == 1
    assert len({s.metadata.traceparent for s in (first, second, third)}) == 3


def test_a_request_larger_than_the_brokers_limit_fails_as_too_large_and_the_others_go() -> None:
    settings = Settings(bus=BusSettings(max_message_bytes=65_536), limits=LimitSettings(resident_payload_bytes=1 << 20))
    world = World(settings)
    world.apply(ONE)
    large = world.submit(context=b'"' + b"x" * 70_000 + b'"').task_ids[0]
    small = world.submit().task_ids[0]
    world.hello(max_message_bytes=65_536)
    assert world.stored(large).state == "failed"
    assert world.row(large).reason == "too_large"
    assert [s.task_id for b in world.batches() for s in b.steps] == [small]
    world.check()


def test_a_step_too_large_for_one_worker_waits_for_another_one_and_holds_up_no_other_step() -> None:
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=1 << 20)))
    world.apply(ONE)
    large = world.submit(context=b'"' + b"x" * 70_000 + b'"', count=300, priority=5).task_ids
    small = world.submit().task_ids[0]
    world.hello(max_message_bytes=65_536, slots=400)
    assert [s.task_id for b in world.batches() for s in b.steps] == [small]
    assert {world.stored(task_id).state for task_id in large} == {"running"}
    world.check()
    world.hello(W2, max_message_bytes=100_000, slots=400)
    sent = {s.task_id for b in world.batches(W2) for s in b.steps}
    assert sent == set(large)
    world.check()


def test_a_step_too_large_for_the_first_worker_goes_to_the_next_in_the_same_turn() -> None:
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=1 << 20)))
    world.hello(max_message_bytes=65_536, slots=40)
    world.hello(W2, slots=2)
    world.apply(ONE)
    task_id = world.submit(context=b'"' + b"x" * 70_000 + b'"').task_ids[0]
    assert [s.task_id for b in world.batches(W2) for s in b.steps] == [task_id]


@pytest.mark.parametrize("context_bytes", [58_000, 62_000, 63_000, 64_000, 65_000])
def test_no_message_is_ever_larger_than_its_worker_can_take(context_bytes: int) -> None:
    name = "n" * 128
    world = World(Settings(limits=LimitSettings(resident_payload_bytes=1 << 20)))
    world.apply({"name": "flow", "steps": [{"name": name, "handler_class": "H" * 128}]})
    world.submit(context=b'"' + b"x" * context_bytes + b'"')
    world.submit(context=b'"' + b"x" * 200 + b'"', count=12)
    world.hello("w" * 48 + ":" + "f" * 16, max_message_bytes=65_536, slots=30)
    for frame in world.frames:
        _, body = codec.split(frame)
        assert len(body) <= 65_536
    assert sum(batch_sizes(world, "w" * 48 + ":" + "f" * 16)) >= 12


# -- payloads that are not in memory ----------------------------------------------------------------------------------

LARGE = b'"' + b"y" * 20_000 + b'"'


def test_a_large_context_leaves_memory_once_it_is_stored_and_is_fetched_for_the_dispatch() -> None:
    world = World()
    world.apply(ONE)
    task_id = world.submit(context=LARGE).task_ids[0]
    assert world.state.tasks[task_id].context is None
    assert world.state.resident_bytes == 0
    world.answers_reads = False
    world.hello()
    assert world.batches() == []
    world.read()
    assert bytes(world.batches()[0].steps[0].task_context) == LARGE
    assert world.step(task_id).payload_context is None
    world.check()


def test_a_large_output_is_fetched_for_the_step_that_depends_on_it() -> None:
    world = World()
    world.task(steps({"name": "a"}, {"name": "b", "depends_on": ["a"]}))
    world.hello()
    world.result(world.batches()[0], output=msgspec.Raw(LARGE))
    assert bytes(world.batches()[-1].steps[0].previous_results) == b'{"a":' + LARGE + b"}"
    world.check()


def test_a_failed_fetch_is_repeated() -> None:
    world = World()
    world.apply(ONE)
    world.submit(context=LARGE)
    world.answers_reads = False
    world.hello()
    world.fail_read()
    world.stay(W, 1_001)
    world.read()
    assert len(world.batches()) == 1


def test_fetches_in_flight_are_bounded_in_steps() -> None:
    world = World()
    world.apply(ONE)
    world.submit(count=600, context=LARGE)
    world.answers_reads = False
    world.hello(slots=1_000, prefetch=0)
    world.beat(n=2, free=1_000)
    assert sum(map(len, world.state.fetching.values())) <= 256
    world.answers_reads = True
    while world.reads:
        world.read()
    world.stay(W, 4_000)
    assert sum(batch_sizes(world)) == 600


def test_a_rule_that_compares_a_large_output_waits_for_it() -> None:
    rule = {"result": "a", "op": "contains", "value": "zzz"}
    world = World()
    task_id = world.task(
        steps(
            {"name": "a"},
            {"name": "yes", "depends_on": ["a"], "trigger_rule": {"none": [rule]}},
            {"name": "no", "depends_on": ["a"], "trigger_rule": rule},
        )
    )
    world.hello()
    world.answers_reads = False
    world.auto = False
    world.result(world.batches()[0], output=msgspec.Raw(LARGE))
    world.settle()
    world.auto = True
    while world.reads:
        world.read()
    assert world.states(task_id) == {"a": "completed", "yes": "dispatched", "no": "skipped"}
    world.check()


def test_a_request_carries_the_time_left_until_the_steps_deadline() -> None:
    world = World()
    world.task(one(deadline_ms=60_000))
    world.pass_time(10_000)
    world.hello()
    assert world.batches()[0].steps[0].metadata.deadline_ms == 50_000


# -- several lanes ----------------------------------------------------------------------------------------------------


def with_busy_lane(world: World, priorities: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Submit a task to each of two lanes, and let the first lane be written. Returns the tasks."""
    world.apply(ONE)
    tasks: dict[int, int] = {}
    while len(tasks) < 2:
        lane = 2 if 1 in tasks else 1
        task_id = world.task(ONE, priority=priorities[lane - 1])
        of_lane = world.state.tasks[task_id].lane
        if of_lane == lane:
            tasks[lane] = task_id
        else:
            world.ask(CancelTask, task_id=task_id)
    world.auto = False
    world.ask(PauseExecutor, executor="none")  # a row of the lowest lane
    assert world.writings.keys() == {1}
    return tasks[1], tasks[2]


def test_a_step_of_a_lane_that_is_being_written_waits_for_the_next_group_of_its_lane() -> None:
    world = World(lanes=2)
    of_busy, of_idle = with_busy_lane(world)
    world.hello()
    assert (world.step(of_busy).state, world.step(of_idle).state) == ("ready", "dispatched")
    world.commit(1)
    assert world.step(of_busy).state == "dispatched"
    world.settle()
    assert [len(batch.steps) for batch in world.batches()] == [1, 1]


def test_a_step_of_a_lane_that_is_being_written_leaves_before_steps_of_lower_priority() -> None:
    world = World(lanes=2)
    of_busy, of_idle = with_busy_lane(world, priorities=(5, 0))
    world.hello(slots=1, prefetch=0)
    assert (world.step(of_busy).state, world.step(of_idle).state) == ("dispatched", "ready")


def test_a_full_batch_of_a_lane_that_is_being_written_leaves_at_once() -> None:
    world = World(Settings(bus=BusSettings(batch=BatchSettings(max_steps=1))), lanes=2)
    of_busy, of_idle = with_busy_lane(world)
    world.hello()
    assert (world.step(of_busy).state, world.step(of_idle).state) == ("dispatched", "dispatched")


def test_a_batch_has_the_steps_of_one_lane_before_those_of_another() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    tasks = [world.task(ONE) for _ in range(6)]
    lanes = {task_id: world.state.tasks[task_id].lane for task_id in tasks}
    world.hello(slots=3, prefetch=0)
    (batch,) = world.batches()
    first = lanes[tasks[0]]
    assert [step.task_id for step in batch.steps] == [task_id for task_id in tasks if lanes[task_id] == first]
