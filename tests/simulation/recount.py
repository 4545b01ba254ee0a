"""Recounts every count that the core keeps, and checks that its references agree."""

from stepwire_broker.core.model.states import DISPATCHED, READY, STEP_FINAL, TaskState
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import FetchDue

NOTE_CHARACTERS_MAX = 200


def check(state: BrokerState) -> None:
    resident = 0
    for task in state.tasks.values():
        assert task.open == sum(s.state not in STEP_FINAL for s in task.steps), f"task {task.id}: open is {task.open}"
        assert task.dispatched == sum(s.state is DISPATCHED for s in task.steps), f"task {task.id}: dispatched"
        assert task.moving == sum(s.state in ("ready", "dispatched", "retry_wait") for s in task.steps), "moving"
        size = sum(len(s.output) for s in task.steps if s.output is not None) + len(task.context or b"")
        assert task.resident_bytes == size, f"task {task.id}: {task.resident_bytes} bytes resident, in truth {size}"
        resident += size
        for step in task.steps:
            assert state.steps[step.id] is step, f"step {step.id} is another object"
            waits = sum(task.steps[i].state not in STEP_FINAL for i in step.definition.depends_on)
            assert step.waits == waits, f"step {step.id} waits for {step.waits}, in truth {waits}"
            if step.state is DISPATCHED:
                assert step.batch_id is not None, f"step {step.id} is dispatched without a batch"
                if step.at_level0:
                    handout = state.level0.handouts.get(step.batch_id)
                    is_out = handout is not None and (step.id, step.delivery) in handout.items
                    assert is_out, f"step {step.id} is dispatched at level 0 and in no handout"
                    assert step.granted == step.at_most_once, f"step {step.id} at level 0: granted is {step.granted}"
                    continue
                is_recovered = step.id in state.recovered.get(step.worker or "", {})
                is_held = step.session is not None and not step.session.dead
                assert is_recovered or is_held, f"step {step.id} is dispatched and no session holds it"
            else:
                assert step.session is None, f"step {step.id} is {step.state} and a session holds it"
            assert bool(step.dirty) == (step in task.dirty_steps), f"step {step.id}: dirty"
        if task.dirty or task.facts or task.dirty_steps:
            lane = state.outbox.lanes[task.lane]
            assert lane.dirty.get(task.id) is task, f"task {task.id} has changes and is not in its lane's group"
    for handout in state.level0.handouts.values():
        assert not handout.over, f"{handout.id} is over"
        assert handout.peer is None or handout.peer.holds[handout.id] is handout, f"{handout.id} belongs to no handler"
    for peer in state.level0.peers.values():
        assert len(peer.holds) <= 1, f"{peer.worker} holds {len(peer.holds)} batches"
        assert all(state.level0.handouts[i] is handout for i, handout in peer.holds.items()), f"{peer.worker}"
    assert state.resident_bytes == resident, f"{state.resident_bytes} bytes resident, in truth {resident}"
    assert len(state.steps) == sum(len(t.steps) for t in state.tasks.values()), "steps of tasks that are not here"
    for worker, session in state.sessions.items():
        assert (session.worker, session.dead) == (worker, False), f"session of {worker}"
        unanswered = sum(len(b.steps) for b in session.unanswered_batches.values())
        assert session.unanswered == unanswered, f"{worker}: {session.unanswered} unanswered, in truth {unanswered}"
        suspects = sum(s.is_suspect for s in session.deliveries.values())
        assert session.suspects == suspects, f"{worker}: {session.suspects} suspects, in truth {suspects}"
        for step_id, step in session.deliveries.items():
            assert step.id == step_id, f"step {step.id} is filed as {step_id}"
            assert step.session is session, f"step {step_id} belongs to another session"
            assert step.state is DISPATCHED, f"step {step_id} is {step.state} and held by {worker}"
        assert session.asking <= set(session.deliveries), f"{worker} is asked about a step that it was not given"
    for step_id, report in state.progress.items():
        step = state.steps.get(step_id)
        is_current = step is report.step and step.state is DISPATCHED and step.delivery == report.delivery
        assert is_current, f"progress of step {step_id} outlived its run"
        assert len(report.note or "") <= NOTE_CHARACTERS_MAX, f"the note of step {step_id} is too long"
    for worker, steps in state.recovered.items():
        assert steps, f"nothing is recovered of {worker}"
        for step in steps.values():
            assert (step.worker, step.session) == (worker, None), f"step {step.id} is recovered for another"
            assert step.state is DISPATCHED, f"step {step.id} is {step.state} and recovered"
    _check_ready(state)
    _check_guards(state)


def _check_guards(state: BrokerState) -> None:
    guards = state.guards
    for step_id, probe in guards.probes.items():
        step = state.steps[step_id]
        assert (step.state, step.delivery) == (DISPATCHED, probe.delivery), f"step {step_id} is no longer a probe"
        assert probe.guard.breaker.turn == probe.call, f"step {step_id} is a probe of a turn that is over"
    for name, guard in guards.by_handler.items():
        of_it = sum(probe.guard is guard for probe in guards.probes.values())
        assert guard.breaker.under_way == of_it, f"{name}: {guard.breaker.under_way} probes under way, in truth {of_it}"
        assert (guard.breaker.state == "closed") == (name not in guards.barred), f"{name} is {guard.breaker.state}"


def _check_ready(state: BrokerState) -> None:
    entries = state.ready.entries()
    assert state.ready.count == len(entries), (
        f"{state.ready.count} are counted in the ready queue, in truth {len(entries)}"
    )
    assert len(set(map(id, entries))) == len(entries), "a step is in the ready queue twice"
    assert all(step.queued for step in entries), "a step in the ready queue is not marked as queued"
    fetching = {id(s) for steps in state.fetching.values() for s in steps} | {id(s) for s in state.undecided_steps}
    waiting_for_fetch = {id(s) for timer in state.timers.all() if isinstance(timer, FetchDue) for s in timer.steps}
    for task in state.tasks.values():
        for step in task.steps:
            if step.state is READY and task.state is TaskState.RUNNING and not step.queued:
                is_stalled = any(step is each for each in state.outbox.lanes[task.lane].waiting)
                assert is_stalled or id(step) in fetching or id(step) in waiting_for_fetch, (
                    f"step {step.id} is ready and in no queue"
                )
